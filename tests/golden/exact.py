# SPDX-License-Identifier: Apache-2.0
"""Strips of the recipes `exact` and `exact:fast`, from docs/recipes/exact.md alone."""
import math
import pathlib
import re
import struct

import numpy as np

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "recipes" / "exact.md"


def read_tables():
    """The tables of the page."""
    text = PAGE.read_text().split("<!-- tables -->")[1].split("<!-- end -->")[0]
    found = {int(m[1]): [int(x) for x in m[2].split()] for m in re.finditer(r"(\d+):((?:\s+\d+){16}(?!\d*:))", text)}
    assert sorted(found) == list(range(16)) and all(sum(f) == 256 and f[15] > 0 for f in found.values())
    return [found[i] for i in range(16)]


TABLES = read_tables()
PRICES = [[240 if s == 15 or f == 0 else round(15 * math.log2(256 / f)) for s, f in enumerate(table)] for table in TABLES]


E4M3, E5M2 = 5, 6
WIDTHS = {1: (8, 7), 2: (5, 10), 3: (8, 23), E4M3: (4, 3), E5M2: (5, 2)}  # bits of exponent and mantissa
ITEM = {1: 2, 2: 2, 3: 4, E4M3: 1, E5M2: 1}


def split(dtype, bits):
    """Exponent, plane byte and low bits of elements."""
    bits = bits.astype(np.int64)
    width, mantissa = WIDTHS[dtype]
    sign = bits >> (width + mantissa)
    exponent = (bits >> mantissa) & (2**width - 1)
    if mantissa < 7:
        return exponent, np.zeros_like(bits), sign << mantissa | bits & (2**mantissa - 1)
    low = bits & (2 ** (mantissa - 7) - 1)
    return exponent, sign << 7 | (bits >> (mantissa - 7)) & 127, low


def join(dtype, exponent, plane, low):
    width, mantissa = WIDTHS[dtype]
    exponent = exponent & (2**width - 1)
    if mantissa < 7:
        return (low >> mantissa) << (width + mantissa) | exponent << mantissa | low & (2**mantissa - 1)
    return (plane >> 7) << (width + mantissa) | exponent << mantissa | (plane & 127) << (mantissa - 7) | low


def runs_of(codes):
    """Codes of three bits in runs of 64."""
    codes = np.concatenate([codes, np.zeros(-len(codes) % 64, np.int64)]).reshape(-1, 64)
    words = [np.packbits((codes >> w & 1).astype(np.uint8), axis=1, bitorder="little") for w in range(3)]
    return np.stack(words, axis=1).tobytes()


def codes_of(runs, count):
    words = np.frombuffer(runs, np.uint8).reshape(-1, 3, 8)
    bits = np.unpackbits(words, axis=2, bitorder="little").astype(np.int64)
    return (bits[:, 0] | bits[:, 1] << 1 | bits[:, 2] << 2).reshape(-1)[:count]


def nibbles_of(codes):
    """Codes of four bits in runs of 32: those of a run's first half are low nibbles."""
    codes = np.concatenate([codes, np.zeros(-len(codes) % 32, np.int64)]).reshape(-1, 2, 16)
    return (codes[:, 0] | codes[:, 1] << 4).astype(np.uint8).tobytes()


def from_nibbles(runs, count):
    both = np.frombuffer(runs, np.uint8).reshape(-1, 1, 16).astype(np.int64)
    return np.concatenate([both & 15, both >> 4], axis=1).reshape(-1)[:count]


def padded(data):
    return data + bytes(-len(data) % 16)


# ---- The coder ----


def starts(table):
    return [sum(table[:s]) for s in range(16)]


def encode_stream(symbols, tables):
    """symbols [channel][token], tables a channel."""
    states, out = [256] * 32, []
    for c in reversed(range(len(symbols))):
        table, start = tables[c], starts(tables[c])
        for token in reversed(range(len(symbols[c]))):
            lane, s = token % 32, symbols[c][token]
            x = states[lane]
            if x >= 256 * table[s]:
                out.append(x % 256)
                x //= 256
            states[lane] = 256 * (x // table[s]) + start[s] + x % table[s]
    return struct.pack("<32H", *states) + bytes(reversed(out))


def decode_stream(stream, tables, tokens):
    states, at, out = list(struct.unpack_from("<32H", stream)), 64, []
    for table in tables:
        start = starts(table)
        symbol_of = [s for s in range(16) for _ in range(table[s])]
        row = []
        for token in range(tokens):
            x = states[token % 32]
            s = symbol_of[x % 256]
            x = table[s] * (x // 256) + x % 256 - start[s]
            if x < 256:
                x = 256 * x + stream[at]
                at += 1
            states[token % 32] = x
            row.append(s)
        out.append(row)
    assert at == len(stream) and states == [256] * 32
    return out


# ---- Choices ----


def sample(exponents):
    """Mean (0: dead) and counts of one channel."""
    taken = exponents if len(exponents) <= 64 else exponents[::2]
    total, nonzero = int(taken.sum()), int((taken != 0).sum())
    mean = 0 if 2 * nonzero < len(taken) else (2 * total + nonzero) // (2 * nonzero)
    where = (mean + 4 - taken) % 256
    return mean, [int((where == i).sum()) for i in range(12)]


def price(counts, table, above):
    indices = [i + above - 4 for i in range(12)]
    return sum(n * (PRICES[table][s] if 0 <= s <= 14 else 240) for n, s in zip(counts, indices))


def cheapest(counts, aboves):
    return min(((price(counts, table, above), table, above) for table in range(16) for above in aboves))[1:]


def choose(exponents, coder):
    """top, par and each channel's top."""
    tokens, dim = exponents.shape
    samples = [sample(exponents[:, c]) for c in range(dim)]
    picks = []
    for mean, counts in samples:
        if coder:
            table, above = cheapest(counts, [3, 4])
        else:
            sums = [sum(counts[4 - a:11 - a]) for a in (4, 3, 2, 1, 0)]
            table, above = 0, 4 - sums.index(max(sums))
        picks.append((table, min(mean + above, 255)))
    top = max([pick[1] for pick, (mean, _) in zip(picks, samples) if mean > 0], default=0)
    par, tops = [], []
    for (table, channel_top), (mean, counts) in zip(picks, samples):
        rel = top - channel_top
        if mean == 0:
            table, rel = 0, 15
        elif rel > 14:
            rel = 14
            if coder:
                table = cheapest(counts, [top - rel - mean])[0]
        par.append(table << 4 | rel)
        tops.append(3 if rel == 15 else top - rel)
    return top, bytes(par), np.array(tops)


# ---- Strips ----


def rest_of(dtype, plane, low):
    data = b"" if dtype in (E4M3, E5M2) else plane.astype(np.uint8).tobytes()
    if dtype in (2, E5M2):
        data += runs_of(low)
    if dtype == E4M3:
        data += nibbles_of(low)
    if dtype == 3:
        data += low.astype("<u2").tobytes()
    return data


def strip_raw(bits):
    return padded(bytes(16) + bits.tobytes())


def strip_planes(dtype, bits):
    exponent, plane, low = split(dtype, bits)
    top, par, tops = choose(exponent, coder=False)
    distance = ((tops - exponent) % 256).reshape(-1)
    escaped = [int(d) for d in distance if d >= 7]
    nibbles = [d - 7 if d <= 17 else 266 - d if d >= 252 else 15 for d in escaped]
    raws = bytes(d for d, n in zip(escaped, nibbles) if n == 15)
    pairs = nibbles + [0] * (len(nibbles) % 2)
    packed = bytes(a | b << 4 for a, b in zip(pairs[::2], pairs[1::2]))
    head = struct.pack("<BBHIII", 1, top, 0, 0, len(nibbles), len(raws))
    coded = padded(head + par + runs_of(np.minimum(distance, 7)) + packed + raws)
    return padded(coded + rest_of(dtype, plane.reshape(-1), low.reshape(-1)))


def strip_lanes32(dtype, bits):
    tokens, dim = bits.shape
    exponent, plane, low = split(dtype, bits)
    top, par, tops = choose(exponent, coder=True)
    tables, symbols, escapes = [], [], []
    for c in range(dim):
        table = TABLES[par[c] >> 4]
        row = []
        for e in exponent[:, c]:
            s = int(tops[c] - e)
            if not (0 <= s <= 14 and table[s] > 0):
                s = 15
                escapes.append(int(e))
            row.append(s)
        symbols.append(row + [table.index(max(table))] * (-tokens % 32))
        tables.append(table)
    stream = encode_stream(symbols, tables)
    head = struct.pack("<BBHIII", 2, top, 0, len(stream), len(escapes), 0)
    coded = padded(head + par + stream + bytes(escapes))
    return padded(coded + rest_of(dtype, plane.reshape(-1), low.reshape(-1)))


def strip(dtype, bits, fast):
    best = strip_raw(bits)
    if not fast and bits.size >= (512 if dtype in (E4M3, E5M2) else 256):
        best = min(best, strip_lanes32(dtype, bits), key=len)
    if fast or len(bits) < 64:
        planes = strip_planes(dtype, bits)
        if len(planes) < len(strip_raw(bits)) and len(planes) <= len(best):
            best = planes
    return best


def encode_tile(dtype, bits, fast):
    """None where raw is not larger."""
    strips = b"".join(strip(dtype, bits[t:t + 128], fast) for t in range(0, len(bits), 128))
    return strips if len(strips) < len(padded(bits.tobytes())) else None


def decode_strip(dtype, data, shape):
    """Elements, and the bytes that the strip takes."""
    tokens, dim = shape
    count, item = tokens * dim, ITEM[dtype]
    kind = np.dtype(f"<u{item}")
    mode, top, _, n, e, r = struct.unpack_from("<BBHIII", data)
    if mode == 0:
        return np.frombuffer(data, kind, count, 16).reshape(shape), 16 + -(-count * item // 16) * 16
    par, at = data[16:16 + dim], 16 + dim
    tops = np.array([3 if p & 15 == 15 else top - (p & 15) for p in par])
    if mode == 1:
        runs = -(-count // 64) * 24
        distance = codes_of(data[at:at + runs], count)
        at += runs
        nibbles = [data[at + i // 2] >> (4 * (i % 2)) & 15 for i in range(e)]
        raws = iter(data[at + (e + 1) // 2:at + (e + 1) // 2 + r])
        at += (e + 1) // 2 + r
        distance[distance == 7] = [7 + x if x <= 10 else next(raws) if x == 15 else 266 - x for x in nibbles]
        exponent = (tops - distance.reshape(shape)) % 256
    else:
        tables = [TABLES[p >> 4] for p in par]
        symbols = decode_stream(data[at:at + n], tables, tokens + -tokens % 32)
        escapes = iter(data[at + n:at + n + e])
        at += n + e
        exponent = np.array([[next(escapes) if s == 15 else (tops[c] - s) % 256 for s in symbols[c][:tokens]]
                             for c in range(dim)]).T
    at += -at % 16
    plane = np.zeros(shape, np.int64)
    if dtype not in (E4M3, E5M2):
        plane = np.frombuffer(data, np.uint8, count, at).astype(np.int64).reshape(shape)
        at += count
    low = np.zeros(shape, np.int64)
    if dtype == E4M3:
        runs = -(-count // 32) * 16
        low = from_nibbles(data[at:at + runs], count).reshape(shape)
        at += runs
    if dtype in (2, E5M2):
        runs = -(-count // 64) * 24
        low = codes_of(data[at:at + runs], count).reshape(shape)
        at += runs
    if dtype == 3:
        low = np.frombuffer(data, "<u2", count, at).astype(np.int64).reshape(shape)
        at += 2 * count
    return join(dtype, exponent, plane, low).astype(kind), at + -at % 16


def decode_tile(dtype, data, shape):
    tokens, dim = shape
    out, at = [], 0
    for first in range(0, tokens, 128):
        bits, taken = decode_strip(dtype, data[at:], (min(128, tokens - first), dim))
        out.append(bits)
        at += taken
    assert at == len(data)
    return np.concatenate(out)
