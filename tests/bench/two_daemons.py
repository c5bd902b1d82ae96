#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a change of the daemon costs: requests in turn to daemons of two builds, through the client of the first.

Puts, gets and matches of blocks of three sizes, one to the one daemon and one to the other, a few milliseconds apart, so
that what the machine does meets both. Each round starts both daemons anew, since where memory lies makes a difference too;
the spread over rounds says how much. The ratio is time of the first by time of the second: below one, the first is faster.

usage: two_daemons.py --other-dir DIR [--bin-dir build/release/bin] [--rounds 7] [--quick] [--json FILE]
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

import arrays
import numpy as np

SIZES_KIB = (64, 1024, 4096)
AT_ONCE = {64: 32, 1024: 8, 4096: 4}
VERBS = ("put", "get", "match")
TIMEOUT = 30.0


class One:
    """A daemon, and blocks of each size in it."""

    def __init__(self, cairn, daemon):
        self.cairn, self.pid = cairn, daemon.process.pid
        self.client = cairn.connect(daemon.control, data=daemon.data)
        self.spaces, self.keys, self.kv, self.turn = {}, {}, {}, 0
        for kib in SIZES_KIB:
            layers = max(1, (kib << 10) // arrays.LAYER_BYTES)
            tokens = arrays.TOKENS * (kib << 10) // (layers * arrays.LAYER_BYTES)
            group = cairn.KvGroup(layers, arrays.HEADS, arrays.DIM)
            self.spaces[kib] = self.client.open_space(
                f"two-{kib}", "r", [group], tokens_per_block=tokens, recipe="raw"
            )
            self.kv[kib] = np.ones((2, layers, arrays.HEADS, tokens, arrays.DIM), dtype=np.uint16)

    def put(self, kib):
        space, self.turn = self.spaces[kib], self.turn + 1
        self.keys[kib] = [space.opaque_key(f"{self.turn}-{i}".encode()) for i in range(AT_ONCE[kib])]
        puts = [self.cairn.Put(key, *self.kv[kib]) for key in self.keys[kib]]
        assert all(result.error is None for result in space.put_batch(puts, timeout=TIMEOUT))

    def get(self, kib):
        gets = [self.cairn.Get(key, *self.kv[kib]) for key in self.keys[kib]]
        assert all(bool(result) for result in self.spaces[kib].get_batch(gets, timeout=TIMEOUT))

    def match(self, kib):
        self.spaces[kib].match(self.keys[kib], lease=False, timeout=TIMEOUT)


def measure(ones, turns):
    """Seconds of each verb and size: two lists, one for each daemon."""
    seconds = {(verb, kib): ([], []) for verb in VERBS for kib in SIZES_KIB}
    for turn in range(turns + 2):
        for kib in SIZES_KIB:
            for verb in VERBS:
                for which in (0, 1) if turn % 2 else (1, 0):
                    begin = time.perf_counter()
                    getattr(ones[which], verb)(kib)
                    if turn >= 2:  # the first ones warm up
                        seconds[verb, kib][which].append(time.perf_counter() - begin)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=arrays.ROOT / "build" / "release" / "bin")
    parser.add_argument("--other-dir", type=pathlib.Path, required=True, help="binaries of the other build")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it runs")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    cairn, start = arrays.import_cairn(args.bin_dir)
    ratios = {(verb, kib): [] for verb in VERBS for kib in SIZES_KIB}
    for number in range(1 if args.quick else args.rounds):
        with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
            daemons = {}
            try:
                which = (0, 1) if number % 2 else (1, 0)
                for i in which:
                    own = pathlib.Path(folder) / str(i)
                    own.mkdir(mode=0o700)
                    daemons[i] = start((args.bin_dir, args.other_dir)[i], "local", own, host_bytes="512MiB")
                ones = [One(cairn, daemons[i]) for i in (0, 1)]
                for case, (first, second) in measure(ones, 3 if args.quick else 150).items():
                    ratios[case].append(statistics.median(first) / statistics.median(second))
                for one in ones:
                    one.client.close()
            finally:
                for daemon in daemons.values():
                    daemon.stop()
        print(f"round {number + 1} of {args.rounds}: {statistics.median(r[-1] for r in ratios.values()):.4f}", flush=True)
    rows = []
    for (verb, kib), found in ratios.items():
        name = f"{verb}, {AT_ONCE[kib]} of {kib} KiB"
        rows.append({"name": name, "ratio": statistics.median(found), "least": min(found), "most": max(found)})
        print(f"{name:24} {rows[-1]['ratio']:7.4f}  ({min(found):.4f} to {max(found):.4f})")
    every = [ratio for found in ratios.values() for ratio in found]
    print(f"{'all':24} {statistics.median(every):7.4f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
