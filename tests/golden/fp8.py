# SPDX-License-Identifier: Apache-2.0
"""Tiles of the recipe `fp8`, from docs/recipes/fp8.md and docs/internals/formats/image.md alone."""
import numpy as np

from generate import F32, bits_type, fp16_outward, from_float, padded, to_float

FORM = 0x0807


def values_of_codes():
    """The floats of the codes 0…126, the positive ones."""
    out = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        out.append(mantissa / 512 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.array(out)


POSITIVE = values_of_codes()


def code_of(y):
    """Of fp32 numbers: the nearest of the codes, of two as near the even one."""
    size = np.abs(y.astype(np.float64))
    below = np.clip(np.searchsorted(POSITIVE, size, side="right") - 1, 0, 126)
    above = np.minimum(below + 1, 126)
    to_below, to_above = size - POSITIVE[below], POSITIVE[above] - size
    nearest = np.where((to_above < to_below) | ((to_above == to_below) & (below % 2 == 1)), above, below)
    nearest = np.where(size >= 448, 126, nearest)
    return (nearest | np.where(np.signbit(y), 128, 0)).astype(np.uint8)


def codes_of(dtype, bits):
    """(codes, scales) of tokens that can be coded."""
    values = to_float(dtype, bits)
    codes = np.zeros(bits.shape, np.uint8)
    scales = np.zeros(len(bits), np.float16)
    for t in range(len(bits)):
        scales[t] = fp16_outward(F32(F32(np.abs(values[t]).max()) / F32(448)), upward=True)
        scale = F32(scales[t])
        inverse = F32(1) / scale if scale > 0 else F32(0)
        codes[t] = code_of(values[t] * inverse)
    return codes, scales


def values_of(dtype, codes, scales):
    """Bits of tokens."""
    x = POSITIVE[codes & 127].astype(F32) * np.where(codes & 128, F32(-1), F32(1))
    return from_float(dtype, x * scales.astype(F32)[:, None]).reshape(codes.shape)


def encode_tile(dtype, bits):
    """(tile, rows), or None where it has to be raw."""
    with np.errstate(invalid="ignore"):
        is_row = ~(np.abs(to_float(dtype, bits)) <= 32752).all(axis=1)
    codes = np.zeros(bits.shape, np.uint8)
    scales = np.zeros(len(bits), np.float16)
    codes[~is_row], scales[~is_row] = codes_of(dtype, bits[~is_row])
    rows = np.flatnonzero(is_row)
    side = bits[rows].tobytes() + scales.tobytes() + rows.astype("<u2").tobytes()
    tile = padded(codes.tobytes()) + padded(side)
    return (tile, len(rows)) if len(tile) < len(padded(bits.tobytes())) else None


def decode_tile(dtype, tile, shape, rows):
    tokens, dim = shape
    codes = np.frombuffer(tile, np.uint8, tokens * dim).reshape(shape)
    offset = -(-tokens * dim // 16) * 16
    kept = np.frombuffer(tile, bits_type(dtype), rows * dim, offset).reshape(rows, dim)
    offset += kept.nbytes
    scales = np.frombuffer(tile, np.float16, tokens, offset)
    out = values_of(dtype, codes, scales).copy()
    out[np.frombuffer(tile, "<u2", rows, offset + 2 * tokens)] = kept
    return out
