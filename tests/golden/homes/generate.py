# SPDX-License-Identifier: Apache-2.0
"""Writes homes.json, the vectors of docs/internals/locations.md: a second implementation, written from that page.

python3 tests/golden/homes/generate.py          writes the file
python3 tests/golden/homes/generate.py --check  fails unless the file is what would be written
"""

import hashlib
import json
import pathlib
import random
import sys

TARGET = pathlib.Path(__file__).with_name("homes.json")
MASK = 2**64 - 1


def name_hash(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def score(name, run):
    return mix(name_hash(name) ^ run)


def homes(names, run):
    # Of equal scores, the one whose name comes first.
    return sorted(sorted(names), key=lambda name: -score(name, run))[:2]


def run_of(key):
    return int.from_bytes(key[:8], "little")


def run_first(position):
    return 0 if position == 0 else 2 ** (position.bit_length() - 1)


def location(space, key):
    return hashlib.sha256(space + key).digest()[:16]


def vectors():
    rng = random.Random(20261127)
    keys = [rng.randbytes(32) for _ in range(10)] + [bytes(32), b"\xff" * 32, b"\x01" + bytes(31)]
    clusters = [
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
        [f"node-{i}" for i in range(16)],
        [f"cairn-{i:04}.rack{i % 7}.example.org" for i in range(40)],
    ]
    return {
        "scores": [{"name": name, "run": str(run_of(key)), "score": str(score(name, run_of(key)))}
                   for name in ("a", "node-7", "A-b_c.9" * 30) for key in keys[-5:]],
        "homes": [{"members": names, "key": key.hex(), "run": str(run_of(key)), "homes": homes(names, run_of(key))}
                  for names in clusters for key in keys],
        # Of the members node-0 to node-(count - 1).
        "homes_of_many": [{"count": count, "key": key.hex(),
                           "homes": homes([f"node-{i}" for i in range(count)], run_of(key))}
                          for count in (200, 1000) for key in keys],
        "runs": [{"position": p, "first": run_first(p)}
                 for p in [*range(18), 31, 32, 33, 4095, 4096, 2**20 + 1, 2**47]],
        "locations": [{"space": space.hex(), "key": key.hex(), "name": location(space, key).hex()}
                      for space in (bytes(32), bytes(range(32))) for key in keys[-4:]],
    }


def main():
    text = json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n"
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            print(f"{TARGET} is not what {__file__} writes")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
