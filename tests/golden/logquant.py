# SPDX-License-Identifier: Apache-2.0
"""Rows of the recipe `logquant`, from docs/recipes/logquant.md, docs/recipes/kivi.md and docs/internals/formats/image.md alone."""
import numpy as np

import generate

FOREVER = 10**30


def end_of(place, variant):
    """The longest chain in which the token at that place is a row."""
    if place == 0:
        return FOREVER
    zeros = (place & -place).bit_length() - 1
    if variant == 0:
        return place + (min(zeros, 5) + 2) * 42
    return FOREVER if zeros >= 48 else place + 2 ** (zeros + 1) * 42


def encode_tile(dtype, bits_of, per_channel, bits, variant, first, chain):
    """(tile, rows), or None where it has to be raw."""
    tokens, dim = bits_of.shape
    made = generate.affine_tile(bits_of, dtype, per_channel, bits, False, first)
    if made is None:
        return None
    tile, count = made
    codes_bytes = -(-tokens * ((dim * bits + 7) // 8) // 16) * 16
    groups = -(-tokens // 128) * dim if per_channel else tokens * -(-dim // 64)
    at = codes_bytes + 4 * groups
    uncodable = np.frombuffer(tile, "<u2", count, at + count * dim * bits_of.itemsize).tolist()
    stay = [t for t in range(tokens) if t in uncodable or first + t == 0]
    n = max(chain, first + tokens)
    others = [t for t in range(tokens) if t not in stay and end_of(first + t, variant) >= n]
    others.sort(key=lambda t: (-end_of(first + t, variant), t))
    rows = stay + others
    stored = np.array([t | 0x8000 for t in stay] + others, "<u2")
    tile = tile[:codes_bytes] + generate.padded(tile[codes_bytes:at] + bits_of[rows].tobytes() + stored.tobytes())
    return (tile, len(rows)) if len(tile) < len(generate.padded(bits_of.tobytes())) else None


def decode_tile(dtype, tile, shape, per_channel, bits, rows):
    tokens, dim = shape
    out = generate.decode_affine(tile, shape, dtype, per_channel, bits, 0).copy()
    codes_bytes = -(-tokens * ((dim * bits + 7) // 8) // 16) * 16
    at = codes_bytes + 4 * (-(-tokens // 128) * dim if per_channel else tokens * -(-dim // 64))
    kept = np.frombuffer(tile, out.dtype, rows * dim, at).reshape(rows, dim)
    out[np.frombuffer(tile, "<u2", rows, at + kept.nbytes) & 0x7FFF] = kept
    return out
