# SPDX-License-Identifier: Apache-2.0
"""Strips of the recipe `cairn`, from docs/recipes/cairn.md and docs/internals/formats/profile.md alone."""
import struct
from decimal import Decimal, getcontext

import numpy as np

import exact

F32 = np.float32
getcontext().prec = 60
FRACTION = np.array([float(Decimal(2) ** (Decimal(i) / 256)) for i in range(256)]).astype(F32)
SINE = [F32(x) for x in (-0.16666654611, 0.0083321608736, -0.00019515295891)]
COSINE = [F32(x) for x in (0.04166664568298827, -0.001388731625493765, 0.00002443315711809948)]
TO_RADIANS = F32(1.46291808e-9)
MAGNITUDE_MAX, CODE_MAX = F32(32752), F32(32767)
TURN = 2**64


def aligned(at):
    return at + -at % 16


class Profile:
    """Reads a good one."""

    def __init__(self, data):
        head = struct.unpack_from("<4sHHQBBBBHHIIHHH", data)
        magic, version, header, size, self.planes, self.rope, self.has_basis = head[:7]
        _, self.layers, self.heads, self.k_dim, self.v_dim, self.first, self.dims, rates = head[7:]
        assert (magic, version, header, size) == (b"CKVP", 1, 64, len(data))
        self.at, self.data = 64, data
        self.turns = [int(x) for x in self.take("<u8", self.dims // 2)]
        self.rates = {int(bits): int(multiplier) for bits, multiplier in self.take([("b", "<u2"), ("m", "<i2")], rates)}
        self.tables, self.offsets, self.channels = [], [], []
        for _ in range(self.planes):
            self.tables.append(self.take(np.uint8, (21, 16)).astype(int).tolist())
            self.offsets.append(self.take(np.int8, (21, 2)).astype(F32) / F32(256))
        for dim in [self.k_dim, self.v_dim][:self.planes]:
            kind = [("mean", "<f4"), ("step", "<i2"), ("spread", "<i2")]
            self.channels.append(self.take(kind, (self.layers, self.heads, dim)))
        if self.has_basis:
            shape = (self.layers, self.heads, self.k_dim)
            self.scale, self.inverse = self.take("<f4", shape), self.take("<f4", shape)
            self.vectors = self.take("<f2", (*shape, self.k_dim)).astype(F32)
        assert self.at == len(data)

    def take(self, kind, shape):
        out = np.frombuffer(self.data, kind, int(np.prod(shape)), self.at).reshape(shape)
        self.at = aligned(self.at + out.nbytes)
        return out

    def pairs(self):
        """Channels of the first and of the second members."""
        half = self.dims // 2
        if self.rope == 2:
            return self.first + 2 * np.arange(half), self.first + 2 * np.arange(half) + 1
        return self.first + np.arange(half), self.first + half + np.arange(half)

    def domain(self):
        return 2 if self.has_basis else int(self.rope != 0)


def exp2(log):
    log = np.asarray(log, np.int64)
    return np.ldexp(FRACTION[log % 256], (log // 256).astype(np.int32)).astype(F32)


def turning(profile, first, tokens):
    """Cosines and sines [tokens, pairs]."""
    phase = np.array([[turns * (first + t) % TURN for turns in profile.turns] for t in range(tokens)], object)
    quarter = (phase + TURN // 8) // (TURN // 4) % 4
    rest = (phase - quarter * (TURN // 4) + TURN // 2) % TURN - TURN // 2
    x = (rest // 2**32).astype(np.int64).astype(F32) * TO_RADIANS
    z = x * x
    sine = ((SINE[2] * z + SINE[1]) * z + SINE[0]) * z * x + x
    cosine = ((COSINE[2] * z + COSINE[1]) * z + COSINE[0]) * z * z - F32(0.5) * z + F32(1)
    quarter = quarter.astype(int)
    return (np.choose(quarter, [cosine, -sine, -cosine, sine]), np.choose(quarter, [sine, cosine, -sine, -cosine]))


class Tile:
    """What the coder knows of one (layer, head, plane) at one rate and level."""

    def __init__(self, profile, layer, head, plane, multiplier, level, dtype):
        self.profile, self.layer, self.head, self.plane, self.dtype = profile, layer, head, plane, dtype
        channels = profile.channels[plane][layer, head]
        self.level, self.dim = level, len(channels)
        log = channels["step"].astype(np.int64) + multiplier
        self.mean = channels["mean"]
        self.step = exp2(log) * F32(3**level)
        self.step_inverse = exp2(-log)
        ratio = channels["spread"].astype(np.int64) - log - 406 * level
        index = np.clip((ratio + 32) // 64 + 16, 0, 39)
        self.low_bits = np.maximum(0, (index - 17) // 4)
        shape = index - 4 * self.low_bits
        self.tables = [profile.tables[plane][i] for i in shape]
        self.offsets = np.where((self.low_bits == 0)[:, None], profile.offsets[plane][shape], F32(0))
        self.half = (1 << self.low_bits) >> 1
        self.turns = plane == 0 and profile.dims > 0
        self.basis = plane == 0 and profile.has_basis
        order = list(range(self.dim))
        if self.turns and not self.basis:
            order = [int(c) for pair in zip(*profile.pairs()) for c in pair]
            order += [c for c in range(self.dim) if c not in order]
        self.order = order
        self.likeliest = [table.index(max(table)) for table in self.tables]

    def forward(self, values, first):
        """y × inverse of elements [tokens, dim]."""
        return self.centred(values, first) * self.step_inverse

    def centred(self, values, first):
        """y of elements [tokens, dim]."""
        x = values.copy()
        if self.turns:
            cosine, sine = turning(self.profile, first, len(values))
            one, two = self.profile.pairs()
            a, b = values[:, one], values[:, two]
            x[:, one], x[:, two] = a * cosine + b * sine, b * cosine - a * sine
        x = x - self.mean
        if self.basis:
            where = self.layer, self.head
            scaled, vectors = x * self.profile.scale[where], self.profile.vectors[where]
            x = np.zeros_like(scaled)
            for c in range(self.dim):
                x += scaled[:, c:c + 1] * vectors[c]
        return x

    def back(self, codes, first):
        size = np.minimum(np.abs(codes), 3)
        padded = np.concatenate([np.zeros((self.dim, 1), F32), self.offsets, np.zeros((self.dim, 1), F32)], 1)
        off = np.take_along_axis(padded, size.T, 1).T * np.sign(codes).astype(F32)
        return self.restored((codes.astype(F32) + off) * self.step, first)

    def restored(self, y, first):
        """Elements of y."""
        x = y
        if self.basis:
            where = self.layer, self.head
            vectors = self.profile.vectors[where]
            x = np.zeros_like(y)
            for j in range(self.dim):
                x += y[:, j:j + 1] * vectors[:, j]
            x = x * self.profile.inverse[where]
        x = x + self.mean
        if self.turns:
            cosine, sine = turning(self.profile, first, len(y))
            one, two = self.profile.pairs()
            a, b = x[:, one], x[:, two]
            x[:, one], x[:, two] = a * cosine - b * sine, a * sine + b * cosine
        return x


def uncodable(values):
    with np.errstate(invalid="ignore"):
        return ~(np.abs(values) <= MAGNITUDE_MAX).all(1)


def small_rows(v):
    """The two tokens of a strip of V at most that are rows for their norm."""
    padded = np.concatenate([v, np.zeros((len(v), -v.shape[1] % 16), F32)], 1)
    with np.errstate(invalid="ignore", over="ignore"):
        squares = padded * padded
    sums = np.zeros((len(v), 16), F32)
    bad = uncodable(v)
    squares[bad] = 0
    for c in range(0, padded.shape[1], 16):
        sums = sums + squares[:, c:c + 16]
    for width in (8, 4, 2, 1):
        sums = sums[:, :width] + sums[:, width:]
    norm = sums[:, 0].copy()
    norm[bad] = np.inf
    rank = np.argsort(norm, kind="stable")
    limit = F32(0.16) * norm[rank[len(v) // 2]]
    out = np.zeros(len(v), bool)
    out[[t for t in rank[:2] if norm[t] < limit]] = True
    return out


def rows_of(tile, values, v, first, positions):
    rows = uncodable(values)
    if v is not None:
        rows |= small_rows(v)
    rows[0] |= first == 0
    with np.errstate(invalid="ignore"):
        return rows | ~(np.abs(positions) <= CODE_MAX).all(1)


def strip_raw(bits):
    return exact.padded(bytes(16) + bits.tobytes())


def encode_strip(tile, bits, values, v, first):
    """bits and values of the tile's tokens, v: of V's, where there is one."""
    tokens, dim = bits.shape
    with np.errstate(invalid="ignore", over="ignore"):
        positions = tile.forward(values, first)
    rows = rows_of(tile, values, v, first, positions)
    positions[rows] = 0
    finest = np.rint(positions).astype(np.int64)
    scale = 3**tile.level
    codes = np.sign(finest) * ((np.abs(finest) + scale // 2) // scale)
    return assemble_strip(tile, bits, rows, codes)


def assemble_strip(tile, bits, rows, codes):
    tokens, dim = bits.shape
    groups = -(-tokens // 32)
    high = (codes + tile.half) >> tile.low_bits
    low = (codes + tile.half) & ((1 << tile.low_bits) - 1)
    symbols, escapes, planes, tables = [], [], b"", []
    for c in tile.order:
        table, row = tile.tables[c], []
        for t in range(tokens):
            s = int(high[t, c]) + 7
            if rows[t]:
                s = tile.likeliest[c]
            elif not (0 <= s <= 14 and table[s] > 0):
                s = 15
                escapes.append(int(codes[t, c]))
                low[t, c] = 0
            row.append(s)
        low[rows, c] = 0
        symbols.append(row + [tile.likeliest[c]] * (32 * groups - tokens))
        tables.append(table)
        for z in range(tile.low_bits[c]):
            plane = np.zeros(32 * groups, np.uint8)
            plane[:tokens] = low[:, c] >> z & 1
            planes += np.packbits(plane, bitorder="little").tobytes()
    stream = exact.encode_stream(symbols, tables)
    where = np.flatnonzero(rows)
    coded = struct.pack("<BBHIII", 1, len(where), int(tile.low_bits.sum()), len(stream), len(escapes), 0)
    coded += planes + bits[where].tobytes() + struct.pack(f"<{len(escapes)}h", *escapes)
    coded = exact.padded(coded + where.astype(np.uint8).tobytes() + stream)
    return (coded, len(where)) if len(coded) < len(strip_raw(bits)) else (strip_raw(bits), 0)


def parts_of_strip(tile, data, tokens):
    """Row bits, their tokens, and the codes [tokens, dim] of a strip of mode 1; the bytes it takes."""
    kind = np.dtype(f"<u{exact.ITEM[tile.dtype]}")
    mode, count, planes, n, e, zero = struct.unpack_from("<BBHIII", data)
    groups = -(-tokens // 32)
    assert mode == 1 and zero == 0 and planes == tile.low_bits.sum()
    low = np.frombuffer(data, np.uint8, 4 * groups * planes, 16).reshape(planes, -1)
    low = np.unpackbits(low, axis=1, bitorder="little").astype(np.int64)
    at = 16 + 4 * groups * planes
    kept = np.frombuffer(data, kind, count * tile.dim, at).reshape(count, tile.dim)
    at += kept.nbytes
    escapes = iter(struct.unpack_from(f"<{e}h", data, at))
    at += 2 * e
    where = np.frombuffer(data, np.uint8, count, at)
    at += count
    symbols = exact.decode_stream(data[at:at + n], [tile.tables[c] for c in tile.order], 32 * groups)
    codes, plane = np.zeros((tokens, tile.dim), np.int64), 0
    for c, row in zip(tile.order, symbols):
        s = int(tile.low_bits[c])
        u = sum((low[plane + z] << z for z in range(s)), np.zeros(32 * groups, np.int64))
        plane += s
        for t in range(tokens):
            if t not in where:
                codes[t, c] = next(escapes) if row[t] == 15 else ((row[t] - 7) << s) + u[t] - tile.half[c]
    assert next(escapes, None) is None
    return kept, where, codes, aligned(at + n)


def raw_strip_bytes(tile, tokens):
    return 16 + aligned(tokens * tile.dim * exact.ITEM[tile.dtype])


def codes_of_strip(tile, data, tokens):
    """Codes and rows, None of a raw strip; and the bytes that the strip takes."""
    if data[0] == 0:
        return None, None, raw_strip_bytes(tile, tokens)
    _, where, codes, taken = parts_of_strip(tile, data, tokens)
    rows = np.zeros(tokens, bool)
    rows[where] = True
    return codes, rows, taken


def decode_strip(tile, data, tokens, first, from_float):
    """Elements, and the bytes that the strip takes."""
    if data[0] == 0:
        kind = np.dtype(f"<u{exact.ITEM[tile.dtype]}")
        bits = np.frombuffer(data, kind, tokens * tile.dim, 16).reshape(tokens, tile.dim)
        return bits, raw_strip_bytes(tile, tokens)
    kept, where, codes, taken = parts_of_strip(tile, data, tokens)
    out = from_float(tile.dtype, tile.back(codes, first)).reshape(codes.shape).copy()
    out[where] = kept
    return out, taken
