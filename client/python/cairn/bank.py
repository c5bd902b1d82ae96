# SPDX-License-Identifier: Apache-2.0
"""Mines the bank that the recipe `patternkv` codes with, from KV of the model over any text.

    bank = mine(k, v, patterns=32)      # of one group of layers: bytes, for docs/internals/formats/bank.md
    space.install_bank(0, bank)

K is taken as the engine keeps it, after RoPE. Leave the first four tokens of each text out: their keys
are like no other's, and a pattern that follows them does harm. docs/recipes/patternkv.md says what
patterns are for. Of KV on a CUDA device, cairn.mine makes the same.
Needs numpy.
"""

from __future__ import annotations

import struct

import numpy as np

PATTERNS_MAX = 256
VALUE_MAX = 32752.0
ROUNDS_MAX = 30
MOVE_MAX = np.float32(1e-4)  # of a center that stands still
SUMS = 16  # a squared length is that many sums, of every sixteenth channel each, added in halves
UNIT = np.float32(2.0**-24)  # that means are counted in


def _distances(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Squared, [points, centers], a center at a time: no more memory than it takes.

    Summed in the order that docs/recipes/patternkv.md gives.
    """
    filled = -points.shape[1] % SUMS
    channels = np.ascontiguousarray(np.pad(points, ((0, 0), (0, filled))).T)
    out = np.empty((len(points), len(centers)), np.float32)
    for index, center in enumerate(np.pad(centers, ((0, 0), (0, filled)))):
        squares = np.square(channels - center[:, None]).reshape(-1, SUMS, len(points))
        sums = squares[0]
        for more in squares[1:]:
            sums = sums + more
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        out[:, index] = sums[0]
    return out


def _mean(units: np.ndarray) -> np.ndarray:
    """Of points in units, cut off towards 0: integers, so that the sum has no order."""
    total = units.sum(axis=0)
    return (np.sign(total) * (np.abs(total) // len(units))).astype(np.float32) * UNIT


def cluster(points: np.ndarray, count: int) -> np.ndarray:
    """k-means of points [n, dim] up to VALUE_MAX: min(count, n) centers, on every machine the same."""
    points = np.asarray(points, np.float32)
    count = min(count, len(points))
    if count == 0:
        raise ValueError("there are no tokens to mine patterns from")
    units = (points.astype(np.float64) / UNIT).astype(np.int64)
    centers = points[np.arange(count) * len(points) // count]
    for _ in range(ROUNDS_MAX):
        distances = _distances(points, centers)
        nearest = distances.argmin(axis=1)
        left = distances[np.arange(len(points)), nearest]
        moved = centers.copy()
        for index in range(count):
            members = nearest == index
            if members.any():
                moved[index] = _mean(units[members])
                continue
            farthest = int(left.argmax())
            moved[index] = points[farthest]
            left[farthest] = 0
        is_still = np.abs(moved - centers).max() <= MOVE_MAX
        centers = moved
        if is_still:
            break
    return centers


def _plane(values: np.ndarray, count: int) -> np.ndarray:
    """Patterns of one plane, float16 [layers, heads, patterns, dim]."""
    layers, heads, _, dim = values.shape
    out = np.empty((layers, heads, count, dim), np.float16)
    for layer in range(layers):
        for head in range(heads):
            points = values[layer, head]
            points = points[(np.abs(points) <= VALUE_MAX).all(axis=1)]
            centers = cluster(points, count)
            # Tokens that cannot be coded may leave a head with too few: its last pattern again.
            fill = np.repeat(centers[-1:], count - len(centers), axis=0)
            out[layer, head] = np.concatenate([centers, fill])
    return out


def mine(k: np.ndarray, v: np.ndarray | None = None, *, patterns: int = 32) -> bytes:
    """The bank of one group of layers: float [layers, heads, tokens, dim] each; v is None for latents.

    A head of fewer tokens than `patterns` has as many patterns as tokens.
    """
    if not 1 <= patterns <= PATTERNS_MAX:
        raise ValueError(f"patterns is {patterns}, expected 1 to {PATTERNS_MAX}")
    planes = [k] if v is None else [k, v]
    for name, values in zip("kv", planes):
        if values.ndim != 4:
            raise ValueError(f"{name} has {values.ndim} axes, expected layers, heads, tokens and dim")
    if v is not None and k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k is of {k.shape[:3]} layers, heads and tokens, v of {v.shape[:3]}")
    count = min(patterns, k.shape[2])
    body = b""
    for values in planes:
        data = _plane(np.asarray(values, np.float32), count).tobytes()
        body += data + bytes(-len(data) % 16)
    layers, heads = k.shape[:2]
    v_dim = 0 if v is None else v.shape[3]
    header = struct.pack("<4sHHQBxHHHII32x", b"CKVB", 1, 64, 64 + len(body), len(planes), count, layers, heads, k.shape[3], v_dim)
    return header + body
