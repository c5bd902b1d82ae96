# SPDX-License-Identifier: Apache-2.0
"""Hosts for tests: network namespaces on one bridge, whose links can be cut, slowed and delayed.

Needs root, `ip` and `tc`. Nothing outside the namespaces is changed.
"""

import itertools
import os
import pathlib
import signal
import subprocess
import sys

RELAY = pathlib.Path(__file__).resolve().parent / "relay.py"
RELAY_SECONDS_MAX = 20

_numbers = itertools.count()


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class Network:
    """`names` are the hosts. The bridge has an address, too: the hub's, for a registry.

    Raises OSError or CalledProcessError where namespaces cannot be had."""

    hub_address = "10.77.0.200"

    def __init__(self, names):
        self._prefix = f"cairn-{os.getpid()}-{next(_numbers)}"
        self._names = list(names)
        self._made = []
        self._relays = {}
        self.hub = f"{self._prefix}-hub"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _add(self, name):
        run("ip", "netns", "add", name)
        self._made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _make(self):
        self._add(self.hub)
        run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.hub, "addr", "add", f"{self.hub_address}/24", "dev", "bridge")
        run("ip", "-n", self.hub, "link", "set", "bridge", "up")
        for name in self._names:
            space = self._space(name)
            self._add(space)
            peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", self.hub, "link", "add", f"to-{name}", *peer)
            run("ip", "-n", self.hub, "link", "set", f"to-{name}", "master", "bridge", "up")
            run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")

    def _space(self, name):
        return f"{self._prefix}-{name}"

    def address(self, name):
        return f"10.77.0.{self._names.index(name) + 1}"

    def enter(self, name):
        """The words that run a command on the host."""
        return ["ip", "netns", "exec", self._space(name)]

    def enter_hub(self):
        return ["ip", "netns", "exec", self.hub]

    # ------------------------------------------------------------------------------------ faults

    def cut(self, name):
        """Takes the link away: nobody is told, packets are lost."""
        run("ip", "-n", self.hub, "link", "set", f"to-{name}", "down")

    def mend(self, name):
        run("ip", "-n", self.hub, "link", "set", f"to-{name}", "up")

    def slow(self, name, rate="1mbit"):
        """Limits what the host sends and what it receives."""
        words = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "300ms"]
        run("tc", "-n", self.hub, "qdisc", "add", "dev", f"to-{name}", *words)
        run("tc", "-n", self._space(name), "qdisc", "add", "dev", "eth0", *words)

    def quicken(self, name):
        run("tc", "-n", self.hub, "qdisc", "del", "dev", f"to-{name}", "root")
        run("tc", "-n", self._space(name), "qdisc", "del", "dev", "eth0", "root")

    def disturb(self, name, delay_seconds, loss):
        """Delays each packet of the host by so long, in both directions, and loses some of them."""
        near, far = f"near-{name}", f"far-{name}"
        run("ip", "-n", self.hub, "link", "add", near, "type", "veth", "peer", "name", far)
        run("ip", "-n", self.hub, "link", "set", far, "master", "bridge", "up")
        run("ip", "-n", self.hub, "link", "set", near, "up")
        relay = [sys.executable, str(RELAY)]
        run(*self.enter(name), *relay, "whole", "eth0")
        run(*self.enter_hub(), *relay, "whole", far)
        words = ["pass", f"to-{name}", near, str(delay_seconds), str(loss)]
        running = subprocess.Popen(
            [*self.enter_hub(), *relay, *words], stdout=subprocess.PIPE, text=True
        )
        self._relays[name] = running
        assert running.stdout.readline() == "ready\n"
        run("ip", "-n", self.hub, "link", "set", f"to-{name}", "nomaster")

    def calm(self, name):
        relay = self._relays.pop(name)
        relay.send_signal(signal.SIGTERM)
        relay.wait(RELAY_SECONDS_MAX)
        relay.stdout.close()
        run("ip", "-n", self.hub, "link", "del", f"near-{name}")
        run("ip", "-n", self.hub, "link", "set", f"to-{name}", "master", "bridge")

    def close(self):
        for relay in self._relays.values():
            relay.kill()
            relay.wait()
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        self._made.clear()


def why_not():
    """Why there are no such hosts here; empty if there are."""
    try:
        network = Network(["x"])
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces: {str(getattr(error, 'stderr', '') or error).strip()}"
    try:
        network.slow("x")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no tbf: {str(getattr(error, 'stderr', '') or error).strip()}"
    finally:
        network.close()
    return ""
