# SPDX-License-Identifier: Apache-2.0
"""What the engine's own names of blocks cost a put: blocks of 1 MiB in batches of 16, over `local`, recipe
raw, without names, with a hash and its parent's of 32 bytes each, and with a watch that reads their events.

    python tests/bench/event_names.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

Each round puts all three, one batch of each after the other; medians of the ratios are printed, and the ratio of
the fastest tenth of all batches, which other work of the machine disturbs least. The goal: a named block takes at
most 1 % longer.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import tempfile
import threading
import time
from typing import Any

from arrays import BATCH, DIM, HEADS, LAYER_BYTES, TIMEOUT, TOKENS, import_cairn, parse_arguments, total_bytes

CASES = ("without names", "with names", "with names, watched")
HASH_BYTES = 32
LAYERS = (1 << 20) // LAYER_BYTES


class Watcher:
    """Reads the events of a space on a thread of its own."""

    def __init__(self, space: Any) -> None:
        self._watch = space.watch()
        self._is_over = threading.Event()
        self.named_count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            batch = self._watch.next(0.2)
            for event in () if batch is None else batch.events:
                self.named_count += len(event.engine_hash) == HASH_BYTES

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._watch.close()


def hash_of(number: int) -> bytes:
    return number.to_bytes(8, "little").ljust(HASH_BYTES, b"h")


class Case:
    def __init__(self, cairn: Any, client: Any, name: str) -> None:
        group = cairn.KvGroup(LAYERS, HEADS, DIM)
        self._cairn, self._is_named = cairn, name != CASES[0]
        self.space = client.open_space(name, "r", [group], tokens_per_block=TOKENS, recipe="raw")
        self.watcher = Watcher(self.space) if name == CASES[2] else None
        self._source = bytearray(self.space.source_bytes())
        self._next = 0
        self.seconds: list[float] = []  # of each batch

    def fast(self) -> float:
        """The mean of the fastest tenth of all batches."""
        return statistics.mean(sorted(self.seconds)[: max(1, len(self.seconds) // 10)])

    def batch(self) -> float:
        """Puts new blocks. Returns the seconds of the call."""
        numbers = range(self._next, self._next + BATCH)
        self._next += BATCH
        puts = [
            self._cairn.Put(
                self.space.opaque_key(f"{i}".encode()),
                source=self._source,
                names=self._cairn.Names(hash_of(i + 1), hash_of(i)) if self._is_named else None,
            )
            for i in numbers
        ]
        begun = time.perf_counter()
        results = self.space.put_batch(puts, timeout=TIMEOUT)
        seconds = time.perf_counter() - begun
        for result in results:
            if result.error is not None:
                raise result.error
        self.seconds.append(seconds)
        return seconds


def main() -> None:
    arguments = parse_arguments(__doc__)
    cairn, start = import_cairn(arguments.bin_dir)
    batches = max(2, total_bytes(arguments.quick) // (BATCH << 20))
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as name:
        folder = pathlib.Path(name) / "local"
        folder.mkdir(mode=0o700)
        daemon = start(arguments.bin_dir, "local", folder, host_bytes="512MiB")
        try:
            client = cairn.connect(daemon.control, data=daemon.data)
            cases = {case: Case(cairn, client, case) for case in CASES}
            for number in range(arguments.rounds + 1):
                seconds = dict.fromkeys(CASES, 0.0)
                for batch in range(batches):
                    for i in range(len(CASES)):  # none is always the first
                        case = CASES[(batch + i) % len(CASES)]
                        seconds[case] += cases[case].batch()
                if number > 0:  # the first warms up
                    rounds.append(seconds)
            watcher = cases[CASES[2]].watcher
            assert watcher is not None
            watcher.stop()
            if watcher.named_count == 0:
                raise SystemExit("no event had names")
        finally:
            daemon.stop()
    mib = batches * BATCH
    print(f"names of blocks: puts of 1 MiB, batches of {BATCH}, medians of {arguments.rounds} rounds of {mib} MiB")
    rows: list[dict[str, Any]] = []
    for case in CASES:
        rate = statistics.median(mib / 1024 / one[case] for one in rounds)
        ratio = statistics.median(one[case] / one[CASES[0]] for one in rounds)
        fast = cases[case].fast() / cases[CASES[0]].fast()
        rows.append({"name": case, "gib_per_second": rate, "time_ratio": ratio, "fastest_tenth": fast})
        print(f"  {case:20} {rate:8.2f} GiB/s {ratio:8.3f} of the time without names, fastest {fast:8.3f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"title": "event_names.py", "rounds": arguments.rounds, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
