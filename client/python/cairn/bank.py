# SPDX-License-Identifier: Apache-2.0
"""Mines the bank for the recipe `patternkv`, from KV of the model over any text.

    bank = mine(k, v, patterns=32)      # of one group of layers: bytes, for docs/internals/formats/bank.md
    space.install_bank(0, bank)

Pass K as the engine keeps it, after RoPE. Leave out the first four tokens of each text: their keys
are unlike all others, and patterns made from them do harm. docs/recipes/patternkv.md explains
patterns. cairn.mine makes the same bank from KV on a CUDA device. Needs numpy.
"""

from __future__ import annotations

import struct

import numpy as np

PATTERNS_MAX = 256
VALUE_MAX = 32752.0
ROUNDS_MAX = 30
MOVE_MAX = np.float32(1e-4)  # a centre that moves at most this much has converged
SUMS = 16  # partial sums of a squared length, each over every sixteenth channel, added in halves
UNIT = np.float32(2.0**-24)  # the unit of means


def _distances(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Returns squared distances [points, centers], one center at a time to save memory.

    The order of the sums is that of docs/recipes/patternkv.md.
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
    """Returns the mean of points in units, rounded towards 0. Sums of integers do not depend on
    their order."""
    total = units.sum(axis=0)
    return (np.sign(total) * (np.abs(total) // len(units))).astype(np.float32) * UNIT


def cluster(points: np.ndarray, count: int) -> np.ndarray:
    """Runs k-means on points [n, dim] up to VALUE_MAX. Returns min(count, n) centers, the same on
    every machine."""
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
    """Returns the patterns of one plane, float16 [layers, heads, patterns, dim]."""
    layers, heads, _, dim = values.shape
    out = np.empty((layers, heads, count, dim), np.float16)
    for layer in range(layers):
        for head in range(heads):
            points = values[layer, head]
            points = points[(np.abs(points) <= VALUE_MAX).all(axis=1)]
            centers = cluster(points, count)
            # If a head has too few tokens that can be coded, its last pattern is repeated.
            fill = np.repeat(centers[-1:], count - len(centers), axis=0)
            out[layer, head] = np.concatenate([centers, fill])
    return out


def mine(k: np.ndarray, v: np.ndarray | None = None, *, patterns: int = 32) -> bytes:
    """Returns the bank of one group of layers. k, v: float [layers, heads, tokens, dim]; v is None
    for latents.

    A head with fewer tokens than `patterns` has as many patterns as tokens.
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
