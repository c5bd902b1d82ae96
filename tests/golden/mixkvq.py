# SPDX-License-Identifier: Apache-2.0
"""Tiles of K of the recipe `mixkvq`, from docs/recipes/mixkvq.md, docs/recipes/kivi.md and docs/internals/formats/image.md alone."""
import numpy as np

from generate import F32, bits_type, code_group, from_float, pack, padded, to_float, unpack

FORM = 0x0006
THRESHOLDS = {1: (1.44, 0.79), 2: (0.63, 0.41), 3: (1.52, 1.60), 4: (1.85, 1.58)}


def classes_of(values, magnitudes, variant):
    """values: of the tokens that are no rows."""
    dim = len(magnitudes)
    if len(values) == 0:
        salience = np.zeros(dim, F32)
    else:
        step = (values.max(0) - values.min(0)) / F32(3)
        salience = magnitudes * step
        salience = np.where(salience > 0, salience, F32(0))
    if variant == 0:
        order = sorted(range(dim), key=lambda c: (-float(salience[c]), c))
        classes = np.zeros(dim, np.int64)
        classes[order[:dim // 4]] = 1
        return classes
    source, four = (F32(x) for x in THRESHOLDS[variant])
    return np.where(salience > source, 2, np.where(salience > four, 1, 0))


def encode_tile(dtype, bits, magnitudes, variant, group):
    """(tile, rows), or None where it has to be raw."""
    tokens, dim = bits.shape
    with np.errstate(invalid="ignore"):
        values = to_float(dtype, bits)
        is_row = ~(np.abs(values) <= 32752).all(axis=1)
    classes = classes_of(values[~is_row], magnitudes, variant)
    wide = bits[:, classes == 2].copy()
    wide[is_row] = 0
    parts, params = [wide.tobytes()], {}
    for of, width in ((1, 4), (0, 2)):
        channels = np.flatnonzero(classes == of)
        codes = np.zeros((tokens, len(channels)), np.int64)
        for first in range(0, tokens, group):
            kept = [t for t in range(first, min(first + group, tokens)) if not is_row[t]]
            for i, c in enumerate(channels):
                made = code_group(values[kept, c], width)
                if made is None:
                    return None
                params[first, -of, i] = made[:2]
                codes[kept, i] = made[2]
        parts.append(pack(codes, width).tobytes() if len(channels) else b"")
    rows = np.flatnonzero(is_row)
    pairs = np.array([params[key] for key in sorted(params)], np.float16)
    side = pairs.tobytes() + bits[rows].tobytes() + rows.astype("<u2").tobytes()
    tile = padded(pack(classes[None, :], 2).tobytes()) + padded(b"".join(parts)) + padded(side)
    return (tile, len(rows)) if len(tile) < len(padded(bits.tobytes())) else None


def decode_tile(dtype, tile, shape, rows, group):
    tokens, dim = shape
    map_bytes = (dim + 3) // 4
    classes = unpack(np.frombuffer(tile, np.uint8, map_bytes)[None, :], dim, 2)[0]
    counts = [int((classes == of).sum()) for of in range(3)]
    at = -(-map_bytes // 16) * 16
    kind = bits_type(dtype)
    out = np.zeros(shape, kind)
    out[:, classes == 2] = np.frombuffer(tile, kind, tokens * counts[2], at).reshape(tokens, -1)
    at += tokens * counts[2] * np.dtype(kind).itemsize
    codes = {}
    for of, width in ((1, 4), (0, 2)):
        row_bytes = (counts[of] * width + 7) // 8
        packed = np.frombuffer(tile, np.uint8, tokens * row_bytes, at).reshape(tokens, row_bytes)
        codes[of] = unpack(packed, counts[of], width) if counts[of] else None
        at += packed.size
    at = -(-at // 16) * 16
    groups = -(-tokens // group)
    pairs = np.frombuffer(tile, np.float16, 2 * groups * (counts[1] + counts[0]), at).astype(F32)
    at += 4 * groups * (counts[1] + counts[0])
    pairs = pairs.reshape(groups, counts[1] + counts[0], 2)[np.arange(tokens) // group]
    for of, width, first in ((1, 4, 0), (0, 2, counts[1])):
        if counts[of]:
            minimum, spread = (pairs[:, first:first + counts[of], i] for i in (0, 1))
            x = codes[of].astype(F32) * (spread / F32(2 ** width - 1)) + minimum
            out[:, classes == of] = from_float(dtype, x).reshape(x.shape)
    kept = np.frombuffer(tile, kind, rows * dim, at).reshape(rows, dim)
    out[np.frombuffer(tile, "<u2", rows, at + kept.nbytes)] = kept
    return out
