#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What cairn.profile and cairn.bank make of a fixed sample, which the C++ miners have to make too.

  generate_mined.py            writes tests/golden/mined/
  generate_mined.py --check    compares what it would write of banks with what is there; exits 1 on a difference, 77 without numpy

mined/bells.profile is the profile, to within a few units of its fields: it is not compared byte by byte, as numpy's sums and logarithms
may differ in the last place from one version to the next. mined/manifest.txt holds, one a line:

  bank PATTERNS bytes crc32c                    of the sample of the profile, text behind text
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

try:
    import numpy as np
except ImportError:
    print("numpy is not installed: golden vectors not regenerated")
    sys.exit(77)

import generate
from cairn import bank
from cairn.profile import GroupSamples, Rotation, build
from sources import noise

LAYERS, HEADS, DIM, TEXTS, TOKENS = 2, 2, 16, 4, 256
RATES = (2.2, 3.0, 4.3)  # each at one multiplier: this sample takes 2.3 bits at three
PATTERNS = (1, 8, 32, 50)
FOLDER = pathlib.Path(__file__).parent / "mined"
FREQUENCIES = 10000.0 ** (-np.arange(0, DIM, 2) / DIM)


def sample(text, plane):
    """Exact in fp32: [layers, heads, tokens, dim]. Where K turns slowly it has means."""
    bells = noise(2 * text + plane, (LAYERS, HEADS, TOKENS, DIM))
    channel = np.arange(DIM)
    return (bells * 2.0 ** -(channel % 4) + (channel % 5) / 4).astype(np.float32)


def manifest(texts):
    k, v = (np.concatenate(plane, axis=2) for plane in zip(*texts))
    lines = []
    for patterns in PATTERNS:
        mined = bank.mine(k, v, patterns=patterns)
        lines.append(f"bank {patterns} {len(mined)} {generate.crc32c(mined):08x}\n")
    return "".join(lines)


def main():
    texts = [(sample(text, 0), sample(text, 1)) for text in range(TEXTS)]
    if sys.argv[1:] == ["--check"]:
        is_same = manifest(texts) == (FOLDER / "manifest.txt").read_text()
        print("as they are" if is_same else "banks differ from mined/manifest.txt")
        sys.exit(0 if is_same else 1)
    queries = (1.0 + np.arange(LAYERS * HEADS * DIM) % 7).reshape(LAYERS, HEADS, DIM)
    group = GroupSamples(texts, Rotation.of("half", FREQUENCIES), queries)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "manifest.txt").write_text(manifest(texts))
    (FOLDER / "bells.profile").write_bytes(build([group], RATES)[0])


if __name__ == "__main__":
    main()
