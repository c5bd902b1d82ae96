#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The profile that cairn.profile makes of a fixed sample, which the C++ miner has to make too, to within a few units of its fields.

  PYTHONPATH=client/python:tests/golden python3 tests/golden/generate_mined.py      writes tests/golden/mined/

Not compared byte by byte: numpy's sums and logarithms may differ in the last place from one version to the next.
"""
import pathlib

import numpy as np
from cairn.profile import GroupSamples, Rotation, build

from sources import noise

LAYERS, HEADS, DIM, TEXTS, TOKENS = 2, 2, 16, 4, 256
RATES = (2.3, 3.0, 4.3)
FREQUENCIES = 10000.0 ** (-np.arange(0, DIM, 2) / DIM)


def sample(text, plane):
    """Exact in fp32: [layers, heads, tokens, dim]. Where K turns slowly it has means."""
    bells = noise(2 * text + plane, (LAYERS, HEADS, TOKENS, DIM))
    channel = np.arange(DIM)
    return (bells * 2.0 ** -(channel % 4) + (channel % 5) / 4).astype(np.float32)


def main():
    texts = [(sample(text, 0), sample(text, 1)) for text in range(TEXTS)]
    queries = (1.0 + np.arange(LAYERS * HEADS * DIM) % 7).reshape(LAYERS, HEADS, DIM)
    group = GroupSamples(texts, Rotation.of("half", FREQUENCIES), queries)
    folder = pathlib.Path(__file__).parent / "mined"
    folder.mkdir(exist_ok=True)
    (folder / "bells.profile").write_bytes(build([group], RATES)[0])


if __name__ == "__main__":
    main()
