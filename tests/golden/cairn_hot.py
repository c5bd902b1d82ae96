# SPDX-License-Identifier: Apache-2.0
"""Tiles of the recipe `cairn-hot`, from docs/recipes/cairn-hot.md, docs/recipes/cairn.md and docs/internals/formats/profile.md alone."""
import numpy as np

import cairn_recipe
from cairn_recipe import CODE_MAX, F32, exp2
from generate import bits_type, from_float, padded, to_float

FORM, STRIP = 0x0008, 128
THRESHOLDS = [83, 259, 460, 681, 916, 1161]
LEVELS = {
    1: "0.797885",
    2: "0.45278, 1.510418",
    3: "0.245094, 0.756005, 1.343909, 2.151946",
    4: "0.128395, 0.388048, 0.656759, 0.94234, 1.256231, 1.618046, 2.069017, 2.73259",
    5: "0.06589, 0.198052, 0.331378, 0.4667, 0.604934, 0.747136, 0.894565, 1.048783, 1.211804, 1.38634, 1.576228, 1.787233, "
       "2.028728, 2.317739, 2.69112, 3.260732",
    6: "0.03341, 0.100278, 0.167297, 0.234567, 0.302193, 0.370283, 0.43895, 0.508314, 0.578503, 0.649656, 0.721922, 0.795468, "
       "0.870477, 0.947155, 1.025736, 1.106488, 1.18972, 1.275794, 1.365141, 1.458276, 1.555831, 1.658589, 1.767542, 1.883977, "
       "2.009611, 2.14681, 2.298981, 2.471305, 2.672274, 2.917407, 3.240437, 3.744101",
}
LEVELS = {w: np.array([float(x) for x in text.split(", ")]).astype(F32) for w, text in LEVELS.items()}


def worths(profile, plane, layer, head, multiplier):
    channels = profile.channels[plane][layer, head]
    return [int(s) - int(t) - multiplier for s, t in zip(channels["spread"], channels["step"])]


def widths(worth):
    out = [sum(threshold <= x for threshold in THRESHOLDS) for x in worth]
    while sum(out) % 8 and min(out) < 6:
        gains = [x - THRESHOLDS[w] if w < 6 else -10**9 for x, w in zip(worth, out)]
        out[gains.index(max(gains))] += 1
    return out


def multiplier_of(profile, bits):
    """By trying them: the sums do not rise with the multiplier, so halving finds the least that fits."""
    dims = [len(channels[0, 0]) for channels in profile.channels]
    heads = [(layer, head) for layer in range(profile.layers) for head in range(profile.heads)]

    def fits(multiplier):
        total = sum(sum(widths(worths(profile, plane, *at, multiplier))) for plane in range(profile.planes) for at in heads)
        return 100 * total <= (10 * bits - 12) * len(heads) * sum(dims)

    low, high = -4097, 4096
    assert fits(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


class Tile:
    def __init__(self, profile, layer, head, plane, multiplier, dtype):
        self.steps = cairn_recipe.Tile(profile, layer, head, plane, 0, 0, dtype)
        self.spread = profile.channels[plane][layer, head]["spread"].astype(np.int64)
        self.widths = widths(worths(profile, plane, layer, head, multiplier))
        self.row_bytes = -(-sum(self.widths) // 8)
        self.corrected, self.dtype, self.dim = plane == 0, dtype, len(self.spread)

    def code_of(self, z, width):
        levels = LEVELS[width]
        bounds = (levels[:-1] + levels[1:]) * F32(0.5)
        k = np.searchsorted(bounds, np.abs(z), side="right")
        half = 1 << (width - 1)
        return np.where(z < 0, half - 1 - k, half + k)

    def correction(self, y, c):
        power = F32(0)
        with np.errstate(over="ignore"):
            for size in y * exp2(-self.spread[c]):
                power = power + size * size
            if len(y) == 0:
                return 0
            power = power / F32(len(y))
        return -8 + sum(bool(power >= exp2(128 * i - 64)) for i in range(-7, 8))

    def encode_strip(self, bits, v, first):
        """Codes [tokens, row_bytes], corrections as bytes, rows."""
        values = to_float(self.dtype, bits)
        with np.errstate(invalid="ignore", over="ignore"):
            y = self.steps.centred(values, first)
            rows = cairn_recipe.rows_of(self.steps, values, v, first, y * exp2(-self.spread))
        kept = np.flatnonzero(~rows)
        out = np.zeros((len(bits), 8 * self.row_bytes), np.uint8)
        nibbles, at = np.zeros(self.dim + self.dim % 2, np.uint8), 0
        for c, width in enumerate(self.widths):
            e = self.correction(y[kept, c], c) if self.corrected else 0
            nibbles[c] = e + 8
            if width:
                codes = self.code_of(y[kept, c] * exp2(-(self.spread[c] + 64 * e)), width)
                for bit in range(width):
                    out[kept, at + bit] = codes >> bit & 1
            at += width
        corrections = (nibbles[0::2] | nibbles[1::2] << 4).tobytes() if self.corrected else b""
        return np.packbits(out, axis=1, bitorder="little"), corrections, rows

    def decode_strip(self, codes, corrections, first):
        e = np.zeros(self.dim, np.int64)
        if self.corrected:
            nibbles = np.frombuffer(corrections, np.uint8)
            e = np.stack([nibbles & 15, nibbles >> 4], 1).ravel()[:self.dim].astype(np.int64) - 8
        spread = np.unpackbits(codes, axis=1, bitorder="little").astype(np.int64)
        y, at = np.zeros((len(codes), self.dim), F32), 0
        for c, width in enumerate(self.widths):
            if width:
                code = sum(spread[:, at + bit] << bit for bit in range(width))
                levels = np.concatenate([-LEVELS[width][::-1], LEVELS[width]])
                y[:, c] = levels[code] * exp2(self.spread[c] + 64 * e[c])
            at += width
        return self.steps.restored(y, first)


def encode_tile(tile, bits, v, first):
    """(tile, rows), or None where it has to be raw."""
    if len(bits) < 16:
        return None
    codes, corrections, rows = b"", b"", []
    for t in range(0, len(bits), STRIP):
        made = tile.encode_strip(bits[t:t + STRIP], None if v is None else v[t:t + STRIP], first + t)
        codes, corrections = codes + made[0].tobytes(), corrections + made[1]
        rows += [t + int(i) for i in np.flatnonzero(made[2])]
    side = bits[rows].tobytes() + np.array(rows, "<u2").tobytes() + corrections
    data = padded(codes) + padded(side)
    return (data, len(rows)) if len(data) < len(padded(bits.tobytes())) else None


def decode_tile(tile, data, shape, count, first):
    tokens, dim = shape
    codes = np.frombuffer(data, np.uint8, tokens * tile.row_bytes).reshape(tokens, tile.row_bytes)
    offset = -(-codes.size // 16) * 16
    kept = np.frombuffer(data, bits_type(tile.dtype), count * dim, offset).reshape(count, dim)
    offset += kept.nbytes
    rows = np.frombuffer(data, "<u2", count, offset)
    offset += rows.nbytes
    nibbles = (dim + 1) // 2 if tile.corrected else 0
    out = []
    for t in range(0, tokens, STRIP):
        with np.errstate(over="ignore", invalid="ignore"):
            x = tile.decode_strip(codes[t:t + STRIP], data[offset:offset + nibbles], first + t)
        out.append(from_float(tile.dtype, x).reshape(x.shape))
        offset += nibbles
    out = np.concatenate(out)
    out[rows] = kept
    return out
