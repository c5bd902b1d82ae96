# SPDX-License-Identifier: Apache-2.0
"""Compares second levels of LMCache by LMCache's own `lmcache bench l2`: Cairn's native plug-in,
Redis, files, and a dictionary in the process, which shows what a copy and nothing else costs.

    .ci/peers tests/bench/lmcache_l2.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

The levels take turns; each turn is a run of that program, which checks what it loads, and then the
level is emptied. The figure of a turn is the median of the rounds that the program measures in it.
Rates are also quoted over Redis's of the same round. `make bench-peers` runs this.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import arrays
import peers

HERE = pathlib.Path(__file__).resolve().parent
SIZES = ((1, 64), (4, 16))  # MiB of an object, how many at once
INNER_ROUNDS = 5
STORE_GIB = 2
RUN_SECONDS_MAX = 300
GOALS = {"Store": 1.2, "Load": 2.5}  # of Cairn, over Redis


@dataclass
class Level:
    """spec: what --l2-adapter takes. empty: forgets what was stored. rates: MiB/s of each round, by
    the MiB of an object and the operation."""

    name: str
    spec: dict[str, Any]
    empty: Callable[[], None] = lambda: None
    rates: dict[tuple[int, str], list[float]] = field(default_factory=dict)


def plugin(module: str, name: str, **parameters: Any) -> dict[str, Any]:
    return {
        "type": "native_plugin",
        "module_path": module,
        "class_name": name,
        "adapter_params": parameters,
    }


def cairn_level(stack: contextlib.ExitStack, bin_dir: pathlib.Path, folder: pathlib.Path) -> Level:
    _, start = arrays.import_cairn(bin_dir)
    daemon = stack.enter_context(start(bin_dir, "local", folder, f"{STORE_GIB}GiB"))

    def cairnctl(*words: str) -> str:
        command = [str(bin_dir / "cairnctl"), *words, "--control", daemon.control]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def empty() -> None:
        for space in json.loads(cairnctl("spaces", "--json")):
            cairnctl("delete", "--all", "--space", str(space["space_id"]))

    spec = plugin("cairn.lmcache", "CairnL2", control=daemon.control, weights_revision="bench")
    return Level("Cairn", spec, empty)


def redis_level(stack: contextlib.ExitStack, folder: pathlib.Path) -> Level:
    redis = peers.start_redis(stack, folder)
    spec = {"type": "resp", "host": "127.0.0.1", "port": peers.REDIS_PORT}
    return Level("Redis", spec, lambda: redis.clear(()))


def files_level(folder: pathlib.Path) -> Level:
    def empty() -> None:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return Level("files", {"type": "fs", "base_path": str(folder)}, empty)


def measure(level: Level, mib: int, at_once: int, folder: pathlib.Path) -> dict[str, float]:
    """Runs the program once. Returns MiB/s of each operation. Exits if any key failed."""
    path = folder / "figures.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, peers.program("lmcache"), "bench", "l2", "--num-keys", str(at_once)]
    command += ["--l2-adapter", json.dumps(level.spec), "--data-size-kb", str(mib << 10)]
    command += ["--rounds", str(INNER_ROUNDS), "--warmup-rounds", "1", "--no-skip-verify"]
    command += ["--lookup-max-hit-rate", "1", "--format", "json", "--output", str(path)]
    paths = os.pathsep.join([str(arrays.ROOT / "client" / "python"), str(HERE)])
    environment = dict(os.environ, PYTHONPATH=paths, LMCACHE_TRACK_USAGE="false")
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX
    )
    if ran.returncode != 0:
        said = (ran.stdout + ran.stderr)[-4000:]
        raise SystemExit(f"{level.name}: lmcache bench l2 failed:\n{said}")
    rates = {}
    for part in json.loads(path.read_text(encoding="utf-8"))["metrics"].values():
        if part.get("operation") not in ("Store", "Lookup", "Load"):
            continue
        if part["total_success"] != part["total_keys"] or part["rounds"] != INNER_ROUNDS:
            raise SystemExit(f"{level.name}: not all keys went well: {part}")
        if part["operation"] in GOALS:
            rates[part["operation"]] = at_once * mib / part["duration_p50_ms"] * 1e3
    level.empty()
    return rates


def run(levels: list[Level], rounds: int, folder: pathlib.Path) -> None:
    for number in range(rounds):
        turn = number % len(levels)
        for mib, at_once in SIZES:
            for level in levels[turn:] + levels[:turn]:
                print(f"round {number}: {level.name}, {mib} MiB", file=sys.stderr, flush=True)
                for verb, rate in measure(level, mib, at_once, folder).items():
                    level.rates.setdefault((mib, verb), []).append(rate)


def report(levels: list[Level], rounds: int, path: pathlib.Path | None) -> None:
    redis = next(level for level in levels if level.name == "Redis")
    print(f"lmcache bench l2, medians of {rounds} alternated rounds\n")
    print("| second level | store MiB/s | over Redis | load MiB/s | over Redis |")
    print("| --- | --- | --- | --- | --- |")
    rows, missed = [], []
    for mib, at_once in SIZES:
        for level in levels:
            row = {"name": f"{level.name}, {at_once} of {mib} MiB"}
            for verb, goal in GOALS.items():
                rates = level.rates[(mib, verb)]
                ratios = [a / b for a, b in zip(rates, redis.rates[(mib, verb)], strict=True)]
                row[f"{verb.lower()}_mib_per_s"] = statistics.median(rates)
                row[f"{verb.lower()}_over_redis"] = over = statistics.median(ratios)
                if level.name == "Cairn" and over < goal:
                    missed.append(f"{verb} of {mib} MiB: {over:.2f} x, not {goal}")
            name, *figures = row.values()
            print("| {} | {:.0f} | {:.2f} | {:.0f} | {:.2f} |".format(name, *figures))
            rows.append(row)
    goals = ", ".join(f"{verb} {goal}" for verb, goal in GOALS.items())
    print(f"\ngoal of Cairn's over Redis's: {goals}: " + ("; ".join(missed) or "met"))
    if path is not None:
        path.write_text(json.dumps({"rounds": rounds, "cases": rows}, indent=1))


def main() -> None:
    arguments = arrays.parse_arguments(__doc__)
    rounds = 1 if arguments.quick else arguments.rounds
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cairn-l2-")))
        places = {name: folder / name for name in ("cairn", "redis", "files")}
        for place in places.values():
            place.mkdir(mode=0o700)
        levels = [
            cairn_level(stack, arguments.bin_dir, places["cairn"]),
            redis_level(stack, places["redis"]),
            files_level(places["files"]),
            Level("a dictionary in the process", plugin("lmcache_dict", "InProcess")),
        ]
        run(levels, rounds, folder)
    report(levels, rounds, arguments.json)


if __name__ == "__main__":
    main()
