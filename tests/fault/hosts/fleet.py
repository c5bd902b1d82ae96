# SPDX-License-Identifier: Apache-2.0
"""The daemons of a cluster, each on a host of its own, with TLS between them; and an etcd."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from certificates import Ca

PEER_PORT, STREAM_PORT, ETCD_PORT = 50160, 50152, 2379
HTTP = "127.0.0.1:9464"  # of each host
METRICS = f"http://{HTTP}/metrics"
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60


class Member:
    """A daemon. Its clients use `control` and `data`, which no fault of the network reaches."""

    def __init__(self, name, command, enter, folder):
        self.name, self._command, self._enter = name, command, enter
        self.control = f"unix:{folder / name}.control"
        self.data = f"unix:{folder / name}.data"
        self._bin = pathlib.Path(command[0]).parent
        self._log_path = folder / f"{name}.log"
        self.process = None

    def start(self):
        with open(self._log_path, "ab") as log:
            begin = log.tell()
            command = [*self._enter, *self._command]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while "\ncairnd ready " not in "\n" + self.log(begin):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log(begin)
            time.sleep(0.05)

    def log(self, begin=0):
        return self._log_path.read_bytes()[begin:].decode(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)

    def terminate(self):
        self.process.terminate()
        assert self.process.wait(STOP_SECONDS_MAX) == 0, self.log()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def members(self):
        """The states of the members by name, as this daemon sees them."""
        command = [str(self._bin / "cairnctl"), "members", "--control", self.control]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        return {words[0]: words for words in lines if words}

    def view_hash(self):
        """Of the names of those that count."""
        command = [str(self._bin / "cairnctl"), "members", "--control", self.control, "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["view_hash"]

    def view_changes(self):
        """How often a member came or went, or its state changed."""
        read = f"import urllib.request; print(urllib.request.urlopen('{METRICS}').read().decode())"
        command = [*self._enter, sys.executable, "-c", read]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = re.search(r"^cairn_view_changes_total (\S+)$", done.stdout, re.MULTILINE)
        return int(float(found[1]))

    def joined(self):
        return sorted(name for name, words in self.members().items() if "joined" in words)

    def kept(self):
        """Those that are joined, and those held: the source does not list them now, and they count."""
        states = {"joined", "held"}
        return sorted(name for name, words in self.members().items() if states & set(words))

    def weight(self):
        """The number of threads and of open files, and the resident bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        files = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return int(fields["Threads"]), files, int(fields["VmRSS"].split()[0]) * 1024


class Starvation:
    """How long threads of the daemons could run and had to wait for a processor: such time is the
    machine's. Empty where the kernel does not say."""

    STEP_SECONDS = 0.25

    def __init__(self, members):
        self._members, self._is_over = members, threading.Event()
        self._waits = []  # from, to, name, seconds of the thread that waited longest
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        last, before = {}, time.monotonic()
        while not self._is_over.wait(self.STEP_SECONDS):
            known, last = last, {}
            for name, member in self._members.items():
                for path in pathlib.Path(f"/proc/{member.process.pid}/task").glob("*/schedstat"):
                    with contextlib.suppress(OSError):  # it has ended
                        last[name, path] = int(path.read_text().split()[1]) / 1e9
            now = time.monotonic()
            for name in self._members:
                waits = [seconds - known.get(thread, seconds)
                         for thread, seconds in last.items() if thread[0] == name]
                if max(waits, default=0) > 0.02:
                    self._waits.append((before, now, name, max(waits)))
            before = now

    def of(self, name, begin, end):
        """Seconds for which the member waited in this time; at most."""
        margin = 2 * self.STEP_SECONDS
        return sum(wait for since, until, one, wait in list(self._waits)
                   if one == name and since < end + margin and until > begin - margin)

    def stop(self):
        self._is_over.set()
        self._thread.join()


class Etcd:
    """On the hub."""

    def __init__(self, program, network, folder):
        self.address = f"{network.hub_address}:{ETCD_PORT}"
        self._folder, self._enter = folder, network.enter_hub()
        # The package's program is not executable where pip has put it.
        self._program = folder / "etcd"
        shutil.copyfile(program, self._program)
        self._program.chmod(0o700)
        self._process = None

    def start(self):
        url = f"http://{self.address}"
        command = [*self._enter, str(self._program), "--data-dir", str(self._folder / "etcd-data")]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error"]
        command += ["--unsafe-no-fsync"]
        with open(self._folder / "etcd.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def freeze(self):
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def wipe(self):
        """Kills it, and starts it without its data."""
        self.kill()
        shutil.rmtree(self._folder / "etcd-data")
        self.start()

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)


class Fleet:
    """`etcd`: where the list of the members comes from; by default, each has a file of its own.
    `match_ms` is ten times the daemon's default, for a machine that does much else."""

    def __init__(self, bin_dir, network, names, folder, etcd=None, drain_ms=1000, match_ms=200):
        self._network, self._folder, self.names = network, folder, list(names)
        self._drain_ms, self._match_ms = drain_ms, match_ms
        ca = Ca(folder)
        rules = [f'  - {{uid: {os.getuid()}, tenants: ["*"]}}']
        for name in names:
            uri = f"spiffe://test.example/{name}"
            rules.append(f'  - {{uri: "{uri}", peer: true, tenants: ["*"]}}')
            ca.issue(name, f"URI:{uri}", use="serverAuth,clientAuth")
        (folder / "policy.yaml").write_text("\n".join(["version: 1", "identities:", *rules]) + "\n")
        self.members = {}
        for name in names:
            self.list_for(name, names)
            source = f"etcd:{etcd.address}" if etcd else f"file:{folder / name}.members"
            command = self._command(bin_dir, name, source, ca)
            self.members[name] = Member(name, command, network.enter(name), folder)

    def _command(self, bin_dir, name, source, ca):
        folder, address = self._folder, self._network.address(name)
        (folder / f"{name}.ssd").mkdir()
        return [
            *(str(bin_dir / "cairnd"), "--control", f"unix:{folder / name}.control"),
            *("--socket", f"{folder / name}.data", "--admin", f"unix:{folder / name}.admin"),
            *("--http", HTTP, "--host-bytes", "64MiB", "--ssd", f"{folder / name}.ssd=256MiB"),
            *("--cluster", "test", "--members", source, "--member-name", name),
            *("--peer", f"{address}:{PEER_PORT}"),
            *("--stream", f"{address}:{STREAM_PORT}", "--drain-ms", f"{self._drain_ms}"),
            *("--peer-match-ms", f"{self._match_ms}"),
            *("--tls-cert", f"{folder / name}.pem", "--tls-key", f"{folder / name}.key"),
            *("--tls-ca", str(ca.pem), "--policy", f"{folder}/policy.yaml"),
            # Towards etcd; members have TLS. The grace is then the default, since a member learns up
            # to a third of its lease late, ten seconds, that an etcd has lost its key.
            *(("--plaintext", "anywhere") if source.startswith("etcd:") else ("--member-grace", "5")),
        ]

    def list_for(self, name, listed):
        """Writes the list that the member reads."""
        lines = [f"{one}={self._network.address(one)}:{PEER_PORT}\n" for one in listed]
        fresh = self._folder / f"{name}.fresh"
        fresh.write_text("".join(lines))
        fresh.replace(self._folder / f"{name}.members")

    def start(self):
        for member in self.members.values():
            member.start()
        self.await_joined(self.names)

    def await_joined(self, names, seconds=START_SECONDS_MAX):
        """Waits until each of these members sees all of them."""
        deadline = time.monotonic() + seconds
        for name in names:
            while not set(names) <= set(self.members[name].joined()):
                assert time.monotonic() < deadline, self.members[name].members()
                time.sleep(0.2)

    def close(self):
        for member in self.members.values():
            if member.process is not None and member.process.poll() is None:
                member.kill()
