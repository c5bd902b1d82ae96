# SPDX-License-Identifier: Apache-2.0
"""How much smaller `"dtype": "bf16"` makes objects of LMCache that hold real models' KV, through the plug-in
(cairn.lmcache) and a daemon. Every object is read back and compared.

    build/venv/bin/python client/examples/evaluate/dump.py /tmp/dump      # or tests/quality/dump.py, of another model
    build/venv/bin/python tests/bench/lmcache_objects.py /tmp/dump/0 [DUMP …] [--bin-dir DIR] [--json FILE]

A dump is a folder that `cairn.evaluate` reads. Objects have the KV of 256 tokens in the orders of engines:
LMCache's KV_2LTD, [K and V, layers, tokens, heads x channels]; a row of vLLM's own offloading, blocks of 16 tokens
with K and V of a head side by side. The goal is 1.4. `fp16` shows what a wrong type costs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import select
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from arrays import ROOT, import_cairn

CHUNK, BLOCK = 256, 16  # tokens
GOAL = 1.4
DTYPES = ("bf16", "fp16")
WAIT_MS_MAX = 60_000


def objects_of(dump: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Each order's name, with the bytes of an object: [layers, heads, tokens, dim] of K and V in that order."""
    layers = sorted(dump.k)
    for first in range(0, dump.token_count - CHUNK + 1, CHUNK):
        k, v = (np.stack([plane[i][:, first : first + CHUNK] for i in layers]) for plane in (dump.k, dump.v))
        count, heads, _, dim = k.shape
        both = np.stack([k, v])  # [2, layers, heads, tokens, dim]
        yield "LMCache, KV_2LTD", both.transpose(0, 1, 3, 2, 4)
        blocks = both.reshape(2, count, heads, CHUNK // BLOCK, BLOCK, dim)
        yield "vLLM's offloading, LBHNC", blocks.transpose(1, 3, 2, 4, 0, 5)


class Store:
    """The plug-in, as LMCache's adapter calls it."""

    def __init__(self, control: str, dtype: str, revision: str) -> None:
        from cairn.lmcache import CairnL2

        settings = {"control": control, "weights_revision": revision, "dtype": dtype, "timeout": 30.0}
        self._plugin = CairnL2(**settings)
        self._poll = select.poll()
        self._poll.register(self._plugin.event_fd(), select.POLLIN)

    def check(self, objects: list[bytes]) -> float:
        """Stores the objects, reads them back, and returns their bytes over those that were kept."""
        keys = [f"model@0@0@{i:064x}" for i in range(len(objects))]
        self._wait(self._plugin.submit_batch_set(keys, [memoryview(bytearray(one)) for one in objects]))
        found = [bytearray(len(one)) for one in objects]
        self._wait(self._plugin.submit_batch_get(keys, [memoryview(one) for one in found]))
        if [bytes(one) for one in found] != objects:
            raise SystemExit("an object came back with other bytes")
        elements = self._plugin._elements
        return float(elements._bytes / elements._kept)

    def _wait(self, task: int) -> None:
        while True:
            if not self._poll.poll(WAIT_MS_MAX):
                raise SystemExit("a task of the plug-in does not end")
            for number, is_good, error, results in self._plugin.drain_completions():
                if not is_good or not all(results or [True]):
                    raise SystemExit(f"a task failed: {error}")
                if number == task:
                    return

    def close(self) -> None:
        self._plugin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=pathlib.Path, metavar="DUMP")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    _, start = import_cairn(arguments.bin_dir)
    from cairn.evaluate.dump import read_dump

    rows = []
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as name:
        folder = pathlib.Path(name) / "local"
        folder.mkdir(mode=0o700)
        daemon = start(arguments.bin_dir, "local", folder, host_bytes="1GiB")
        try:
            for path in arguments.dumps:
                orders: dict[str, list[bytes]] = {}
                for order, array in objects_of(read_dump(path)):
                    orders.setdefault(order, []).append(np.ascontiguousarray(array).tobytes())
                if not orders:
                    raise SystemExit(f"{path} has fewer than {CHUNK} tokens")
                for order, objects in orders.items():
                    row: dict[str, Any] = {"name": f"{path}, {order}", "objects": len(objects), "bytes": len(objects[0])}
                    for dtype in DTYPES:
                        store = Store(daemon.control, dtype, row["name"])
                        row[dtype] = store.check(objects)
                        store.close()
                    rows.append(row)
        finally:
            daemon.stop()
    print(f"bytes of objects over bytes kept, goal {GOAL} with their own type")
    print(f"{'dump and order':60} {'objects':>8} {'MiB':>6}" + "".join(f" {dtype:>6}" for dtype in DTYPES))
    for row in rows:
        figures = "".join(f" {row[dtype]:6.3f}" for dtype in DTYPES)
        print(f"{row['name'][-60:]:60} {row['objects']:8} {row['bytes'] / 2**20:6.1f}{figures}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"title": "lmcache_objects.py", "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
