# SPDX-License-Identifier: Apache-2.0
"""What TLS with certificates on both sides costs the control plane, and what --audit costs a put and a get.

    python tests/bench/tls.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

Daemons with and without are asked in turn; medians of the rounds are printed. A handshake's cost is the CPU time of the daemon, so other work on the machine counts little.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from arrays import import_cairn, parse_arguments

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e" / "python"))
from certificates import Ca  # noqa: E402

URI = "spiffe://bench.example/engine"
GOALS = {"match_more_us": 120, "connect_ms": 10, "handshakes_per_cpu_s": 800, "audit_ratio": 1.03}


class Daemon:
    def __init__(self, bin_dir: pathlib.Path, folder: pathlib.Path, *flags: Any, control: str = "127.0.0.1:0", host_bytes: str = "256MiB") -> None:
        folder.mkdir()
        command = [bin_dir / "cairnd", "--control", control, "--http", "off", "--socket", folder / "s"]
        command += ["--host-bytes", host_bytes, "--ssd", "off", "--map", "off", *flags]
        self._log = open(folder / "log", "w", encoding="utf-8")
        self.process = subprocess.Popen(list(map(str, command)), stdout=self._log, stderr=self._log)
        while re.search(r"cairnd ready .*\n", (folder / "log").read_text()) is None:
            assert self.process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        self.found = dict(re.findall(r"(\w+)=(\S+)", (folder / "log").read_text()))

    def cpu_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def thread_seconds(self) -> collections.Counter[str]:
        """CPU time by the names of threads; a number at the end is no part of a name."""
        seconds: collections.Counter[str] = collections.Counter()
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                name = re.sub(r"-\d+$", "", (task / "comm").read_text().strip())
                seconds[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
        return seconds

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self._log.close()


def seconds_of(action: Any, count: int) -> float:
    """The median of a call."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        lease = action()
        times.append(time.perf_counter() - begin)
        if lease is not None:
            lease.release()
    return statistics.median(times)


def handshake_cpu_seconds(daemon: Daemon, ca: Ca, pair: tuple[str, str], count: int) -> float:
    host, _, port = daemon.found["stream"].removeprefix("tls:").rpartition(":")
    context = ssl.create_default_context(cafile=str(ca.pem))
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(["cairn-stream/1"])
    before = daemon.cpu_seconds()
    for _ in range(count):
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
    return (daemon.cpu_seconds() - before) / count


class Case:
    """A client with a space and a block of 1 MiB."""

    def __init__(self, cairn: Any, options: dict[str, Any]) -> None:
        self._cairn, self._options = cairn, options
        self.client = self.connect()
        group = cairn.KvGroup(16, 8, 128)
        self._space = self.client.open_space("m", "r", [group], tokens_per_block=16, recipe="raw")
        self._keys = self._space.keys(range(16))
        self._source = bytes(self._space.source_bytes())
        self._target = bytearray(self._source)
        self.put()

    def connect(self) -> Any:
        return self._cairn.connect(timeout=20.0, tenant="bench", **self._options)

    def open_and_close(self) -> None:
        self.connect().close()

    def match(self) -> Any:
        return self._space.match(self._keys, timeout=20)

    def put(self) -> None:
        self._space.delete(self._keys, timeout=20)
        self._space.put(self._keys[0], source=self._source, timeout=20)

    def get(self) -> None:
        self._space.get(self._keys[0], source=self._target, timeout=20)


def measure(cairn: Any, bin_dir: pathlib.Path, folder: pathlib.Path, rounds: int, quick: bool) -> dict[str, float]:
    ca = Ca(folder)
    server = ca.issue("server", "DNS:localhost,IP:127.0.0.1", use="serverAuth")
    pair = ca.issue("client", f"URI:{URI}")
    policy = folder / "policy.yaml"
    rules = [f'{{uri: "{URI}", tenants: [bench]}}', f"{{uid: {os.getuid()}, tenants: [bench]}}"]
    policy.write_text("version: 1\nidentities: [" + ", ".join(rules) + "]\n")
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem, "--stream", "127.0.0.1:0"]
    plain = Daemon(bin_dir, folder / "plain")
    secured = Daemon(bin_dir, folder / "secured", *flags)
    audit = Daemon(bin_dir, folder / "audit", "--policy", policy, "--audit", folder / "a", control=f"unix:{folder}/c")
    unix = Daemon(bin_dir, folder / "unix", control=f"unix:{folder}/d")
    tls = {"tls_ca": str(ca.pem), "tls_cert": pair[0], "tls_key": pair[1]}
    by = {
        "plain": Case(cairn, {"control": plain.found["control"]}),
        "tls": Case(cairn, {"control": secured.found["control"], **tls}),
        "audit": Case(cairn, {"control": audit.found["control"]}),
        "unix": Case(cairn, {"control": unix.found["control"]}),
    }
    few, many = (2, 10) if quick else (20, 300)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        figures = {}
        for name in ("plain", "tls"):
            figures[f"match_{name}_us"] = 1e6 * seconds_of(by[name].match, many)
            figures[f"connect_{name}_ms"] = 1e3 * seconds_of(by[name].open_and_close, few)
        figures["match_more_us"] = figures["match_tls_us"] - figures["match_plain_us"]
        figures["connect_ms"] = figures["connect_tls_ms"]
        figures["handshake_cpu_ms"] = 1e3 * handshake_cpu_seconds(secured, ca, pair, 50 if quick else 400)
        figures["handshakes_per_cpu_s"] = 1e3 / max(figures["handshake_cpu_ms"], 1e-3)
        times = {name: seconds_of(by[name].put, few) + seconds_of(by[name].get, few) for name in ("unix", "audit")}
        figures["audit_ratio"] = times["audit"] / times["unix"]
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    for case in by.values():
        case.client.close()
    for daemon in (plain, secured, audit, unix):
        daemon.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    cairn, _ = import_cairn(arguments.bin_dir)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cairn-tls-") as folder:
        rounds = 1 if arguments.quick else arguments.rounds
        figures = measure(cairn, arguments.bin_dir, pathlib.Path(folder), rounds, arguments.quick)
    for name, value in figures.items():
        goal = GOALS.get(name)
        is_met = goal is not None and (value >= goal if name == "handshakes_per_cpu_s" else value <= goal)
        print(f"{name:24} {value:9.2f}" + ("" if goal is None else f"  goal {goal} {'met' if is_met else 'MISSED'}"))
    print(f"load average: {load_before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
