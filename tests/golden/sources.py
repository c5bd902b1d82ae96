# SPDX-License-Identifier: Apache-2.0
"""Sources of the golden vectors: the values where encoders go wrong, in every dtype.

Built with integers and exact operations only, so that every numpy gives the same bytes.
"""
from dataclasses import dataclass

import numpy as np

KV, LATENT, STATE, ROWS = 1, 2, 3, 4
BF16, FP16, FP32, BYTES, E4M3, E5M2 = 1, 2, 3, 4, 5, 6
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", BYTES: "bytes", E4M3: "e4m3", E5M2: "e5m2"}
FP8 = (E4M3, E5M2)
SOURCES = []


@dataclass
class Source:
    name: str
    kind: int
    dtype: int
    layers: int
    heads: int
    tokens: int
    k_dim: int
    v_dim: int
    first_position: int
    data: bytes


def noise(seed, shape):
    """Bell-shaped, exact: sums of four 16-bit integers, scaled to about unit variance."""
    count = int(np.prod(shape))
    state = (seed * 2654435761 + 12345) % 2**32
    words = []
    for _ in range(4 * count):
        state = (state * 1664525 + 1013904223) % 2**32
        words.append(state >> 16)
    total = np.array(words, np.float64).reshape(count, 4).sum(axis=1) - 131070
    return (total / 2**15).reshape(shape)


def fp8_values(dtype):
    """What the codes 0x00 to 0x7F of an 8-bit float stand for, and how many of them are finite."""
    width, finite = {E4M3: (3, 0x7F), E5M2: (2, 0x7C)}[dtype]
    bias = {E4M3: 7, E5M2: 15}[dtype]
    codes = np.arange(128)
    exponent, mantissa = codes >> width, codes & (2**width - 1)
    normal = (1 + mantissa / 2**width) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, mantissa / 2**width * 2.0 ** (1 - bias), normal)
    values[finite:] = np.nan
    if dtype == E5M2:
        values[finite] = np.inf
    return values, finite


def to_fp8(dtype, values):
    """Codes of finite float64 values: the nearest, of two the even one; at most the largest finite."""
    steps, finite = fp8_values(dtype)
    values = np.asarray(values, np.float64)
    magnitude = np.minimum(np.abs(values), steps[finite - 1])
    above = np.clip(np.searchsorted(steps[:finite], magnitude), 1, finite - 1)
    low, high = magnitude - steps[above - 1], steps[above] - magnitude
    goes_up = (high < low) | ((high == low) & (above % 2 == 0))
    code = np.where(goes_up, above, above - 1)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def to_bits(dtype, values):
    """Bits of float64 values in a dtype, to nearest even; of 8-bit floats by way of bf16."""
    single = np.asarray(values, np.float64).astype(np.float32)
    if dtype in FP8:
        return to_fp8(dtype, (to_bits(BF16, single).astype(np.uint32) << 16).view(np.float32))
    if dtype == BF16:
        bits = single.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if dtype == FP16:
        return single.astype(np.float16).view(np.uint16)
    return single.view(np.uint32)


def add(name, tiles_of, tokens, k_dim, v_dim, kind=KV, heads=1, first_position=0, dtypes=(BF16, FP16, FP32)):
    """tiles_of(dtype, head, plane, shape) gives the bits of a tile."""
    for dtype in dtypes:
        data = b""
        for head in range(heads):
            for plane, dim in enumerate([k_dim, v_dim] if kind == KV else [k_dim]):
                bits = tiles_of(dtype, head, plane, (tokens, dim))
                assert bits.shape == (tokens, dim)
                data += bits.tobytes()
        SOURCES.append(Source(f"{name}-{NAMES[dtype]}", kind, dtype, 1, heads, tokens, k_dim, v_dim, first_position, data))


def typical(dtype, head, plane, shape):
    values = noise(10 * head + plane, shape) * (1 + np.arange(shape[1]) % 7)
    if plane == 0:
        values += (np.arange(shape[1]) % 5 - 2) * 4
        values[0] *= 0.03125  # token 0 of a chain: a small key
    return to_bits(dtype, values)


def zeros(dtype, head, plane, shape):
    values = np.zeros(shape)
    values[1::3, ::2] = -0.0
    values[:, 5] = -0.0
    values[7, 9] = 1.0
    return to_bits(dtype, values)


def denormal(dtype, head, plane, shape):
    sign = {BF16: 0x8000, FP16: 0x8000, FP32: 0x80000000}[dtype]
    top = {BF16: 0x007F, FP16: 0x03FF, FP32: 0x007FFFFF}[dtype]
    index = np.arange(shape[0] * shape[1], dtype=np.uint64).reshape(shape)
    bits = index * 40503 % (top + 1)
    bits[index % 3 == 1] += sign
    # Besides: values around the denormals of fp16, in every dtype.
    around = to_bits(dtype, noise(3 + plane, shape) * 2.0**-22).astype(np.uint64)
    bits[:, shape[1] // 2:] = around[:, shape[1] // 2:]
    return bits.astype(np.uint32 if dtype == FP32 else np.uint16)


def largest(dtype, head, plane, shape):
    bits = to_bits(dtype, noise(5 + plane, shape) * 4000)
    top = {BF16: 0x7F7F, FP16: 0x7BFF, FP32: 0x7F7FFFFF}[dtype]
    sign = 0x80000000 if dtype == FP32 else 0x8000
    bits[3, 4] = top
    bits[11, 0] = top | sign
    edge = to_bits(dtype, [32752.0, -32752.0, 32640.0, 32768.0, -32768.0, 32753.0])
    bits[12, 1], bits[13, 1], bits[14, 1] = edge[0], edge[1], edge[2]
    bits[15, 2], bits[16, 2], bits[17, 2] = edge[3], edge[4], edge[5]
    return bits


def outlier(dtype, head, plane, shape):
    values = noise(7 + plane, shape)
    values[20, 6] = 30000
    return to_bits(dtype, values)


def constant(dtype, head, plane, shape):
    values = noise(9 + plane, shape)
    if plane == 0:
        values[:, 2], values[:, 3], values[:, 4] = 1.5, -0.0, 2.0**-24 * 3
    else:
        values[4], values[5], values[6], values[7] = 0.25, 0.1, -2.0**-30, 1e-6
    return to_bits(dtype, values)


def inexact(dtype, head, plane, shape):
    """A channel of K that is constant and, but in fp16, no fp16."""
    values = noise(11 + plane, shape)
    values[:, 2] = 1.3e-6 if plane == 0 else values[:, 2]
    return to_bits(dtype, values)


def nonfinite(dtype, head, plane, shape):
    bits = to_bits(dtype, noise(13 + plane, shape))
    nan = {BF16: [0x7FC0, 0xFFC1, 0x7F81], FP16: [0x7E00, 0xFE01, 0x7C01], FP32: [0x7FC00000, 0xFFC12345, 0x7F800001]}
    infinity = {BF16: 0x7F80, FP16: 0x7C00, FP32: 0x7F800000}[dtype]
    sign = 0x80000000 if dtype == FP32 else 0x8000
    bits[2, 1], bits[9, 7], bits[31, 15] = nan[dtype]
    bits[5, 0], bits[17, 3] = infinity, infinity | sign
    return bits


def ruined(dtype, head, plane, shape):
    """Most tokens are rows, so tiles are raw."""
    bits = to_bits(dtype, noise(15 + plane, shape))
    bits[1:, 3] = {BF16: 0x7F80, FP16: 0x7C00, FP32: 0x7F800000}[dtype]
    return bits


def offset(dtype, head, plane, shape):
    """Small ranges far from zero."""
    return to_bits(dtype, noise(17 + plane, shape) / 16 + 100 * (np.arange(shape[1]) % 4 - 1.5))


def tails(dtype, head, plane, shape):
    values = noise(19 + plane, shape)
    return to_bits(dtype, values * values * values)


def mixed(dtype, head, plane, shape):
    """For lossless coding: dead channels, rare escapes, spreads far apart, and a strip of noise."""
    values = noise(21 + plane, shape) * 2.0 ** (np.arange(shape[1]) * 5 % 23 - 20)
    values[:, 3::11] = 0
    values[::37, 5::9] *= 2.0**30 if dtype != FP16 else 2.0**9
    bits = to_bits(dtype, values)
    if plane == 1:
        index = np.arange(shape[1] * 128, dtype=np.uint64).reshape(128, -1)
        bits[:128] = ((index * 2654435761 % 2**32) * 40503 >> 9).astype(bits.dtype)
    return bits


add("typical", typical, 48, 32, 32, heads=2)
add("zeros", zeros, 32, 16, 16)
add("denormal", denormal, 40, 16, 16)
add("largest", largest, 40, 16, 16)
add("outlier", outlier, 32, 16, 16)
add("constant", constant, 32, 16, 16)
add("inexact", inexact, 32, 16, 16)
add("nonfinite", nonfinite, 40, 16, 16)
add("ruined", ruined, 24, 16, 16)
add("offset", offset, 32, 16, 16)
add("tails", tails, 64, 16, 64, first_position=128)
add("short", typical, 131, 8, 8)  # K groups of 128 and 3 tokens
add("one", typical, 1, 64, 64)
add("last", typical, 129, 4, 8)  # the last K group is one token
add("dim80", typical, 33, 80, 80)  # V groups of 64 and 16 channels
add("odd", typical, 70, 5, 3, first_position=70)
add("mixed", mixed, 165, 24, 10)
add("strips", typical, 257, 6, 5, first_position=512)
add("latent", typical, 40, 24, 0, kind=LATENT, first_position=256)



def eight(dtype, head, plane, shape):
    """As KV lies in an engine's cache of 8-bit floats: some values are its largest, and some its smallest."""
    values = noise(31 + 10 * head + plane, shape) * 2.0 ** (np.arange(shape[1]) % 9 - 6)
    values[::17, 1::6] *= 512
    return to_bits(dtype, values)


def eight_nonfinite(dtype, head, plane, shape):
    bits = to_bits(dtype, noise(33 + plane, shape))
    bits[2, 1], bits[9, 7] = 0x7F, 0xFF
    if dtype == E5M2:
        bits[5, 0], bits[17, 3], bits[20, 2] = 0x7C, 0xFC, 0x7D
        bits[23, 4] = 0x7A  # a number that cannot be coded
    return bits


def every(dtype, head, plane, shape):
    """Every code, and channels of zeros."""
    bits = (np.arange(shape[0] * shape[1], dtype=np.uint64).reshape(shape) * 193 % 256).astype(np.uint8)
    bits[:, 3::7] = 0
    return bits


add("eight", eight, 140, 32, 32, heads=2, dtypes=FP8)
add("eight_odd", eight, 70, 24, 10, first_position=70, dtypes=FP8)
add("eight_nonfinite", eight_nonfinite, 40, 16, 16, dtypes=FP8)
add("eight_every", every, 64, 16, 16, dtypes=FP8)
add("eight_latent", eight, 40, 24, 0, kind=LATENT, first_position=256, dtypes=FP8)

BLOB = bytes((i * 37 + (i >> 4)) % 256 for i in range(3 * 40 * 33))
SOURCES.append(Source("state-bytes", STATE, BYTES, 2, 2, 128, 333, 0, 0, BLOB[:4 * 333]))
SOURCES.append(Source("rows-bytes", ROWS, BYTES, 1, 3, 40, 33, 0, 40, BLOB))
