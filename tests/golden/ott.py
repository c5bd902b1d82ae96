# SPDX-License-Identifier: Apache-2.0
"""Which tokens the recipe ott keeps as rows: from docs/recipes/ott.md alone."""
import struct

import numpy as np

F32 = np.float32
ROWS, GONE, GROUP = 3, 32, 128


def norms_of(values):
    """Of each token; infinite where one of its values cannot be coded."""
    with np.errstate(invalid="ignore", over="ignore"):
        codable = (np.abs(values) <= 32752).all(axis=1)
        sums = np.zeros((values.shape[0], 16), F32)
        for channel in range(values.shape[1]):
            sums[:, channel % 16] += np.abs(values[:, channel])
        for width in (8, 4, 2, 1):
            sums[:, :width] += sums[:, width:2 * width]
    return [sums[t, 0] if codable[t] else None for t in range(values.shape[0])]


class Pool:
    """Of one head."""

    def __init__(self):
        self.norms, self.gone = [], 0

    def enter(self, norm):
        if len(self.norms) == ROWS:
            if norm >= self.norms[-1] or self.gone == GONE:
                return False
            self.norms.pop()
            self.gone += 1
        self.norms = sorted(self.norms + [norm])
        return True

    def trace(self, values):
        """The rows that a block has; the pool goes on with it."""
        rows = []
        norms = norms_of(values)
        for first in range(0, len(norms), GROUP):
            tokens = [t for t in range(first, min(first + GROUP, len(norms))) if norms[t] is not None]
            for token in sorted(tokens, key=lambda t: (norms[t], t))[:ROWS]:
                if not self.enter(norms[token]):
                    break
                rows.append(token)
        return rows

    def to_bytes(self):
        norms = self.norms + [F32(0)] * (ROWS - len(self.norms))
        return struct.pack("<3fBBxx", *norms, len(self.norms), self.gone)
