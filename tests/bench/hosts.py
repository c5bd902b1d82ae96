# SPDX-License-Identifier: Apache-2.0
"""What it costs to read a block from another member of the cluster, over TLS on the loopback interface.

    python tests/bench/hosts.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

Blocks are put into member a. A client of member b matches them, and gets them for the first time, which fetches them. Beside
it, a client gets the same blocks straight from a over TLS. Then a daemon of a cluster is compared with one that is alone.
Then, in a cluster of three, the CPU time of idle members is read; and in clusters of three and of six, that of the threads of
a member which announce the blocks that are put to it, by that of all its threads: as fast as puts go, and with 50 of them a
second. Medians of the rounds are printed.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from arrays import DIM, HEADS, LAYER_BYTES, TOKENS, import_cairn, parse_arguments
from tls import Ca, Daemon

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from ports import free_port  # noqa: E402

AT_ONCE = 16
HOST_BYTES = "1GiB"  # of which a tenant may lease a quarter
GOALS = {
    "get_1mib_ratio": 0.8,
    "get_4mib_ratio": 0.8,
    "match_p50_ms": 1.5,
    "match_p99_ms": 5,
    "local_ratio": 1.01,
    "idle_percent": 0.3,
    "announce_3_percent": 1,
    "announce_6_percent": 1,
}
ANNOUNCING = ("announcer", "grpc", "event_engine", "default-executo", "resolver-executo", "timer_manager")  # begins of names
IS_AT_LEAST = ("get_1mib_ratio", "get_4mib_ratio")
TURN = itertools.count()


class Blocks:
    """A space for blocks of some MiB, and the arrays of AT_ONCE of them."""

    def __init__(self, cairn: Any, client: Any, mib: int) -> None:
        self._cairn, layers = cairn, (mib << 20) // LAYER_BYTES
        group = cairn.KvGroup(layers, HEADS, DIM)
        self.space = client.open_space(f"hosts-{mib}", "r", [group], tokens_per_block=TOKENS, recipe="raw")
        shape = (AT_ONCE, 2, layers, HEADS, TOKENS, DIM)
        self.kv = np.random.default_rng(1).integers(0, 1 << 14, shape).astype(np.uint16)

    def keys(self, turn: int) -> list[bytes]:
        return self.space.keys(range(turn * 100_000, turn * 100_000 + AT_ONCE * TOKENS))

    def put(self, keys: list[bytes]) -> None:
        parents = [None, *keys[:-1]]
        puts = [
            self._cairn.Put(key, k, v, parent=parent, first_position=i * TOKENS)
            for i, (key, parent, (k, v)) in enumerate(zip(keys, parents, self.kv, strict=True))
        ]
        assert all(one.error is None for one in self.space.put_batch(puts, timeout=30))

    def get(self, keys: list[bytes]) -> float:
        target = np.empty_like(self.kv)
        gets = [self._cairn.Get(key, k, v) for key, (k, v) in zip(keys, target, strict=True)]
        begin = time.perf_counter()
        got = self.space.get_batch(gets, timeout=30)
        seconds = time.perf_counter() - begin
        assert all(bool(one) for one in got) and np.array_equal(target, self.kv)
        return seconds


def await_joined(bin_dir: pathlib.Path, daemon: Daemon, count: int) -> None:
    deadline = time.monotonic() + 60
    command = [str(bin_dir / "cairnctl"), "members", "--control", daemon.found["control"]]
    while subprocess.run(command, capture_output=True, text=True).stdout.split().count("joined") < count:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def start_members(
    bin_dir: pathlib.Path, folder: pathlib.Path, names: str, host_bytes: str, with_port: str = "", match_ms: int = 500
) -> tuple[dict[str, Daemon], dict[str, str]]:
    """Each letter of `names` is a member. Those of `with_port` have a TCP port for clients, the others a unix socket."""
    folder.mkdir()
    ca = Ca(folder)
    uses = "serverAuth,clientAuth"
    san = "URI:spiffe://bench.example/{},DNS:localhost,IP:127.0.0.1"
    pairs = {name: ca.issue(name, san.format(name), use=uses) for name in (*names, "engine")}
    rules = [f'{{uid: {os.getuid()}, tenants: ["*"]}}', '{uri: "spiffe://bench.example/engine", tenants: ["*"]}']
    rules += [f'{{uri: "spiffe://bench.example/{name}", peer: true, tenants: ["*"]}}' for name in names]
    (folder / "policy.yaml").write_text(f"version: 1\nidentities: [{', '.join(rules)}]\n")
    ports = {name: free_port() for name in names}
    (folder / "members").write_text("".join(f"{name}=127.0.0.1:{port}\n" for name, port in ports.items()))
    daemons = {}
    for name in names:
        flags = ["--members", f"file:{folder / 'members'}", "--member-name", name]
        flags += ["--peer", f"127.0.0.1:{ports[name]}", "--stream", "127.0.0.1:0", "--peer-match-ms", match_ms]
        flags += ["--tls-cert", pairs[name][0], "--tls-key", pairs[name][1], "--tls-ca", ca.pem]
        flags += ["--policy", folder / "policy.yaml"]
        control = "127.0.0.1:0" if name in with_port else f"unix:{folder / name}.control"
        daemons[name] = Daemon(bin_dir, folder / name, *flags, control=control, host_bytes=host_bytes)
    for name in set(names) - set(with_port):
        await_joined(bin_dir, daemons[name], len(names))
    tls = {"tls_ca": str(ca.pem), "tls_cert": pairs["engine"][0], "tls_key": pairs["engine"][1]}
    return daemons, tls


def measure_reads(cairn: Any, a: Any, b: Any, rounds: int, quick: bool) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for mib in (1, 4):
        here, there = Blocks(cairn, b, mib), Blocks(cairn, a, mib)
        for turn in range(rounds + 1):
            keys = there.keys(next(TURN))
            there.put(keys)
            with here.space.match(keys, wait=10, timeout=20) as match:
                assert match.token_count == AT_ONCE * TOKENS, (mib, turn, match.token_count)
                through = here.get(keys)
            straight = there.get(keys)
            for space in (here.space, there.space):
                space.delete(keys, timeout=20)
            if turn > 0:  # the first one opens sessions
                found.setdefault(f"get_{mib}mib_ratio", []).append(straight / through)
                gigabytes = AT_ONCE * mib / 1024
                found.setdefault(f"get_{mib}mib_gib_per_s", []).append(gigabytes / through)
    there = Blocks(cairn, a, 1)
    keys = there.keys(next(TURN))
    there.put(keys)
    here = Blocks(cairn, b, 1)
    times = []
    for _ in range(20 if quick else 500):
        begin = time.perf_counter()
        assert here.space.match(keys, lease=False, timeout=20).token_count == AT_ONCE * TOKENS
        times.append(1e3 * (time.perf_counter() - begin))
    times.sort()
    found["match_p50_ms"], found["match_p99_ms"] = [times[len(times) // 2]], [times[len(times) * 99 // 100]]
    return found


def measure_local(cairn: Any, alone: Any, member: Any, rounds: int) -> list[float]:
    """Time of a put, a get and a match with a cluster, by the time without."""
    both = [Blocks(cairn, client, 1) for client in (alone, member)]
    ratios = []
    for turn in range(10 * rounds + 2):
        seconds = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            blocks = both[which]
            keys = blocks.keys(next(TURN))
            begin = time.perf_counter()
            blocks.put(keys)
            assert blocks.space.match(keys, lease=False, timeout=20).token_count > 0
            seconds[which] = time.perf_counter() - begin + blocks.get(keys)
            blocks.space.delete(keys, timeout=20)
        if turn >= 2:
            ratios.append(seconds[1] / seconds[0])
    return ratios


def measure_idle(bin_dir: pathlib.Path, folder: pathlib.Path, seconds: float) -> dict[str, list[float]]:
    """CPU time of each of three members, and of a daemon without a cluster."""
    daemons, _ = start_members(bin_dir, folder, "abc", "64MiB")
    daemons["alone"] = Daemon(bin_dir, folder / "alone", control=f"unix:{folder / 'alone.control'}", host_bytes="64MiB")
    time.sleep(seconds / 4)
    before = {name: daemon.thread_seconds() for name, daemon in daemons.items()}
    time.sleep(seconds)
    used = {name: daemon.thread_seconds() - before[name] for name, daemon in daemons.items()}
    for name, threads in used.items():
        most = ", ".join(f"{thread} {100 * one / seconds:.3f}" for thread, one in threads.most_common(6))
        print(f"idle, {name}: {100 * threads.total() / seconds:.3f} % of a core; {most}")
    for daemon in daemons.values():
        daemon.close()
    percent = {name: 100 * threads.total() / seconds for name, threads in used.items()}
    return {"idle_percent": [percent[name] for name in "abc"], "idle_alone_percent": [percent["alone"]]}


def put_for(blocks: Blocks, daemon: Daemon, seconds: float, pause: float) -> tuple[int, Any]:
    """Puts batches for so long, each after a pause. Returns the number of puts, and the CPU time by threads."""
    before, puts, end = daemon.thread_seconds(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        blocks.put(blocks.keys(next(TURN)))
        puts += AT_ONCE
        time.sleep(pause)
    return puts, daemon.thread_seconds() - before


def measure_announcing(
    cairn: Any, bin_dir: pathlib.Path, folder: pathlib.Path, names: str, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Puts of 1 MiB into a full member. Its announcing takes what threads of gRPC and the announcer take."""
    daemons, _ = start_members(bin_dir, folder, names, "256MiB")
    member = daemons["b"]
    client = cairn.connect(member.found["control"], timeout=20.0)
    blocks = Blocks(cairn, client, 1)
    put_for(blocks, member, seconds, 0)
    time.sleep(seconds / 2)
    before = member.thread_seconds()
    time.sleep(seconds)
    idle = sum_announcing(member.thread_seconds() - before)
    found: dict[str, list[float]] = {}
    for pace, pause in (("", 0.0), ("_slow", 0.3)):
        name = f"announce_{len(names)}{pace}"
        for _ in range(rounds):
            puts, used = put_for(blocks, member, seconds, pause)
            time.sleep(0.5)
            announcing = max(sum_announcing(used) - idle, 0)
            found.setdefault(f"{name}_percent", []).append(100 * announcing / used.total())
            found.setdefault(f"{name}_ms_a_second", []).append(1e3 * announcing / seconds)
            found.setdefault(f"{name}_puts_a_second", []).append(puts / seconds)
            found.setdefault(f"{name}_put_cpu_us", []).append(1e6 * used.total() / puts)
    client.close()
    for daemon in daemons.values():
        daemon.close()
    return found


def sum_announcing(threads: Any) -> float:
    return sum(seconds for name, seconds in threads.items() if name.startswith(ANNOUNCING))


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    cairn, _ = import_cairn(arguments.bin_dir)
    load_before = os.getloadavg()[0]
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory(prefix="cairn-hosts-bench-") as name:
        folder = pathlib.Path(name)
        daemons, tls = start_members(arguments.bin_dir, folder / "two", "ab", HOST_BYTES, with_port="a")
        policy = ["--policy", folder / "two" / "policy.yaml"]
        own = f"unix:{folder / 'c'}"
        alone = Daemon(arguments.bin_dir, folder / "alone", *policy, control=own, host_bytes=HOST_BYTES)
        a = cairn.connect(daemons["a"].found["control"], transports="stream", timeout=20.0, **tls)
        b = cairn.connect(daemons["b"].found["control"], timeout=20.0)
        one = cairn.connect(alone.found["control"], timeout=20.0)
        found = measure_reads(cairn, a, b, rounds, arguments.quick)
        found["local_ratio"] = measure_local(cairn, one, b, rounds)
        for client in (a, b, one):
            client.close()
        for daemon in (*daemons.values(), alone):
            daemon.close()
        found |= measure_idle(arguments.bin_dir, folder / "three", 2 if arguments.quick else 40)
        for names in ("abc", "abcdef"):
            seconds = 1 if arguments.quick else 5
            found |= measure_announcing(cairn, arguments.bin_dir, folder / names, names, rounds, seconds)
    figures = {name: statistics.median(values) for name, values in found.items()}
    for name, value in figures.items():
        goal = GOALS.get(name)
        is_met = goal is not None and (value >= goal if name in IS_AT_LEAST else value <= goal)
        print(f"{name:20} {value:9.3f}" + ("" if goal is None else f"  goal {goal} {'met' if is_met else 'MISSED'}"))
    print(f"load average: {load_before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
