#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of the recipes `cairn` and `cairn-hot`, by a second implementation: from docs/recipes/cairn.md and cairn-hot.md,
docs/internals/formats/profile.md and docs/internals/formats/image.md alone, never from the C++.

  generate_cairn.py            writes tests/golden/cairn/
  generate_cairn.py --check    compares what it would write with what is there; exits 1 on any difference, 77 without numpy

cairn/manifest.txt holds, one a line, all fields separated by blanks:

  profile NAME bytes crc32c                     (bytes in cairn/NAME.profile)
  source NAME kind dtype layers heads tokens k_dim v_dim first_position bytes crc32c     (bits in image/NAME.bin) of the profile above
  image BITS LEVEL bytes crc32c decoded_crc32c  of the source above; the bytes of some are kept in cairn/NAME.BITS.LEVEL.img
  demote BITS FROM TO bytes crc32c              of the source above encoded at level FROM and demoted
  hot BITS MULTIPLIER bytes crc32c decoded_crc32c   of the source above by cairn-hot; some are kept in cairn/NAME.hotBITS.img

All images have space 00..1f, key 20..3f, group 3, layer first 2, head first 1.
"""
import hashlib
import pathlib
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("numpy is not installed: golden vectors not regenerated")
    sys.exit(77)

import cairn_hot
import cairn_recipe as recipe
import generate
from profiles import PROFILES
from sources import KV, LATENT, SOURCES

FOLDER = pathlib.Path(__file__).parent / "cairn"
IMAGES = [(23, 0), (43, 0), (30, 2)]  # bits in tenths, level
DEMOTIONS = [(43, 0, 1), (23, 0, 3), (30, 2, 5)]
HOT_BITS = [24, 43]
KEPT = {"typical-bf16", "nonfinite-fp16", "odd-fp32", "latent-bf16"}
LAYER_FIRST, HEAD_FIRST = 2, 1
STRIP = 128


class Image:
    """One source under one profile, at one rate and level."""

    recipe = 4

    def __init__(self, source, data, bits, level):
        self.source, self.bits, self.level = source, bits, level
        self.profile, self.id = recipe.Profile(data), hashlib.sha256(data).digest()
        self.multiplier = self.profile.rates[bits]
        self.tiles = []  # (bytes, rows, form)

    def matrices(self):
        """Of each tile: layer, head, plane, its bits, and those of V."""
        s, offset = self.source, 0
        dtype = generate.bits_type(s.dtype)
        dims = [s.k_dim, s.v_dim] if s.kind == KV else [s.k_dim]
        for index in range(s.layers * s.heads):
            planes = []
            for dim in dims:
                planes.append(np.frombuffer(s.data, dtype, s.tokens * dim, offset).reshape(s.tokens, dim))
                offset += planes[-1].nbytes
            for plane, bits in enumerate(planes):
                v = planes[1] if s.kind == KV else None
                yield LAYER_FIRST + index // s.heads, HEAD_FIRST + index % s.heads, plane, bits, v
        assert offset == len(s.data)

    def tile(self, layer, head, plane, level=None):
        level = self.level if level is None else level
        return recipe.Tile(self.profile, layer, head, plane, self.multiplier, level, self.source.dtype)

    def encode(self):
        s = self.source
        for layer, head, plane, bits, v in self.matrices():
            tile, data, rows = self.tile(layer, head, plane), b"", 0
            for t in range(0, s.tokens, STRIP):
                values = generate.to_float(s.dtype, bits[t:t + STRIP])
                of_v = None if v is None else generate.to_float(s.dtype, v[t:t + STRIP])
                strip, kept = recipe.encode_strip(tile, bits[t:t + STRIP], values, of_v, s.first_position + t)
                data, rows = data + strip, rows + kept
            raw = generate.padded(bits.tobytes())
            self.tiles.append((data, rows, 3) if len(data) < len(raw) else (raw, 0, 0))
        return self

    def strips(self):
        """Of each tile: its number, the coder, bits; and of its strips: bytes from it on, tokens and position."""
        for index, (layer, head, plane, bits, _) in enumerate(self.matrices()):
            yield index, (layer, head, plane), bits

    def decode(self):
        s, out = self.source, b""
        for index, where, bits in self.strips():
            data, _, form = self.tiles[index]
            if form == 0:
                out += data[:bits.nbytes]
                continue
            at = 0
            for t in range(0, s.tokens, STRIP):
                decoded, taken = recipe.decode_strip(self.tile(*where), data[at:], min(STRIP, s.tokens - t),
                                                     s.first_position + t, generate.from_float)
                out, at = out + decoded.tobytes(), at + taken
            assert at == len(data)
        return out

    def demoted(self, level):
        out = Image(self.source, self.profile.data, self.bits, level)
        for index, where, bits in self.strips():
            data, rows, form = self.tiles[index]
            if form == 3:
                data, rows = self.demoted_tile(data, where, bits, level), rows
            out.tiles.append((data, rows, form))
        return out

    def demoted_tile(self, data, where, bits, level):
        s, at, out = self.source, 0, b""
        old, new = self.tile(*where), self.tile(*where, level)
        factor = 3 ** (level - self.level)
        for t in range(0, s.tokens, STRIP):
            tokens = min(STRIP, s.tokens - t)
            codes, rows, taken = recipe.codes_of_strip(old, data[at:], tokens)
            if codes is None:
                out += data[at:at + taken]
            else:
                codes = np.sign(codes) * ((np.abs(codes) + factor // 2) // factor)
                out += recipe.assemble_strip(new, bits[t:t + STRIP], rows, codes)[0]
            at += taken
        return out

    def to_bytes(self):
        s = self.source
        offset, directory = generate.HEADER + generate.ENTRY * len(self.tiles), b""
        for data, rows, form in self.tiles:
            directory += struct.pack("<IIIHH", offset // 16, len(data), generate.crc32c(data), rows, form)
            offset += len(data)
        header = struct.pack("<4sHHIIQIHBB", b"CKVI", 1, generate.HEADER, 0, 0, offset, len(self.tiles), 3, s.kind, s.dtype)
        header += bytes(range(64))
        header += struct.pack("<QHHHHHBBII4x", s.first_position, s.tokens, LAYER_FIRST, s.layers, HEAD_FIRST, s.heads,
                              self.profile.domain(), 1, s.k_dim, s.v_dim)
        header += struct.pack("<BBBxHHBBh20x", self.recipe, self.bits, 0, 0, 0, 0, self.level, self.multiplier) + self.id
        header += bytes(generate.HEADER - len(header))
        crc = generate.crc32c(header + directory)
        return header[:12] + struct.pack("<I", crc) + header[16:] + directory + b"".join(tile[0] for tile in self.tiles)


class HotImage(Image):
    """Of cairn-hot."""

    recipe = 5

    def __init__(self, source, data, profile, bits, multiplier):
        self.source, self.bits, self.level, self.multiplier = source, bits, 0, multiplier
        self.profile, self.id, self.tiles = profile, hashlib.sha256(data).digest(), []

    def tile(self, layer, head, plane):
        return cairn_hot.Tile(self.profile, layer, head, plane, self.multiplier, self.source.dtype)

    def encode(self):
        s = self.source
        for layer, head, plane, bits, v in self.matrices():
            v = None if v is None else generate.to_float(s.dtype, v)
            made = cairn_hot.encode_tile(self.tile(layer, head, plane), bits, v, s.first_position)
            raw = generate.padded(bits.tobytes())
            self.tiles.append((*made, cairn_hot.FORM) if made else (raw, 0, 0))
        return self

    def decode(self):
        out = b""
        for (data, rows, form), (layer, head, plane, bits, _) in zip(self.tiles, self.matrices()):
            if form == 0:
                out += data[:bits.nbytes]
                continue
            tile = self.tile(layer, head, plane)
            out += cairn_hot.decode_tile(tile, data, bits.shape, rows, self.source.first_position).tobytes()
        return out


def vectors():
    """Files by name."""
    files, manifest = {}, []
    for (k_dim, v_dim), data in PROFILES.items():
        name = f"{k_dim}x{v_dim}"
        files[f"{name}.profile"] = data
        manifest.append(f"profile {name} {len(data)} {generate.crc32c(data):08x}")
        profile = recipe.Profile(data)
        multipliers = {bits: cairn_hot.multiplier_of(profile, bits) for bits in HOT_BITS}
        for s in SOURCES:
            if s.kind not in (KV, LATENT) or (s.k_dim, s.v_dim) != (k_dim, v_dim):
                continue
            manifest.append(f"source {s.name} {s.kind} {s.dtype} {s.layers} {s.heads} {s.tokens} {s.k_dim} {s.v_dim} "
                            f"{s.first_position} {len(s.data)} {generate.crc32c(s.data):08x}")
            made = {at: Image(s, data, *at).encode() for at in IMAGES}
            for (bits, level), image in made.items():
                content, decoded = image.to_bytes(), image.decode()
                manifest.append(f"image {bits} {level} {len(content)} {generate.crc32c(content):08x} "
                                f"{generate.crc32c(decoded):08x}")
                if s.name in KEPT:
                    files[f"{s.name}.{bits}.{level}.img"] = content
            for bits, old, new in DEMOTIONS:
                content = made[bits, old].demoted(new).to_bytes()
                manifest.append(f"demote {bits} {old} {new} {len(content)} {generate.crc32c(content):08x}")
            for bits, multiplier in multipliers.items():
                image = HotImage(s, data, profile, bits, multiplier).encode()
                content, decoded = image.to_bytes(), image.decode()
                manifest.append(f"hot {bits} {multiplier} {len(content)} {generate.crc32c(content):08x} "
                                f"{generate.crc32c(decoded):08x}")
                if s.name in KEPT and bits == HOT_BITS[0]:
                    files[f"{s.name}.hot{bits}.img"] = content
    files["manifest.txt"] = ("\n".join(manifest) + "\n").encode()
    return files


if __name__ == "__main__":
    sys.exit(generate.run(FOLDER, vectors(), sys.argv[1:]))
