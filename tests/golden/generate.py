#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of image format 1, by a second implementation.

Written with numpy from docs/internals/formats/image.md and docs/recipes/ alone, never from the C++. Slow and plain.

  generate.py            writes tests/golden/image/
  generate.py --check    compares what it would write with what is there; exits 1 on any difference, 77 without numpy

image/manifest.txt holds, one a line, all fields separated by blanks:

  source NAME kind dtype layers heads tokens k_dim v_dim first_position bytes crc32c     (bits in image/NAME.bin)
  image RECIPE bytes crc32c decoded_crc32c      of the source above; the bytes of some are kept in image/NAME.RECIPE.img
  demote FROM TO bytes crc32c                   of the source above encoded FROM and demoted

All images have space 00..1f, key 20..3f, group 3, layer first 2, head first 1, domain 0.
"""
import pathlib
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("numpy is not installed: golden vectors not regenerated")
    sys.exit(77)

import exact
from sources import SOURCES, BYTES, FP8, KV, LATENT, fp8_values, to_bits

FOLDER = pathlib.Path(__file__).parent / "image"
RECIPES = ["raw", "kivi:8", "kivi:4", "kivi:2", "kivi:8+", "kivi:4+", "kivi:2+", "exact", "exact:fast"]
DEMOTIONS = [("raw", "kivi:4"), ("exact", "kivi:2+"), ("exact:fast", "exact"), ("raw", "exact:fast"), ("kivi:8", "kivi:4"),
             ("kivi:8", "kivi:2"), ("kivi:4", "kivi:2"), ("kivi:8+", "kivi:4+"), ("kivi:8+", "kivi:2+"), ("kivi:4+", "kivi:2+")]
KEPT = {"typical-bf16", "odd-fp32", "state-bytes", "eight_odd-e4m3", "eight_odd-e5m2"}  # sources whose images are kept whole
F32 = np.float32
DTYPE_BYTES = {1: 2, 2: 2, 3: 4, 4: 1, 5: 1, 6: 1}
K_GROUP, V_GROUP = 128, 64
INSETS = {8: [0.0], 4: [0.0, 0.025, 0.05], 2: [0.0, 0.05, 0.1]}
INSETS_OF_CHANNELS = INSETS | {2: [0.0, 0.05, 0.1, 0.15, 0.19]}
HEADER, ENTRY = 320, 16

# ---- CRC32C ----

TABLE = []
for i in range(256):
    for _ in range(8):
        i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
    TABLE.append(i)


# Of two bytes, the first in the low half: in Python the loop takes most of the time.
PAIRS = [TABLE[(TABLE[i & 255] ^ i >> 8) & 255] ^ TABLE[i & 255] >> 8 for i in range(1 << 16)]


def crc32c(data):
    crc = 0xFFFFFFFF
    for (pair,) in struct.iter_unpack("<H", data[: len(data) & ~1]):
        crc = PAIRS[(crc ^ pair) & 0xFFFF] ^ crc >> 16
    for byte in data[len(data) & ~1 :]:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# ---- Numbers ----


def to_float(dtype, bits):
    if dtype in FP8:
        values = fp8_values(dtype)[0].astype(F32)[bits & 0x7F]
        return np.where(bits & 0x80, -values, values)
    if dtype == 1:
        return (bits.astype(np.uint32) << 16).view(F32)
    if dtype == 2:
        return bits.view(np.float16).astype(F32)
    return bits.view(F32)


def from_float(dtype, values):
    """To nearest even. The values are finite."""
    values = np.ascontiguousarray(values, F32)
    if dtype in FP8:
        return to_bits(dtype, values)
    if dtype == 1:
        bits = values.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if dtype == 2:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    return values.view(np.uint32)


def bits_type(dtype):
    return {1: np.uint16, 2: np.uint16, 3: np.uint32, 4: np.uint8, 5: np.uint8, 6: np.uint8}[dtype]


def fp16_outward(value, upward):
    """The fp16 next to an fp32 in a direction, as a numpy float16."""
    near = np.float16(value)
    if upward and F32(near) < value:
        near = np.nextafter(near, np.float16(np.inf))
    if not upward and F32(near) > value:
        near = np.nextafter(near, np.float16(-np.inf))
    return near


# ---- kivi ----


def params_of(low, high, inset):
    cut = F32(F32(high - low) * F32(inset))
    minimum = fp16_outward(F32(low + cut), upward=False)
    if minimum == 0:
        minimum = np.float16(0.0)
    spread = fp16_outward(F32(F32(high - cut) - F32(minimum)), upward=True)
    return minimum, spread if spread != 0 else np.float16(0.0)


def positions_of(values, minimum, spread, levels):
    inverse = F32(levels) / F32(spread) if spread > 0 else F32(0)
    return (values - F32(minimum)) * inverse


def clip_error(values, params, covering, levels):
    minimum, spread = params
    position = positions_of(values, minimum, spread, levels)
    nearest = np.rint(np.clip(position, F32(0), F32(levels)))
    if covering == 0:
        return 0
    weight = F32(F32(F32(spread) * F32(4096)) / F32(F32(levels) * F32(covering)))
    distance = np.rint((position - nearest) * weight).astype(np.int64)
    return int((distance * distance).sum())


def narrow(codes8, bits):
    if bits == 8:
        return codes8
    codes4 = (codes8 + 8) // 17
    return codes4 if bits == 4 else (codes4 + 2) // 5


def code_group(values, bits, insets=(0.0,)):
    """min, range and codes of the values of one group; None for an inexact constant."""
    if values.size == 0:
        return np.float16(0), np.float16(0), np.zeros(0, np.int64)
    low, high = F32(values.min() + F32(0)), F32(values.max() + F32(0))
    if low == high and F32(np.float16(low)) != low:
        return None
    levels = 2 ** bits - 1
    candidates = [params_of(low, high, h) for h in insets]
    errors = [clip_error(values, c, candidates[0][1], levels) for c in candidates]
    minimum, spread = candidates[errors.index(min(errors))]
    position = positions_of(values, minimum, spread, 255)
    codes8 = np.rint(np.clip(position, F32(0), F32(255))).astype(np.int64)
    return minimum, spread, narrow(codes8, bits)


def pack(codes, bits):
    tokens, dim = codes.shape
    spread = np.zeros((tokens, (dim * bits + 7) // 8 * 8), np.uint8)
    for bit in range(bits):
        spread[:, bit:dim * bits:bits] = (codes >> bit) & 1
    return np.packbits(spread, axis=1, bitorder="little")


def unpack(packed, dim, bits):
    spread = np.unpackbits(packed, axis=1, bitorder="little")
    return sum(spread[:, bit:dim * bits:bits].astype(np.int64) << bit for bit in range(bits))


def padded(data):
    return data + bytes(-len(data) % 16)


def affine_tile(bits_of, dtype, per_channel, bits, clipped, first_position, chosen=(), pool=b"", v_group=V_GROUP,
                values=None, scores=b"", tail=None):
    """(tile, rows) in affine form, or None where it has to be raw.

    chosen: tokens that are rows. pool: ott's. scores: arkv's. values: what is coded, where not what the bits say. tail: of rows, the last parts.
    """
    tokens, dim = bits_of.shape
    with np.errstate(invalid="ignore"):
        if values is None:
            values = to_float(dtype, bits_of)
        is_row = ~(np.abs(values) <= 32752).all(axis=1)
    insets = (INSETS_OF_CHANNELS if per_channel else INSETS)[bits] if clipped else (0.0,)
    if clipped and first_position == 0:
        is_row[0] = True
    is_row[list(chosen)] = True
    codes = np.zeros((tokens, dim), np.int64)
    params = []
    if per_channel:
        for first in range(0, tokens, K_GROUP):
            kept = [t for t in range(first, min(first + K_GROUP, tokens)) if not is_row[t]]
            for channel in range(dim):
                group = code_group(values[kept, channel], bits, insets)
                if group is None:
                    return None
                params.append(group[:2])
                codes[kept, channel] = group[2]
    else:
        for token in range(tokens):
            spans = [slice(c, min(c + v_group, dim)) for c in range(0, dim, v_group)]
            groups = [None if is_row[token] else code_group(values[token, s], bits, insets) for s in spans]
            if any(group is None for group in groups):
                is_row[token] = True
                params += [(np.float16(0), np.float16(0))] * len(spans)
                continue
            for s, group in zip(spans, groups):
                params.append(group[:2])
                codes[token, s] = group[2]
    rows = np.flatnonzero(is_row)
    side = np.array(params, np.float16).tobytes() + pool + bits_of[rows].tobytes() + scores + rows.astype("<u2").tobytes()
    side += tail(rows) if tail else b""
    tile = padded(pack(codes, bits).tobytes()) + padded(side)
    return (tile, len(rows)) if len(tile) < len(padded(bits_of.tobytes())) else None


def decode_affine(tile, shape, dtype, per_channel, bits, rows, pool_bytes=0, v_group=V_GROUP, add=None, taken=None,
                  scores_bytes=0):
    """add: what is added to the tokens that taken says."""
    tokens, dim = shape
    row_bytes = (dim * bits + 7) // 8
    packed = np.frombuffer(tile, np.uint8, tokens * row_bytes).reshape(tokens, row_bytes)
    codes = unpack(packed, dim, bits)
    along, across, group = (tokens, dim, K_GROUP) if per_channel else (dim, tokens, v_group)
    count = -(-along // group)
    offset = -(-tokens * row_bytes // 16) * 16
    params = np.frombuffer(tile, np.float16, 2 * count * across, offset).astype(F32)
    minimum, spread = params[0::2], params[1::2]
    if per_channel:  # [group, channel]
        index = (np.arange(tokens) // group)[:, None] * dim + np.arange(dim)
    else:  # [token, group]
        index = np.arange(tokens)[:, None] * count + np.arange(dim) // group
    step = spread / F32(2 ** bits - 1)
    values = codes.astype(F32) * step[index] + minimum[index]
    if add is not None:
        values = np.where(taken[:, None], values + add, values)
    out = from_float(dtype, values).reshape(shape)
    offset += 4 * count * across + pool_bytes
    item = np.dtype(out.dtype).itemsize
    kept = np.frombuffer(tile, out.dtype, rows * dim, offset).reshape(rows, dim)
    positions = np.frombuffer(tile, "<u2", rows, offset + rows * dim * item + scores_bytes)
    out[positions] = kept
    return out


# ---- Images ----


class Spec:
    def __init__(self, source, recipe):
        self.source = source
        self.recipe = recipe
        self.is_kivi = recipe.startswith("kivi")
        self.is_exact = recipe.startswith("exact")
        self.is_fast = recipe == "exact:fast"
        self.bits = int(recipe[5]) if self.is_kivi else 16
        self.clipped = recipe.endswith("+")

    def planes(self):
        s = self.source
        return [(s.k_dim, True), (s.v_dim, False)] if s.kind == KV else [(s.k_dim, True)]

    def recipe_bytes(self):
        """The header from 128 on."""
        groups = (K_GROUP, V_GROUP) if self.is_kivi else (0, 0)
        return struct.pack("<BBBxHHB23x", 3 if self.is_exact else 2 if self.is_kivi else 1, self.bits,
                           int(self.clipped) | int(self.is_fast) << 1, *groups, int(self.is_exact))


def tiles_of(spec):
    """Bits of the source's tiles, in order, with whether groups are channels."""
    s, offset = spec.source, 0
    rows = 1 if s.kind == 3 else s.tokens
    dtype = bits_type(s.dtype)
    for _ in range(s.layers * s.heads):
        for dim, per_channel in spec.planes():
            bits = np.frombuffer(s.data, dtype, rows * dim, offset).reshape(rows, dim)
            offset += bits.nbytes
            yield bits, per_channel
    assert offset == len(s.data)


def assemble(spec, tiles):
    """tiles: (bytes, rows, form) in order."""
    s = spec.source
    offset, directory, content = HEADER + ENTRY * len(tiles), b"", b""
    for data, rows, form in tiles:
        directory += struct.pack("<IIIHH", offset // 16, len(data), crc32c(data), rows, form)
        content += data
        offset += len(data)
    header = struct.pack("<4sHHIIQIHBB", b"CKVI", 1, HEADER, 0, 0, offset, len(tiles), 3, s.kind, s.dtype)
    header += bytes(range(64))
    header += struct.pack("<QHHHHHBBII4x", s.first_position, s.tokens, 2, s.layers, 1, s.heads, 0, 0, s.k_dim, s.v_dim)
    header += spec.recipe_bytes()
    header += bytes(HEADER - len(header))
    crc = crc32c(header + directory)
    return header[:12] + struct.pack("<I", crc) + header[16:] + directory + content


def encode(spec):
    tiles = []
    for bits, per_channel in tiles_of(spec):
        coded = None
        if spec.is_exact and spec.source.dtype != BYTES:
            strips = exact.encode_tile(spec.source.dtype, bits, spec.is_fast)
            tiles.append((padded(bits.tobytes()), 0, 0) if strips is None else (strips, 0, 2))
            continue
        if spec.is_kivi and spec.source.dtype != BYTES:
            coded = affine_tile(bits, spec.source.dtype, per_channel, spec.bits, spec.clipped,
                                spec.source.first_position)
        if coded is None:
            tiles.append((padded(bits.tobytes()), 0, 0))
        else:
            tiles.append((*coded, 1 | spec.bits << 8))
    return tiles


def decode(spec, tiles):
    out = b""
    for (data, rows, form), (bits, per_channel) in zip(tiles, tiles_of(spec)):
        if form == 0:
            out += data[:bits.nbytes]
        elif form == 2:
            out += exact.decode_tile(spec.source.dtype, data, bits.shape).tobytes()
        else:
            out += decode_affine(data, bits.shape, spec.source.dtype, per_channel, spec.bits, rows).tobytes()
    return out


def demote(spec, tiles, to):
    """Tiles of `spec` as the recipe of `to`, which nests in it."""
    out = []
    fresh = encode(to)
    for i, ((data, rows, form), (bits, _)) in enumerate(zip(tiles, tiles_of(spec))):
        if form in (0, 2):
            out.append(fresh[i])
            continue
        tokens, dim = bits.shape
        row_bytes = (dim * spec.bits + 7) // 8
        codes = unpack(np.frombuffer(data, np.uint8, tokens * row_bytes).reshape(tokens, row_bytes), dim, spec.bits)
        codes = narrow(codes, to.bits) if spec.bits == 8 else (codes + 2) // 5
        side = data[-(-tokens * row_bytes // 16) * 16:]
        # The side section is padded to the same length: it does not change.
        out.append((padded(pack(codes, to.bits).tobytes()) + side, rows, 1 | to.bits << 8))
    return out


def vectors():
    """Files by name."""
    files, manifest = {}, []
    for source in SOURCES:
        s = source
        files[f"{s.name}.bin"] = s.data
        manifest.append(f"source {s.name} {s.kind} {s.dtype} {s.layers} {s.heads} {s.tokens} {s.k_dim} {s.v_dim} "
                        f"{s.first_position} {len(s.data)} {crc32c(s.data):08x}")
        encoded = {}
        for recipe in RECIPES:
            spec = Spec(source, recipe)
            encoded[recipe] = encode(spec)
            image = assemble(spec, encoded[recipe])
            decoded = decode(spec, encoded[recipe])
            manifest.append(f"image {recipe} {len(image)} {crc32c(image):08x} {crc32c(decoded):08x}")
            if s.name in KEPT:
                files[f"{s.name}.{recipe.replace(':', '')}.img"] = image
        for old, new in DEMOTIONS:
            target = Spec(source, new)
            image = assemble(target, demote(Spec(source, old), encoded[old], target))
            manifest.append(f"demote {old} {new} {len(image)} {crc32c(image):08x}")
    files["manifest.txt"] = ("\n".join(manifest) + "\n").encode()
    return files


def run(folder, files, arguments):
    """Writes the files, or with --check compares them. Returns the exit status."""
    if arguments == ["--check"]:
        present = {path.name for path in folder.iterdir()}
        wrong = [name for name in sorted(present | set(files))
                 if name not in present or name not in files or (folder / name).read_bytes() != files[name]]
        for name in wrong:
            print(f"differs: {name}")
        print(f"{len(files)} files, {sum(map(len, files.values()))} bytes, {len(wrong)} differ")
        return 1 if wrong else 0
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(run(FOLDER, vectors(), sys.argv[1:]))
