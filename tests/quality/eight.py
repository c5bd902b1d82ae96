# SPDX-License-Identifier: Apache-2.0
"""8-bit floats, as engines keep KV in them: rounded to nearest even, with the scale 1. By a table of
their 256 values, apart from the codec's arithmetic."""

from __future__ import annotations

import numpy as np

# Bits of the mantissa, the bias, and the number of finite codes without sign.
KINDS = {"fp8_e4m3": (3, 7, 0x7F), "fp8_e5m2": (2, 15, 0x7C)}


def values_of(dtype: str) -> np.ndarray:
    """What the finite codes from 0 on stand for."""
    width, bias, finite = KINDS[dtype]
    codes = np.arange(finite)
    exponent, mantissa = codes >> width, codes & (2**width - 1)
    normal = (1 + mantissa / 2**width) * 2.0 ** (exponent - bias)
    return np.where(exponent == 0, mantissa / 2**width * 2.0 ** (1 - bias), normal)


def from_bf16(dtype: str, bits: np.ndarray) -> np.ndarray:
    """The codes nearest to finite bf16 values, of two the even one; at most the largest."""
    values = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    steps = values_of(dtype)
    middles = (steps[1:] + steps[:-1]) / 2
    magnitude = np.abs(values)
    code = np.searchsorted(middles, magnitude)  # a tie is left: at the lower one
    is_tie = (code < len(middles)) & (magnitude == middles[np.minimum(code, len(middles) - 1)])
    code += is_tie & (code % 2 == 1)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def to_bf16(dtype: str, codes: np.ndarray) -> np.ndarray:
    """Exact: bf16 has every value of an 8-bit float."""
    values = values_of(dtype).astype(np.float32)
    signed = np.where(codes & 0x80, -1.0, 1.0).astype(np.float32)
    return ((signed * values[codes & 0x7F]).view(np.uint32) >> 16).astype(np.uint16)
