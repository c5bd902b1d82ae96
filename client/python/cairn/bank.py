# SPDX-License-Identifier: Apache-2.0
"""Mines the bank that the recipe `patternkv` codes with, from KV of the model over any text.

    bank = mine(k, v, patterns=32)      # of one group of layers: bytes, for docs/formats/bank.md
    space.install_bank(0, bank)

K is taken as the engine keeps it, after RoPE. Leave the first four tokens of each text out: their keys
are like no other's, and a pattern that follows them does harm. docs/recipes/patternkv.md says what
patterns are for.
Needs numpy.
"""

from __future__ import annotations

import struct

import numpy as np

PATTERNS_MAX = 256
VALUE_MAX = 32752.0
ROUNDS_MAX = 30
MOVE_MIN = 1e-4


def _distances(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Squared, [points, centers], a center at a time: no more memory than it takes."""
    return np.stack([((points - center) ** 2).sum(axis=1) for center in centers], axis=1)


def cluster(points: np.ndarray, count: int) -> np.ndarray:
    """k-means of points [n, dim]: min(count, n) centers, the same for the same points."""
    points = np.asarray(points, np.float64)
    count = min(count, len(points))
    if count == 0:
        raise ValueError("there are no tokens to mine patterns from")
    centers = points[np.arange(count) * len(points) // count]
    for _ in range(ROUNDS_MAX):
        distances = _distances(points, centers)
        nearest = distances.argmin(axis=1)
        left = distances[np.arange(len(points)), nearest]
        moved = centers.copy()
        for index in range(count):
            members = nearest == index
            if members.any():
                moved[index] = points[members].mean(axis=0)
                continue
            farthest = int(left.argmax())
            moved[index] = points[farthest]
            left[farthest] = 0
        is_still = np.abs(moved - centers).max() <= MOVE_MIN
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
