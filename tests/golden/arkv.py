# SPDX-License-Identifier: Apache-2.0
"""Tiles of the recipes `arkv` and `arkv:paper`, from docs/recipes/arkv.md, kivi.md and fp8.md and docs/internals/formats/image.md alone."""
import numpy as np

import fp8
import generate

INF = float("inf")
SCORES = [0.5, 3.0e-8, INF, 1.0e-5, -1.0, 0.0, 70000.0, 0.25, float("nan"), 65519.0, 65504.0, 2.0, -0.0, 1.0e-9, 7.7, 0.1, 263.81,
          INF, 0.033]
STATES = [1, 0, 2, 1, 0, 0, 1, 1, 0, 2, 0, 1, 0, 0, 1, 0, 1, 2, 0, 1, 1, 0, 0]
KEPT_FORM = 0x0805
EVICTED, LOW, ORIGINAL = 0, 1, 2


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


def encode_kept(dtype, bits_of, states):
    """(tile, rows) of arkv:paper, or None where it has to be raw."""
    tokens, dim = bits_of.shape
    if dim < 16:
        return None
    with np.errstate(invalid="ignore"):
        uncodable = ~(np.abs(generate.to_float(dtype, bits_of)) <= 32752).all(axis=1)
    rows = np.flatnonzero((states == ORIGINAL) | (uncodable & (states != EVICTED)))
    low = np.flatnonzero((states == LOW) & ~uncodable)
    codes, scales = fp8.codes_of(dtype, bits_of[low])
    kept = np.packbits(states != EVICTED, bitorder="little")
    side = bits_of[rows].tobytes() + scales.tobytes() + rows.astype("<u2").tobytes() + kept.tobytes()
    tile = generate.padded(codes.tobytes()) + generate.padded(side)
    return (tile, len(rows)) if len(tile) < len(generate.padded(bits_of.tobytes())) else None


def decode_kept(dtype, tile, shape, rows):
    tokens, dim = shape
    out = np.zeros(shape, generate.bits_type(dtype))
    map_bytes = -(-tokens // 8)

    def size(low):
        side = rows * (dim * out.itemsize + 2) + 2 * low + map_bytes
        return -(-low * dim // 16) * 16 + -(-side // 16) * 16

    low = next(n for n in range(tokens + 1) if size(n) == len(tile))
    at = -(-low * dim // 16) * 16
    kept = np.frombuffer(tile, out.dtype, rows * dim, at).reshape(rows, dim)
    at += kept.nbytes
    scales = np.frombuffer(tile, np.float16, low, at)
    positions = np.frombuffer(tile, "<u2", rows, at + 2 * low)
    is_kept = np.unpackbits(np.frombuffer(tile, np.uint8, map_bytes, at + 2 * low + 2 * rows), bitorder="little")[:tokens] == 1
    is_kept[positions] = False
    codes = np.frombuffer(tile, np.uint8, low * dim).reshape(low, dim)
    out[is_kept] = fp8.values_of(dtype, codes, scales)
    out[positions] = kept
    return out
