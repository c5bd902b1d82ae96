# SPDX-License-Identifier: Apache-2.0
"""Where the time of one put and of one get goes in Python: before the call into the SDK's library, in
it, and after it, in microseconds. One block of 1 or 4 MiB at a time, over `local`, recipe raw.

    python tests/bench/steps.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

tests/bench/steps_bench.cc has the steps inside the library and the daemon.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from arrays import BATCH, LAYER_BYTES, SIZES_MIB, HEADS, DIM, TOKENS, TIMEOUT, Block, import_cairn, parse_arguments, total_bytes

STEPS = ("Python: before the call", "in the library", "Python: after the call")


class Timed:
    """A function of the library that notes when it was entered and left."""

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call
        self.entered = self.left = 0.0

    def __call__(self, *arguments: Any) -> int:
        self.entered = time.perf_counter()
        code = self._call(*arguments)
        self.left = time.perf_counter()
        return code


def one_round(space: Any, calls: dict[str, Timed], mib: int, count: int, blocks: tuple[list[Block], list[Block]]) -> dict[str, list[float]]:
    keys = [space.opaque_key(f"{i}".encode()) for i in range(count)]
    sums = {verb: [0.0] * len(STEPS) for verb in calls}
    for verb, run, arrays in (("put", space.put, blocks[0]), ("get", space.get, blocks[1])):
        call = calls[verb]
        for i, key in enumerate(keys):
            kv = arrays[i % BATCH].kv
            begun = time.perf_counter()
            done = run(key, kv[0], kv[1], timeout=TIMEOUT)
            ended = time.perf_counter()
            if not done:
                raise SystemExit(f"block {i} is a miss")
            for step, seconds in enumerate((call.entered - begun, call.left - call.entered, ended - call.left)):
                sums[verb][step] += seconds
    space.delete(keys, timeout=TIMEOUT)
    return {verb: [seconds * 1e6 / count for seconds in steps] for verb, steps in sums.items()}


def main() -> None:
    arguments = parse_arguments(__doc__)
    cairn, start = import_cairn(arguments.bin_dir)
    from cairn import _ffi

    library = _ffi.library()
    calls = {"put": Timed(library.cairn_put), "get": Timed(library.cairn_get)}
    library.cairn_put, library.cairn_get = calls["put"], calls["get"]
    rounds: dict[int, list[dict[str, list[float]]]] = {mib: [] for mib in SIZES_MIB}
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as name:
        folder = pathlib.Path(name) / "local"
        folder.mkdir(mode=0o700)
        daemon = start(arguments.bin_dir, "local", folder, host_bytes="512MiB")
        try:
            client = cairn.connect(daemon.control, data=daemon.data)
            spaces, blocks = {}, {}
            for mib in SIZES_MIB:
                group = cairn.KvGroup((mib << 20) // LAYER_BYTES, HEADS, DIM)
                spaces[mib] = client.open_space(f"steps-{mib}", "r", [group], tokens_per_block=TOKENS, recipe="raw")
                blocks[mib] = ([Block.of(mib, i) for i in range(BATCH)], [Block.of(mib, i) for i in range(BATCH)])
            for number in range(arguments.rounds + 1):
                for mib in SIZES_MIB:
                    count = total_bytes(arguments.quick) // (mib << 20)
                    figures = one_round(spaces[mib], calls, mib, count, blocks[mib])
                    if number > 0:  # the first warms up
                        rounds[mib].append(figures)
        finally:
            daemon.stop()
    print(f"steps of one call: Python SDK over local, recipe raw, microseconds, medians of {arguments.rounds} rounds")
    rows = []
    for verb in calls:
        print(f"{verb:36}" + "".join(f" {f'{mib} MiB':>12}" for mib in SIZES_MIB))
        medians = {mib: [statistics.median(figures[verb][i] for figures in rounds[mib]) for i in range(len(STEPS))] for mib in SIZES_MIB}
        for i, step in enumerate(STEPS):
            print(f"  {step:34}" + "".join(f" {medians[mib][i]:12.0f}" for mib in SIZES_MIB))
        rows += [{"name": f"{verb} {mib} MiB", **dict(zip(STEPS, medians[mib], strict=True))} for mib in SIZES_MIB]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"title": "steps.py", "rounds": arguments.rounds, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
