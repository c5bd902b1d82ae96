# SPDX-License-Identifier: Apache-2.0
"""Banks, and the tiles of the recipe patternkv: from docs/recipes/patternkv.md and docs/internals/formats/bank.md alone."""
import struct

import numpy as np

import generate
from sources import noise

F32 = np.float32
LEVEL = F32(2.1644348)  # 4 z^2 / 5


class Bank:
    def __init__(self, layers, heads, patterns, k_dim, v_dim):
        self.layers, self.heads, self.count = layers, heads, patterns
        self.planes = []
        dims = [k_dim, v_dim] if v_dim else [k_dim]
        for plane, dim in enumerate(dims):
            values = noise(40 + plane, (layers, heads, patterns, dim)) * (1 + np.arange(dim) % 7)
            if plane == 0:
                values += (np.arange(dim) % 5 - 2) * 4
            self.planes.append(values.astype(np.float16))
        body = b"".join(generate.padded(values.tobytes()) for values in self.planes)
        self.data = struct.pack("<4sHHQBxHHHII32x", b"CKVB", 1, 64, 64 + len(body), len(dims), patterns, layers, heads,
                                k_dim, v_dim) + body

    def of(self, plane, layer, head):
        return self.planes[plane][layer, head].astype(F32)


def sum_of_16(terms):
    """Sixteen sums of every sixteenth term, added in halves."""
    sums = np.zeros(16, F32)
    for channel, term in enumerate(terms):
        sums[channel % 16] += term
    for width in (8, 4, 2, 1):
        sums[:width] += sums[width:2 * width]
    return sums[0]


def spread(values):
    return F32(values.max() - values.min())


def pays(values, left):
    gain, total = F32(0), F32(0)
    for first in range(0, values.size, generate.V_GROUP):
        part = slice(first, first + generate.V_GROUP)
        raw, flat, g = spread(values[part]), spread(left[part]), F32(values[part].size)
        raw2, flat2 = raw * raw, flat * flat
        gain = F32(gain + g * (raw2 - flat2))
        total = F32(total + g * (raw2 * raw2 + flat2 * flat2))
    return gain > 0 and gain * gain >= LEVEL * total


def choose(values, patterns, nearest):
    """The number of the pattern that a token takes."""
    left = values - patterns
    costs = [sum_of_16(row * row) for row in left] if nearest else [spread(row) for row in left]
    return costs.index(min(costs))


def packed_bits(numbers, bits):
    """Numbers of so many bits, one after another, filled up with zeros to bytes."""
    stream = [(n >> i) & 1 for n in numbers for i in range(bits)]
    stream += [0] * (-len(stream) % 8)
    return np.packbits(np.array(stream, np.uint8), bitorder="little").tobytes()


def index_bits(count):
    return (count - 1).bit_length()


def encode_tile(bits_of, dtype, plane, bits, patterns, nearest):
    """(tile, rows), or None where it has to be raw."""
    tokens = bits_of.shape[0]
    with np.errstate(invalid="ignore", over="ignore"):
        values = generate.to_float(dtype, bits_of).copy()
        is_row = ~(np.abs(values) <= 32752).all(axis=1)
        numbers, gates = [0] * tokens, [0] * tokens
        for t in range(tokens):
            if is_row[t]:
                continue
            number = choose(values[t], patterns, nearest)
            left = values[t] - patterns[number]
            if plane == 1 and not pays(values[t], left):
                continue
            if not (np.abs(left) <= 32752).all():
                is_row[t] = True
                continue
            values[t], numbers[t], gates[t] = left, number, 1

    def side(rows):
        for t in rows:
            numbers[t] = gates[t] = 0
        return packed_bits(numbers, index_bits(len(patterns))) + (packed_bits(gates, 1) if plane == 1 else b"")

    return generate.affine_tile(bits_of, dtype, plane == 0, bits, False, 1, np.flatnonzero(is_row), values=values, tail=side)


def decode_tile(data, shape, dtype, plane, bits, rows, patterns):
    tokens, dim = shape
    item = generate.DTYPE_BYTES[dtype]
    groups = -(-tokens // generate.K_GROUP) * dim if plane == 0 else tokens * -(-dim // generate.V_GROUP)
    end = -(-tokens * ((dim * bits + 7) // 8) // 16) * 16 + 4 * groups + rows * (dim * item + 2)
    width = index_bits(len(patterns))
    index_end = end + -(-tokens * width // 8)
    stream = np.unpackbits(np.frombuffer(data, np.uint8)[end:index_end], bitorder="little")
    numbers = [sum(int(stream[t * width + i]) << i for i in range(width)) for t in range(tokens)]
    gates = [1] * tokens
    if plane == 1:
        gates = np.unpackbits(np.frombuffer(data, np.uint8)[index_end:], bitorder="little")[:tokens]
    add = np.array([patterns[n] if gate else np.zeros(dim, F32) for n, gate in zip(numbers, gates)], F32)
    return generate.decode_affine(data, shape, dtype, plane == 0, bits, rows, add=add, taken=np.array(gates, bool))
