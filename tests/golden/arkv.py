# SPDX-License-Identifier: Apache-2.0
"""Tiles of the recipe `arkv`, from docs/recipes/arkv.md, docs/recipes/kivi.md and docs/formats/image.md alone."""
import numpy as np

import generate

INF = float("inf")
SCORES = [0.5, 3.0e-8, INF, 1.0e-5, -1.0, 0.0, 70000.0, 0.25, float("nan"), 65519.0, 65504.0, 2.0, -0.0, 1.0e-9, 7.7, 0.1, 263.81,
          INF, 0.033]


def stored_scores(scores, first_position):
    """float16 of each token."""
    scores = np.array(scores, np.float32)
    scores[~(scores > 0)] = 0
    finite = np.isfinite(scores)
    scores[finite] = np.minimum(scores[finite], 65504)
    if first_position == 0:
        scores[0] = INF
    return scores.astype(np.float16)


def encode_tile(dtype, bits_of, per_channel, scores):
    """(tile, rows), or None where it has to be raw. scores: as they are stored."""
    return generate.affine_tile(bits_of, dtype, per_channel, 4, False, 1, chosen=np.flatnonzero(np.isinf(scores)).tolist(),
                                scores=scores.tobytes() if per_channel else b"")


def decode_tile(dtype, tile, shape, per_channel, rows):
    return generate.decode_affine(tile, shape, dtype, per_channel, 4, rows, scores_bytes=2 * shape[0] if per_channel else 0)
