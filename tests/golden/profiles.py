# SPDX-License-Identifier: Apache-2.0
"""Profiles of the golden vectors, from docs/internals/formats/profile.md alone: of each shape that the sources have, for a group of three
layers and three heads, in all variants of RoPE, one with a basis.

Built with integers and exact operations only, so that every numpy gives the same bytes.
"""
import struct

import numpy as np

from sources import noise

LAYERS, HEADS = 3, 3
TURN = 2**64
# (k_dim, v_dim): rope, first channel, channels that turn, basis
VARIANTS = {
    (32, 32): (1, 0, 32, False),
    (16, 16): (1, 0, 16, True),
    (16, 64): (2, 0, 16, False),
    (8, 8): (2, 2, 4, False),
    (64, 64): (1, 16, 48, False),
    (4, 8): (0, 0, 0, False),
    (80, 80): (1, 0, 20, False),
    (5, 3): (2, 1, 4, False),
    (24, 10): (2, 0, 24, False),
    (6, 5): (0, 0, 0, True),
    (24, 0): (1, 8, 16, False),
}


def padded(data):
    return data + bytes(-len(data) % 16)


def table(index):
    """A bell that widens with the index, its far symbols dropped."""
    weights = [4096 * 2**(index // 4) // (2**(index // 4) + (abs(s - 7) ** 2) * (9 - index % 4)) for s in range(15)]
    kept = [w if w >= 4 * (21 - index) else 0 for w in weights]
    frequencies = [w * 240 // sum(kept) for w in kept] + [1]
    frequencies[7] += 256 - sum(frequencies)
    return frequencies


def channels(dim, seed, is_k):
    """Some channels have steps far from their spread, some spreads that say nothing."""
    out = np.zeros((LAYERS, HEADS, dim), [("mean", "<f4"), ("step", "<i2"), ("spread", "<i2")])
    c = np.arange(dim)
    out["mean"] = noise(seed, out.shape) / 2 + ((c % 5 - 2) * 4 if is_k else 0)
    out["step"] = (noise(seed + 1, out.shape) * 96).astype(np.int64) + 128 * (c % 4) - 64
    out["spread"] = out["step"] + (noise(seed + 2, out.shape) * 200).astype(np.int64) + 160 * (c % 9) - 320
    out["spread"][:, :, ::13] = -16384
    out["step"][2, 1, 1::17] = 16384
    out["spread"][2, 1, 2::17] = 16384
    return out.tobytes()


def vectors(dim, seed):
    """Of each head a reflection, its own inverse but for rounding."""
    normal = noise(seed, (LAYERS, HEADS, dim))
    square = np.zeros((LAYERS, HEADS))
    for c in range(dim):
        square = square + normal[:, :, c] * normal[:, :, c]
    outer = normal[..., :, None] * normal[..., None, :]
    return (np.eye(dim) - 2 * outer / square[:, :, None, None]).astype("<f2").tobytes()


def make(k_dim, v_dim):
    rope, first, dims, basis = VARIANTS[k_dim, v_dim]
    planes = 2 if v_dim else 1
    seed = 100 * k_dim + v_dim
    turns = [TURN // 7 // 3**min(i, 20) + i for i in range(dims // 2)]
    rates = [(23, 0), (30, -171), (43, -500)]
    offsets = [[-(i % 7) * 8, -(i % 5) * 4] for i in range(21)]
    parts = [struct.pack(f"<{len(turns)}Q", *turns), b"".join(struct.pack("<Hh", *rate) for rate in rates)]
    for plane in range(planes):
        parts.append(b"".join(bytes(table((i + plane) % 21)) for i in range(21)))
        parts.append(np.array(offsets, np.int8).tobytes())
    parts += [channels(dim, seed + 10 * i, i == 0) for i, dim in enumerate([k_dim, v_dim][:planes])]
    if basis:
        scale = 2.0 ** (np.arange(LAYERS * HEADS * k_dim) % 5 - 2)
        parts += [scale.astype("<f4").tobytes(), (1 / scale).astype("<f4").tobytes(), vectors(k_dim, seed + 5)]
    content = b"".join(map(padded, parts))
    head = struct.pack("<4sHHQBBBBHHIIHHH", b"CKVP", 1, 64, 64 + len(content), planes, rope, basis, 0, LAYERS, HEADS,
                       k_dim, v_dim, first, dims, len(rates))
    return head + bytes(64 - len(head)) + content


PROFILES = {shape: make(*shape) for shape in VARIANTS}
