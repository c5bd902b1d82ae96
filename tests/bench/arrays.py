# SPDX-License-Identifier: Apache-2.0
"""What a user of the Python SDK sees: KV arrays in, KV arrays out.

Over every transport, with the recipes raw, exact and cairn:2.3, blocks of 1 and 4 MiB, one at a time
and 16 at once; and what it costs in CPU time of the client and the daemon together. Rounds alternate
over all cases, each with a memcpy of the same arrays beside it; medians are printed.

    python tests/bench/arrays.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE] [--cpp]

tests/bench/arrays_bench.cc measures the same in C++, tests/bench/peers.py other stores. With --cpp,
a round of arrays_bench runs before each round, and Python's rates are printed over those of C++.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADS, DIM, TOKENS = 8, 64, 128
LAYER_BYTES = 2 * HEADS * TOKENS * DIM * 2  # K and V, bf16
BATCH = 16
SIZES_MIB = (1, 4)
MINE_SECONDS_MAX = 60
TIMEOUT = 30.0


@dataclass
class Block:
    """K and V as [layers, heads, tokens, dim]: two halves of one array, bits of bf16."""

    kv: np.ndarray

    @staticmethod
    def of(mib: int, seed: int) -> Block:
        shape = (2, (mib << 20) // LAYER_BYTES, HEADS, TOKENS, DIM)
        normal = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        return Block((normal.view(np.uint32) >> 16).astype(np.uint16))


class Store(Protocol):
    """What is measured. `put` and `get` move `len(names)` blocks at once and raise if one fails."""

    name: str
    pids: Sequence[int]
    is_lossless: bool
    batches: Sequence[int]  # how many at once it can do

    def put(self, names: Sequence[str], blocks: Sequence[Block]) -> None: ...
    def get(self, names: Sequence[str], blocks: Sequence[Block]) -> None: ...
    def clear(self, names: Sequence[str]) -> None: ...


@dataclass
class Case:
    store: Store
    mib: int
    at_once: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {"put": [], "get": []})
    ratios: dict[str, list[float]] = field(default_factory=lambda: {"put": [], "get": []})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"put": [], "get": []})

    @property
    def name(self) -> str:
        return f"{self.store.name} {self.mib} MiB, {self.at_once} at once"

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = {"name": self.name}
        for verb in ("put", "get"):
            figures[f"{verb}_gb_per_s"] = statistics.median(self.rates[verb])
            figures[f"{verb}_ratio"] = statistics.median(self.ratios[verb])
            figures[f"{verb}_cpu_s_per_gb"] = statistics.median(self.cpu[verb])
        return figures


def cpu_seconds(pids: Sequence[int]) -> float:
    """Of all threads of these processes and of this one, those that have ended left out."""
    total = 0
    for pid in (*pids, os.getpid()):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def run_round(case: Case, sources: list[Block], own: list[np.ndarray], total_bytes: int) -> None:
    targets = [Block(array) for array in own]  # a store may put memory of its own in their place
    count = total_bytes // (case.mib << 20)
    names = [f"{case.mib}-{i}" for i in range(count)]

    def each(call: Callable[[Sequence[str], Sequence[Block]], None], blocks: list[Block]) -> None:
        for first in range(0, count, case.at_once):
            some = names[first : first + case.at_once]
            call(some, [blocks[(first + i) % BATCH] for i in range(len(some))])

    def copy(names: Sequence[str], blocks: Sequence[Block]) -> None:
        for name, block in zip(names, blocks, strict=True):
            np.copyto(block.kv, sources[int(name.split("-")[1]) % BATCH].kv)

    def rate_of(call: Callable[[], None]) -> float:
        begin = time.perf_counter()
        call()
        return count * (case.mib << 20) / (time.perf_counter() - begin)

    memcpy = rate_of(lambda: each(copy, targets))
    for block in targets:
        block.kv.fill(0)
    for verb, call, blocks in (
        ("put", case.store.put, sources),
        ("get", case.store.get, targets),
    ):
        before = cpu_seconds(case.store.pids)
        rate = rate_of(lambda call=call, blocks=blocks: each(call, blocks))
        spent = cpu_seconds(case.store.pids) - before
        case.rates[verb].append(rate / 1e9)
        case.ratios[verb].append(rate / memcpy)
        case.cpu[verb].append(spent / (count * (case.mib << 20) / 1e9))
    last = (count - 1) % BATCH
    if case.store.is_lossless and not np.array_equal(targets[last].kv, sources[last].kv):
        raise SystemExit(f"{case.name}: what was got is not what was put")
    case.store.clear(names)


class InCpp:
    """The same cases through the C++ SDK: a process of its own for each round."""

    def __init__(self, bin_dir: pathlib.Path, is_quick: bool) -> None:
        self._command = [str(bin_dir / "cairn_arrays_bench"), "--rounds", "1"]
        self._command += ["--quick"] if is_quick else []
        self._rounds: list[dict[str, dict[str, float]]] = []

    def run(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [*self._command, "--json", file.name]
            subprocess.run(command, check=True, capture_output=True)
            rows = json.load(file)["cases"]
        # A client on the daemon's host maps its memory by default, and so does this script's.
        same = [row for row in rows if row["name"].startswith(("local mapped", "ucx"))]
        self._rounds.append({"cairn " + row["name"].replace(" mapped", ""): row for row in same})

    def report(self, cases: Sequence[Case]) -> None:
        print("\nPython over C++, medians of each round's ratio")
        for case in cases:
            line = f"{case.name:40}"
            for verb in ("put", "get"):
                rates = [one[case.name][f"{verb}_gb_per_s"] for one in self._rounds]
                pairs = zip(case.rates[verb], rates, strict=True)
                ratio = statistics.median(python / cpp for python, cpp in pairs)
                line += f"  {verb} {ratio:5.2f} ({statistics.median(rates):.2f} GB/s in C++)"
            print(line)


def run(
    stores: Sequence[Store],
    rounds: int,
    total_bytes: int,
    before: Callable[[], None] = lambda: None,
) -> list[Case]:
    """Every case once a round, after one that warms up; `before` runs before each that counts."""
    cases = [
        Case(store, mib, at_once)
        for store in stores
        for mib in SIZES_MIB
        for at_once in store.batches
    ]
    blocks = {
        mib: (
            [Block.of(mib, seed) for seed in range(BATCH)],
            [np.zeros_like(Block.of(mib, 0).kv) for _ in range(BATCH)],
        )
        for mib in SIZES_MIB
    }
    for number in range(rounds + 1):
        print(f"\rround {number} of {rounds} ", end="", file=sys.stderr, flush=True)
        if number > 0:
            before()
        for case in cases:
            run_round(case, *blocks[case.mib], total_bytes)
        if number == 0:
            for case in cases:
                for figures in (case.rates, case.ratios, case.cpu):
                    for values in figures.values():
                        values.clear()
    print("\r" + " " * 24 + "\r", end="", file=sys.stderr)
    return cases


def report(title: str, cases: list[Case], rounds: int, path: pathlib.Path | None) -> None:
    print(f"{title}, medians of {rounds} alternated rounds")
    print(f"{'':40} {'put':>26}   {'get':>26}")
    print(f"{'case':40}" + f" {'GB/s':>8} {'/memcpy':>8} {'CPU-s/GB':>8}  " * 2)
    rows = [case.figures() for case in cases]
    for row in rows:
        line = f"{row['name']:40}"
        for verb in ("put", "get"):
            line += f" {row[f'{verb}_gb_per_s']:8.2f} {row[f'{verb}_ratio']:8.3f}"
            line += f" {row[f'{verb}_cpu_s_per_gb']:8.2f}  "
        print(line)
    if path is not None:
        path.write_text(json.dumps({"title": title, "rounds": rounds, "cases": rows}, indent=1))


class Cairn:
    """A recipe of one daemon, through the Python SDK: a space for each size."""

    batches = (1, BATCH)

    def __init__(self, cairn: Any, client: Any, pid: int, transport: str, recipe: str) -> None:
        self.name = f"cairn {transport} {recipe}"
        self.pids = [pid]
        self.is_lossless = not recipe.startswith("cairn")
        self._cairn = cairn
        self._spaces = {}
        for mib in SIZES_MIB:
            group = cairn.KvGroup((mib << 20) // LAYER_BYTES, HEADS, DIM)
            space = client.open_space(
                f"arrays-{recipe}-{mib}", "r", [group], tokens_per_block=TOKENS, recipe=recipe
            )
            self._spaces[mib] = space
            if not self.is_lossless:
                self._await_profile(space, mib)

    def _await_profile(self, space: Any, mib: int) -> None:
        """The daemon mines a profile of the first blocks; what comes later is coded with it."""
        names = [f"{mib}-first-{i}" for i in range(BATCH)]
        self.put(names, [Block.of(mib, i) for i in range(BATCH)])
        deadline = time.monotonic() + MINE_SECONDS_MAX
        while space.current_profile(0) is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name}: no profile was mined in {MINE_SECONDS_MAX} s")
            time.sleep(0.1)
        self.clear(names)

    def _space_and_keys(self, names: Sequence[str]) -> tuple[Any, list[bytes]]:
        space = self._spaces[int(names[0].split("-")[0])]
        return space, [space.opaque_key(name.encode()) for name in names]

    def put(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        space, keys = self._space_and_keys(names)
        if len(keys) == 1:
            space.put(keys[0], blocks[0].kv[0], blocks[0].kv[1], timeout=TIMEOUT)
            return
        puts = [
            self._cairn.Put(key, block.kv[0], block.kv[1])
            for key, block in zip(keys, blocks, strict=True)
        ]
        for result in space.put_batch(puts, timeout=TIMEOUT):
            if result.error is not None:
                raise result.error

    def get(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        space, keys = self._space_and_keys(names)
        if len(keys) == 1:
            results = [space.get(keys[0], blocks[0].kv[0], blocks[0].kv[1], timeout=TIMEOUT)]
        else:
            gets = [
                self._cairn.Get(key, block.kv[0], block.kv[1])
                for key, block in zip(keys, blocks, strict=True)
            ]
            results = space.get_batch(gets, timeout=TIMEOUT)
        for name, result in zip(names, results, strict=True):
            if not result:
                raise SystemExit(f"{self.name}: block {name} is a miss: {result.error}")

    def clear(self, names: Sequence[str]) -> None:
        space, keys = self._space_and_keys(names)
        space.delete(keys, timeout=TIMEOUT)


def parse_arguments(description: str | None, *switches: tuple[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few bytes: shows that it runs")
    parser.add_argument("--json", type=pathlib.Path)
    for name, help_text in switches:
        parser.add_argument(name, action="store_true", help=help_text)
    return parser.parse_args()


def import_cairn(bin_dir: pathlib.Path) -> tuple[Any, Any]:
    """The package of this tree, and the class that starts a daemon of this build."""
    os.environ.setdefault("CAIRN_LIBRARY", str(bin_dir.resolve().parent / "lib" / "libcairn.so"))
    sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "client" / "examples" / "demo")]
    import cairn
    from daemon import Daemon

    return cairn, Daemon


def total_bytes(is_quick: bool) -> int:
    return (32 if is_quick else 256) << 20


def main() -> None:
    arguments = parse_arguments(__doc__, ("--cpp", "a round of the C++ SDK before each round"))
    in_cpp = InCpp(arguments.bin_dir, arguments.quick) if arguments.cpp else None
    cairn, start = import_cairn(arguments.bin_dir)
    stores, daemons = [], []
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as name:
        try:
            for transport in ("local", "ucx"):
                folder = pathlib.Path(name) / transport
                folder.mkdir(mode=0o700)
                daemon = start(arguments.bin_dir, transport, folder, host_bytes="2GiB")
                daemons.append(daemon)
                client = cairn.connect(daemon.control, data=daemon.data)
                for recipe in ("raw", "exact", "cairn:2.3"):
                    stores.append(Cairn(cairn, client, daemon.process.pid, transport, recipe))
            more = {"before": in_cpp.run} if in_cpp else {}
            cases = run(stores, arguments.rounds, total_bytes(arguments.quick), **more)
        finally:
            for daemon in daemons:
                daemon.stop()
    report("arrays: Python SDK", cases, arguments.rounds, arguments.json)
    if in_cpp:
        in_cpp.report(cases)


if __name__ == "__main__":
    main()
