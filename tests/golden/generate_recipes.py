#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of further recipes, by a second implementation: from docs/internals/formats/image.md and docs/recipes/ alone, never from the C++.

  generate_recipes.py            writes tests/golden/recipes/
  generate_recipes.py --check    compares what it would write with what is there; exits 1 on any difference, 77 without numpy

recipes/manifest.txt holds, one a line, all fields separated by blanks:

  source NAME kind dtype layers heads tokens k_dim v_dim first_position bytes crc32c     (bits in image/NAME.bin)
  image RECIPE bytes crc32c decoded_crc32c      of the source above; the bytes of some are kept in recipes/NAME.RECIPE.img
  aux RECIPE bytes crc32c decoded_crc32c        likewise, with magnitudes of queries: (1 + 7 i mod 11) / 4 for number i
  scored RECIPE bytes crc32c decoded_crc32c     likewise, with scores of tokens: arkv.SCORES[i mod 19] for number i
  planned RECIPE bytes crc32c decoded_crc32c    of arkv:paper, with states of tokens: arkv.STATES[i mod 23] for number i
  demote FROM TO bytes crc32c                   of the source above encoded FROM and demoted
  thin RECIPE TOKENS bytes crc32c               of the source above in a chain of so many tokens more than up to the block's end

Headers as in generate.py.
"""
import functools
import pathlib
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("numpy is not installed: golden vectors not regenerated")
    sys.exit(77)

import arkv
import fp8
import generate
import logquant
import mixkvq
from sources import BYTES, SOURCES

FOLDER = pathlib.Path(__file__).parent / "recipes"
KEPT = {"typical-bf16", "odd-fp32"}  # sources whose images are kept whole


class Fp8(generate.Spec):
    name = "fp8"
    takes_magnitudes = False

    def recipe_bytes(self):
        return struct.pack("<BB30x", 11, 8)

    def encode_tile(self, bits, per_channel):
        """(tile, rows, form), or None where the tile is raw."""
        made = fp8.encode_tile(self.source.dtype, bits)
        return made and (*made, fp8.FORM)

    def decode_tile(self, tile, bits, per_channel):
        data, rows, _ = tile
        return fp8.decode_tile(self.source.dtype, data, bits.shape, rows)


class MixKvq(generate.Spec):
    """Of a variant, by its number."""

    takes_magnitudes = True
    names = ["mixkvq", "mixkvq:paper", "mixkvq:paper/7b", "mixkvq:paper/14b", "mixkvq:paper/32b"]

    def __init__(self, variant, source, recipe):
        super().__init__(source, recipe)
        self.variant, self.magnitudes = variant, None
        self.k_group, self.v_group = (128, 64) if variant == 0 else (32, 32)

    def recipe_bytes(self):
        return struct.pack("<BB2xHH4xB19x", 9, 2, self.k_group, self.v_group, self.variant)

    def encode_tile(self, bits, per_channel):
        s = self.source
        if not per_channel:
            made = generate.affine_tile(bits, s.dtype, False, 2, False, s.first_position,
                                        v_group=self.v_group)
            return made and (*made, 0x0201)
        head = np.ones(s.k_dim, np.float32) if self.magnitudes is None else self.magnitudes.pop(0)
        made = mixkvq.encode_tile(s.dtype, bits, head, self.variant, self.k_group)
        return made and (*made, mixkvq.FORM)

    def decode_tile(self, tile, bits, per_channel):
        data, rows, _ = tile
        if not per_channel:
            return generate.decode_affine(data, bits.shape, self.source.dtype, False, 2, rows,
                                          v_group=self.v_group)
        return mixkvq.decode_tile(self.source.dtype, data, bits.shape, rows, self.k_group)


class LogQuant(generate.Spec):
    """Of a variant, by its number and bits."""

    takes_magnitudes = False
    names = {"logquant:4": (4, 0), "logquant:2": (2, 0), "logquant:2/log": (2, 1)}

    def __init__(self, source, recipe):
        super().__init__(source, recipe)
        self.bits, self.variant = self.names[recipe]
        self.chain = 0

    def recipe_bytes(self):
        return struct.pack("<BB2xHH4xB19x", 10, self.bits, 128, 64, self.variant)

    def encode_tile(self, bits, per_channel):
        s = self.source
        made = logquant.encode_tile(s.dtype, bits, per_channel, self.bits, self.variant, s.first_position, self.chain)
        return made and (*made, 1 | self.bits << 8)

    def decode_tile(self, tile, bits, per_channel):
        data, rows, _ = tile
        return logquant.decode_tile(self.source.dtype, data, bits.shape, per_channel, self.bits, rows)


class Arkv(generate.Spec):
    name = "arkv"
    takes_magnitudes = False
    scores = None  # of the heads that are to come

    def recipe_bytes(self):
        return struct.pack("<BB2xHH24x", 8, 4, 128, 64)

    def encode_tile(self, bits, per_channel):
        s = self.source
        if per_channel:
            given = np.zeros(s.tokens, np.float32) if self.scores is None else self.scores.pop(0)
            self.stored = arkv.stored_scores(given, s.first_position)
        made = arkv.encode_tile(s.dtype, bits, per_channel, self.stored)
        return made and (*made, 0x0401)

    def decode_tile(self, tile, bits, per_channel):
        data, rows, _ = tile
        return arkv.decode_tile(self.source.dtype, data, bits.shape, per_channel, rows)


class ArkvPaper(generate.Spec):
    name = "arkv:paper"
    states = None  # of the heads that are to come

    def recipe_bytes(self):
        return struct.pack("<BB10xB19x", 8, 8, 1)

    def encode_tile(self, bits, per_channel):
        s = self.source
        if per_channel:
            self.of_head = self.states.pop(0)
        made = arkv.encode_kept(s.dtype, bits, self.of_head)
        return made and (*made, arkv.KEPT_FORM)

    def decode_tile(self, tile, bits, per_channel):
        data, rows, _ = tile
        return arkv.decode_kept(self.source.dtype, data, bits.shape, rows)


SPECS = [Fp8, Arkv]
for number, title in enumerate(MixKvq.names):
    of_variant = functools.partial(MixKvq, number)
    of_variant.name, of_variant.takes_magnitudes = title, True
    SPECS.append(of_variant)
for title in LogQuant.names:
    of_variant = functools.partial(LogQuant)
    of_variant.name, of_variant.takes_magnitudes = title, False
    SPECS.append(of_variant)
MORE = [1, 60, 150, 300, 5000]  # tokens that come after a block
LOSSLESS = ["raw", "exact"]


def magnitudes_of(s):
    """Of each head."""
    i = np.arange(s.layers * s.heads * s.k_dim)
    return list(((1 + 7 * i % 11) / 4).astype(np.float32).reshape(-1, s.k_dim))


def encode(spec):
    tiles = []
    for bits, per_channel in generate.tiles_of(spec):
        made = spec.encode_tile(bits, per_channel) if spec.source.dtype != BYTES else None
        tiles.append(made or (generate.padded(bits.tobytes()), 0, 0))
    return tiles


def decode(spec, tiles):
    out = b""
    for tile, (bits, per_channel) in zip(tiles, generate.tiles_of(spec)):
        raw = tile[0][:bits.nbytes]
        out += raw if tile[2] == 0 else spec.decode_tile(tile, bits, per_channel).tobytes()
    return out


def vectors():
    """Files by name."""
    files, manifest = {}, []
    for s in SOURCES:
        manifest.append(f"source {s.name} {s.kind} {s.dtype} {s.layers} {s.heads} {s.tokens} {s.k_dim} {s.v_dim} "
                        f"{s.first_position} {len(s.data)} {generate.crc32c(s.data):08x}")
        for make in SPECS:
            spec = make(s, make.name)
            tiles = encode(spec)
            image = generate.assemble(spec, tiles)
            crc = f"{generate.crc32c(image):08x}"
            manifest.append(f"image {make.name} {len(image)} {crc} {generate.crc32c(decode(spec, tiles)):08x}")
            manifest += [f"demote {name} {make.name} {len(image)} {crc}" for name in LOSSLESS]
            if s.name in KEPT:
                files[f"{s.name}.{make.name.replace(':', '').replace('/', '-')}.img"] = image
            for more in MORE if make.name in LogQuant.names and s.dtype != BYTES else []:
                spec.chain = s.first_position + s.tokens + more
                image = generate.assemble(spec, encode(spec))
                manifest.append(f"thin {make.name} {more} {len(image)} {generate.crc32c(image):08x}")
            if make.takes_magnitudes and s.dtype != BYTES:
                spec.magnitudes = magnitudes_of(s)
                tiles = encode(spec)
                image = generate.assemble(spec, tiles)
                manifest.append(f"aux {make.name} {len(image)} {generate.crc32c(image):08x} "
                                f"{generate.crc32c(decode(spec, tiles)):08x}")
            if make is Arkv and s.dtype != BYTES:
                i = np.arange(s.layers * s.heads * s.tokens)
                spec.scores = list(np.array(arkv.SCORES, np.float32)[i % 19].reshape(-1, s.tokens))
                tiles = encode(spec)
                image = generate.assemble(spec, tiles)
                manifest.append(f"scored {make.name} {len(image)} {generate.crc32c(image):08x} "
                                f"{generate.crc32c(decode(spec, tiles)):08x}")
        if s.dtype != BYTES:
            spec = ArkvPaper(s, ArkvPaper.name)
            i = np.arange(s.layers * s.heads * s.tokens)
            spec.states = list(np.array(arkv.STATES)[i % 23].reshape(-1, s.tokens))
            tiles = encode(spec)
            image = generate.assemble(spec, tiles)
            manifest.append(f"planned {ArkvPaper.name} {len(image)} {generate.crc32c(image):08x} "
                            f"{generate.crc32c(decode(spec, tiles)):08x}")
            if s.name in KEPT:
                files[f"{s.name}.arkvpaper.img"] = image
    files["manifest.txt"] = ("\n".join(manifest) + "\n").encode()
    return files


if __name__ == "__main__":
    sys.exit(generate.run(FOLDER, vectors(), sys.argv[1:]))
