# SPDX-License-Identifier: Apache-2.0
"""The demo on several hosts: prefill on one, decode on another, and a third that takes over.

Starts daemons a and b as members of one cluster, each in a network namespace of its own, with TLS
between them. A prefill worker beside a computes the KV of a prompt. A decode worker beside b waits
for it, and b reads it from a. Then a is killed, c joins, and a decode worker beside c reads from b
what b has kept. Exits with 1 if `raw` or `exact` is not bit-identical to no cache.

    python client/examples/hosts/run.py [--bin-dir DIR] [--quick]

Needs what the demo needs, and openssl. Without root or `ip`, all daemons are on the loopback
interface instead.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DEMO = HERE.parent / "demo"
sys.path.insert(0, str(DEMO))

from run import check, print_continuations, worker_environment  # noqa: E402

START_SECONDS_MAX = 30
WORKER_SECONDS_MAX = 600
PEER_PORT, STREAM_PORT = 50160, 50152
HOSTS = ("a", "b", "c")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, for tests")
    return parser.parse_args()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Network:
    """A bridge, and a namespace for each host; or the loopback interface, if that cannot be had."""

    def __init__(self) -> None:
        self._prefix = f"cairn-{os.getpid()}"
        self._made: list[str] = []
        self.reason = ""
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.reason = str(getattr(error, "stderr", "") or error).strip()
            self.close()

    def _add(self, name: str) -> str:
        run("ip", "netns", "add", name)
        self._made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _make(self) -> None:
        hub = self._add(f"{self._prefix}-hub")
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for host in HOSTS:
            name = self._add(self._name(host))
            peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", hub, "link", "add", f"to-{host}", *peer)
            run("ip", "-n", hub, "link", "set", f"to-{host}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{self._address(host)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def _name(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _address(self, host: str) -> str:
        return f"10.77.0.{HOSTS.index(host) + 1}"

    def address(self, host: str, port: int) -> str:
        if self._made:
            return f"{self._address(host)}:{port}"
        return f"127.0.0.{HOSTS.index(host) + 1}:{port}"

    def command(self, host: str) -> list[str]:
        return ["ip", "netns", "exec", self._name(host)] if self._made else []

    def close(self) -> None:
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        self._made.clear()


def make_certificates(folder: pathlib.Path) -> None:
    """A CA, and for each host a certificate with its name as a URI; then the policy."""
    ca = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"), "-nodes"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    run("openssl", "req", "-x509", *key, *ca, "-days", "2", "-subj", "/CN=demo CA")
    policy = ["version: 1", "identities:", f'  - {{uid: {os.getuid()}, tenants: ["*"]}}']
    for host in HOSTS:
        uri = f"spiffe://demo.example/{host}"
        request, extensions = folder / f"{host}.csr", folder / f"{host}.ext"
        own = ["-keyout", str(folder / f"{host}.key"), "-out", str(request), "-nodes"]
        run("openssl", "req", *key, *own, "-subj", f"/CN={host}")
        extensions.write_text(f"subjectAltName=URI:{uri}\n")
        signed = ["-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key")]
        out = ["-extfile", str(extensions), "-out", str(folder / f"{host}.pem")]
        run("openssl", "x509", "-req", "-in", str(request), *signed, *out, "-days", "2")
        policy.append(f'  - {{uri: "{uri}", peer: true, tenants: ["*"]}}')
    (folder / "policy.yaml").write_text("\n".join(policy) + "\n")


class Member:
    """A daemon of the cluster. Workers reach it by the sockets `control` and `data`."""

    def __init__(
        self, host: str, network: Network, folder: pathlib.Path, bin_dir: pathlib.Path
    ) -> None:
        self.host, self.bin_dir = host, bin_dir
        self.control = f"unix:{folder / host}.control"
        self.data = f"unix:{folder / host}.data"
        self._log_path = folder / f"{host}.log"
        peer, stream = network.address(host, PEER_PORT), network.address(host, STREAM_PORT)
        command = [*network.command(host), str(bin_dir / "cairnd")]
        command += ["--control", self.control, "--socket", f"{folder / host}.data"]
        command += ["--admin", f"unix:{folder / host}.admin", "--http", "off", "--host-bytes", "1GiB"]
        command += ["--cluster", "demo", "--members", f"file:{folder / 'members'}"]
        command += ["--member-name", host, "--peer", peer, "--stream", stream]
        command += ["--peer-match-ms", "2000"]  # for machines that do much else
        command += ["--tls-cert", str(folder / f"{host}.pem"), "--tls-key", str(folder / f"{host}.key")]
        command += ["--tls-ca", str(folder / "ca.pem"), "--policy", str(folder / "policy.yaml")]
        self._log = open(self._log_path, "w", encoding="utf-8")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._is_ready.wait(START_SECONDS_MAX):
            self.kill()
            raise SystemExit(f"cairnd did not start:\n{self._log_path.read_text()}")

    def _read(self) -> None:
        for line in self.process.stdout:
            self._log.write(line)
            self._log.flush()
            if line.startswith("cairnd ready "):
                self._is_ready.set()

    def members(self) -> str:
        """What cairnctl says of the cluster."""
        command = [str(self.bin_dir / "cairnctl"), "members", "--control", self.control]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def wait_for_members(self, count: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.members().count(" joined ") < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.host} sees no {count} members:\n{self.members()}")
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._log.close()


def start_worker(
    name: str, member: Member, folder: pathlib.Path, arguments: argparse.Namespace, *flags: str
) -> tuple[subprocess.Popen, pathlib.Path]:
    result = folder / f"{name}-{member.host}.json"
    command = [sys.executable, str(DEMO / f"worker_{name}.py"), "--control", member.control]
    command += ["--data", member.data, "--result", str(result)]
    command += ["--quick"] if arguments.quick else []
    command += flags
    return subprocess.Popen(command, env=worker_environment(arguments.bin_dir)), result


def await_workers(workers: list[tuple[subprocess.Popen, pathlib.Path]]) -> list[dict]:
    try:
        deadline = time.monotonic() + WORKER_SECONDS_MAX
        for worker, _ in workers:
            if worker.wait(max(deadline - time.monotonic(), 0.1)) != 0:
                raise SystemExit(f"a worker failed with {worker.returncode}")
    finally:
        for worker, _ in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    return [json.loads(result.read_text()) for _, result in workers]


def print_runs(where: str, runs: dict[str, dict]) -> None:
    computed = runs["no cache"]["first_token_seconds"]
    print(f"\n{where} (first token without a cache: {computed:.2f} s)\n")
    print("  KV from     tier  image bytes  prefix ms  first token s  KL (nats)")
    for name, one in runs.items():
        if name == "no cache":
            continue
        print(
            f"  {name:10} {','.join(one['tiers']):>5} {one['image_bytes']:12,}"
            f" {one['prefix_seconds'] * 1e3:10.0f} {one['first_token_seconds']:14.2f}"
            f"  {one['divergence']:9.5f}"
        )


def check_tier(runs: dict[str, dict]) -> None:
    for name, one in runs.items():
        if name != "no cache" and one["tiers"] != ["peer"]:
            raise SystemExit(f"FAILED: {name} came from {one['tiers']} and not from another host")


def main() -> None:
    arguments = parse_arguments()
    begin = time.monotonic()
    network = Network()
    members: list[Member] = []
    try:
        with tempfile.TemporaryDirectory(prefix="cairn-hosts-") as name:
            folder = pathlib.Path(name)
            make_certificates(folder)
            listed = "".join(f"{host}={network.address(host, PEER_PORT)}\n" for host in HOSTS)
            (folder / "members").write_text(listed)
            print(
                "three hosts: each is a network namespace"
                if not network.reason
                else f"no namespaces here ({network.reason}): all daemons on the loopback interface",
                flush=True,
            )
            for host in HOSTS[:2]:
                members.append(Member(host, network, folder, arguments.bin_dir))
            a, b = members
            b.wait_for_members(2)
            print(f"{b.members()}\nprefill beside a, decode beside b\n", flush=True)
            _, decoded = await_workers(
                [start_worker(worker, member, folder, arguments)
                 for worker, member in (("prefill", a), ("decode", b))]
            )
            check_tier(decoded["runs"])
            check(decoded["runs"])
            print_runs("decode beside b, whose daemon read from a", decoded["runs"])
            a.kill()
            c = Member("c", network, folder, arguments.bin_dir)
            members.append(c)
            c.wait_for_members(2)
            print("\na was killed, and c has joined\n", flush=True)
            (taken_over,) = await_workers(
                [start_worker("decode", c, folder, arguments, "--restarted")]
            )
            check_tier(taken_over["runs"])
            check(taken_over["runs"])
            print_runs("decode beside c, whose daemon read from b", taken_over["runs"])
            print_continuations(decoded["prompt_tail"], decoded["runs"])
    finally:
        for member in members:
            if member.process.poll() is None:
                member.kill()
        network.close()
    print(f"\nNext: docs/install/members.md.\n\n{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
