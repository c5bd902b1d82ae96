#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of the recipes ott and patternkv, by a second implementation: from docs/recipes/ and docs/internals/formats/ alone, never from the C++.

  generate_papers.py            writes tests/golden/papers/
  generate_papers.py --check    compares what it would write with what is there; exits 1 on any difference, 77 without numpy

papers/manifest.txt holds, one a line, all fields separated by blanks:

  source NAME kind dtype layers heads tokens k_dim v_dim first_position bytes crc32c     (bits in image/NAME.bin)
  bank NAME bytes crc32c                        of the source above, for the lines below (bytes in papers/NAME.bank)
  image RECIPE bytes crc32c decoded_crc32c      of the source above; the bytes of some are kept in papers/NAME.RECIPE.img
  child RECIPE bytes crc32c decoded_crc32c      as the block after the image above, of the source above with its tokens reversed
                                                and tokens 2, 7, 12, ... of K zero
  demote FROM TO bytes crc32c                   of the source above encoded FROM and demoted

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

import generate
import ott
import patternkv
from sources import BYTES, KV, SOURCES

FOLDER = pathlib.Path(__file__).parent / "papers"
KEPT = {"typical-bf16", "odd-fp32", "latent-fp16"}
LAYER_FIRST, HEAD_FIRST = 2, 1
FLAG_LOCAL, FLAG_NEAREST = 4, 8
PATTERNS = {(32, 32): 5, (16, 16): 8, (16, 64): 3, (8, 8): 16, (64, 64): 2, (4, 8): 7, (80, 80): 1, (5, 3): 33, (24, 10): 6,
            (6, 5): 9, (24, 0): 4}


class Image:
    """One source under one recipe. parent: the image of the block before it; bank: patternkv's."""

    def __init__(self, source, recipe, parent=None, bank=None):
        self.source, self.recipe, self.bank = source, recipe, bank
        self.bits = int(recipe.split(":")[1][0])
        self.nearest = recipe.endswith(":l2")
        self.position = source.first_position
        self.parent = parent
        self.traces = not recipe.endswith("/local")
        self.is_local = not self.traces or (parent.is_local if parent else self.position != 0)
        if parent:
            self.position = parent.position + parent.source.tokens
        self.pools = []  # of each head, as the block leaves it
        self.tiles = []  # (bytes, rows, form)

    def matrices(self):
        """Of each head: its layer and the bits of its tiles."""
        s, offset = self.source, 0
        dtype = generate.bits_type(s.dtype)
        rows = 1 if s.kind == 3 else s.tokens
        dims = [s.k_dim, s.v_dim] if s.kind == KV else [s.k_dim]
        for index in range(s.layers * s.heads):
            planes = []
            for dim in dims:
                bits = np.frombuffer(s.data, dtype, rows * dim, offset).reshape(rows, dim)
                planes.append(bits)
                offset += bits.nbytes
            if self.parent:
                planes = [bits[::-1].copy() for bits in planes]
                planes[0][2::5] = 0
            yield LAYER_FIRST + index // s.heads, planes

    def encode(self):
        if self.bank:
            return self.encode_patterned()
        for index, (_, planes) in enumerate(self.matrices()):
            pool, chosen = self.pool_before(index), []
            if self.source.dtype != BYTES:
                chosen = pool.trace(generate.to_float(self.source.dtype, planes[0]))
            for plane, bits in enumerate(planes):
                coded = None
                if self.source.dtype != BYTES:
                    coded = generate.affine_tile(bits, self.source.dtype, plane == 0, self.bits, False, 1, chosen,
                                                 pool.to_bytes() if plane == 0 else b"")
                if coded is None:
                    self.tiles.append((generate.padded(bits.tobytes()), 0, 0))
                else:
                    self.tiles.append((*coded, 1 | self.bits << 8))
                if plane == 0:
                    self.pools.append(ott.Pool() if coded is None else pool)
        return self

    def encode_patterned(self):
        for index, (layer, planes) in enumerate(self.matrices()):
            for plane, bits in enumerate(planes):
                patterns = self.bank.of(plane, layer, HEAD_FIRST + index % self.source.heads)
                coded = patternkv.encode_tile(bits, self.source.dtype, plane, self.bits, patterns, self.nearest)
                if coded is None:
                    self.tiles.append((generate.padded(bits.tobytes()), 0, 0))
                else:
                    self.tiles.append((*coded, 4 | self.bits << 8))
        return self

    def pool_before(self, index):
        pool = ott.Pool()
        if self.parent and self.traces:
            before = self.parent.pools[index]
            pool.norms, pool.gone = list(before.norms), before.gone
        return pool

    def decode(self):
        out, tiles = b"", iter(self.tiles)
        for index, (layer, planes) in enumerate(self.matrices()):
            for plane, bits in enumerate(planes):
                data, rows, form = next(tiles)
                if form == 0:
                    out += data[:bits.nbytes]
                elif self.bank:
                    patterns = self.bank.of(plane, layer, HEAD_FIRST + index % self.source.heads)
                    out += patternkv.decode_tile(data, bits.shape, self.source.dtype, plane, self.bits, rows,
                                                 patterns).tobytes()
                else:
                    out += generate.decode_affine(data, bits.shape, self.source.dtype, plane == 0, self.bits, rows,
                                                  16 if plane == 0 else 0).tobytes()
        return out

    def demoted(self, recipe):
        image = Image(self.source, recipe, bank=self.bank)
        image.is_local = self.is_local
        tiles = iter(self.tiles)
        for _, planes in self.matrices():
            for bits in planes:
                data, rows, form = next(tiles)
                if form == 0:
                    image.tiles.append((data, rows, form))
                    continue
                tokens, dim = bits.shape
                row_bytes = (dim * self.bits + 7) // 8
                packed = np.frombuffer(data, np.uint8, tokens * row_bytes).reshape(tokens, row_bytes)
                codes = (generate.unpack(packed, dim, self.bits) + 2) // 5
                side = data[-(-tokens * row_bytes // 16) * 16:]
                data = generate.padded(generate.pack(codes, image.bits).tobytes()) + side
                image.tiles.append((data, rows, form & 0xFF | image.bits << 8))
        return image

    def to_bytes(self):
        s = self.source
        offset, directory = generate.HEADER + generate.ENTRY * len(self.tiles), b""
        for data, rows, form in self.tiles:
            directory += struct.pack("<IIIHH", offset // 16, len(data), generate.crc32c(data), rows, form)
            offset += len(data)
        header = struct.pack("<4sHHIIQIHBB", b"CKVI", 1, generate.HEADER, 0, 0, offset, len(self.tiles), 3, s.kind, s.dtype)
        header += bytes(range(64))
        header += struct.pack("<QHHHHHBBII4x", self.position, s.tokens, LAYER_FIRST, s.layers, HEAD_FIRST, s.heads, 0,
                              1 if self.bank else 0, s.k_dim, s.v_dim)
        if self.bank:
            header += struct.pack("<BBBxHHxxH20x", 6, self.bits, FLAG_NEAREST if self.nearest else 0, 128, 64, self.bank.count)
            header += hashlib.sha256(self.bank.data).digest()
        else:
            header += struct.pack("<BBBxHH", 7, self.bits, FLAG_LOCAL if self.is_local else 0, 128, 64)
        header += bytes(generate.HEADER - len(header))
        crc = generate.crc32c(header + directory)
        return header[:12] + struct.pack("<I", crc) + header[16:] + directory + b"".join(tile[0] for tile in self.tiles)


def vectors():
    """Files by name."""
    files, manifest, banks = {}, [], {}

    def demote(image, recipe):
        content = image.demoted(recipe).to_bytes()
        manifest.append(f"demote {image.recipe} {recipe} {len(content)} {generate.crc32c(content):08x}")

    def add(what, image):
        content = image.to_bytes()
        manifest.append(f"{what} {image.recipe} {len(content)} {generate.crc32c(content):08x} "
                        f"{generate.crc32c(image.decode()):08x}")
        if what == "image" and image.source.name in KEPT:
            files[f"{image.source.name}.{image.recipe.replace(':', '').replace('/', '-')}.img"] = content

    for s in SOURCES:
        manifest.append(f"source {s.name} {s.kind} {s.dtype} {s.layers} {s.heads} {s.tokens} {s.k_dim} {s.v_dim} "
                        f"{s.first_position} {len(s.data)} {generate.crc32c(s.data):08x}")
        for recipe in ("ott:4", "ott:2", "ott:2/local"):
            image = Image(s, recipe).encode()
            add("image", image)
            add("child", Image(s, recipe, image).encode())
            if recipe == "ott:4":
                demote(image, "ott:2")
        if s.dtype == BYTES:
            continue
        dims = (s.k_dim, s.v_dim)
        if dims not in banks:
            banks[dims] = patternkv.Bank(3, 3, PATTERNS[dims], *dims)
            files[f"{s.k_dim}x{s.v_dim}.bank"] = banks[dims].data
        manifest.append(f"bank {s.k_dim}x{s.v_dim} {len(banks[dims].data)} {generate.crc32c(banks[dims].data):08x}")
        for recipe in ("patternkv:4", "patternkv:2", "patternkv:4:l2", "patternkv:2:l2"):
            image = Image(s, recipe, bank=banks[dims]).encode()
            add("image", image)
            if recipe.startswith("patternkv:4"):
                demote(image, recipe.replace("4", "2"))
    files["manifest.txt"] = ("\n".join(manifest) + "\n").encode()
    return files


if __name__ == "__main__":
    sys.exit(generate.run(FOLDER, vectors(), sys.argv[1:]))
