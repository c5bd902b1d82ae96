# SPDX-License-Identifier: Apache-2.0
"""Geometries of models and engines: blocks that the ranks of one engine put come back to the ranks of
another, whose layout, block size and degree of tensor parallelism differ. All bytes of its memory are
compared, those too that no load may touch. The connector's own parts move the blocks; the planes are
written and compared by numpy alone.

A run takes some of the geometries, other ones for each CAIRN_SEED. With CAIRN_GEOMETRIES=all, as the
soak has it, it takes all of them."""

import dataclasses
import itertools
import math
import os
import random
import sys

import cairn
import numpy as np
import pytest
from cairn import paged
from cairn.transfer import Put
from daemon import Daemon

if "vllm" not in sys.modules:
    import fake_vllm

    fake_vllm.install()

from cairn.vllm import layout  # noqa: E402
from cairn.vllm.group import BytesPart, PagedPart  # noqa: E402
from cairn.vllm.kinds import Layers, Shape  # noqa: E402
from cairn.vllm.model import Model, part_of  # noqa: E402
from cairn.vllm.plan import Geometry, GroupTable  # noqa: E402

LAYERS, KEYS = 2, 2
UNTOUCHED = 9
HEADS = (1, 2, 3, 4, 8, 16, 40, 128)
DIMS = (64, 80, 96, 128, 192, 256)
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RANKS = (1, 2, 4, 8)
ELEMENTS = {
    "bf16": "uint16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
}
SAMPLED = 48  # in the default run, besides one of each kind
SPACES_MAX = 512  # of one daemon
SECONDS = 60  # of a call: bytes are compared here, not times, and other work may hold the processors
BLOCK_ELEMENTS_MAX = 1 << 20  # of K in a layer
PUT_BYTES_MAX = 32 << 20  # at once, so that the daemon has room for them

# What models of today keep beside K and V, by groups: of one latent, as most engines keep it; of the
# latent and its rotary part apart; of a latent, and an index of sparse attention beside it.
LATENTS = {
    "576": [("latent", 576)],
    "512+64": [("latent", 512), ("latent", 64)],
    "576 and an index": [("latent", 576), ("opaque_rows", 132)],
}
UNLIKE = (192, 128)  # channels of K and of V: MiMo-V2's


@dataclasses.dataclass(frozen=True)
class Engine:
    """layout: how an array holds rows. block: tokens of one. ranks: tensor-parallel ones."""

    layout: str
    block: int
    ranks: int


@dataclasses.dataclass(frozen=True)
class Case:
    """groups: of each its kind, and the channels of a head or bytes of a row; of K and V that are
    unlike, both."""

    groups: tuple
    heads: int
    dtype: str
    first: Engine
    second: Engine

    def __str__(self):
        groups = "+".join(kind + "-".join(map(str, planes(dim))) for kind, dim in self.groups)
        sides = "-".join(f"{e.layout}.{e.block}.tp{e.ranks}" for e in (self.first, self.second))
        return f"{groups}.h{self.heads}.{self.dtype}.{sides}"


# ---------------------------------------------------------------------------------- the geometries


def planes(dim):
    """The channels of a head, or the bytes of a row, of each plane that has a number of its own."""
    return dim if isinstance(dim, tuple) else (dim,)


def planes_of_group(kind, dim):
    return (dim, dim) if kind == "kv" and isinstance(dim, int) else planes(dim)


def layouts_of(groups, dtype, dim, block):
    """The layouts that vLLM has for such caches."""
    yield from ("hnd", "nhd", "layers-in-blocks", "padded")
    if groups[0][0] == "kv" and dtype != "fp32" and dim is not UNLIKE:
        yield layout.TRANSPOSED
        if block % 32 == 0 and dim % 32 == 0:
            yield layout.TILED


def every_case():
    """Each shape with each pair of block sizes, and with each pair of degrees; the rest in turn."""
    turn = itertools.count()

    def engines(groups, dtype, dim, blocks, ranks):
        made = []
        for block, count in zip(blocks, ranks, strict=True):
            known = list(layouts_of(groups, dtype, dim, block))
            made.append(Engine(known[next(turn) % len(known)], block, count))
        return made

    shapes = [((("kv", dim),), heads) for dim in DIMS for heads in HEADS]
    shapes += [((("kv", UNLIKE),), heads) for heads in (1, 4, 8)]
    shapes += [(tuple(groups), 1) for groups in LATENTS.values()]
    all_blocks = list(itertools.product(BLOCKS, BLOCKS))
    for groups, heads in shapes:
        # Engines do not split heads otherwise.
        degrees = [count for count in RANKS if heads % count == 0 or count % heads == 0]
        all_ranks = list(itertools.product(degrees, degrees))
        pairs = [(blocks, all_ranks[next(turn) % len(all_ranks)]) for blocks in all_blocks]
        pairs += [(all_blocks[next(turn) % len(all_blocks)], ranks) for ranks in all_ranks]
        for blocks, ranks in pairs:
            dtype = list(ELEMENTS)[next(turn) % len(ELEMENTS)]
            if heads * max(planes(groups[0][1])) * max(blocks) > BLOCK_ELEMENTS_MAX:
                continue  # two blocks of K and V lie in a region of 64 MiB
            yield Case(groups, heads, dtype, *engines(groups, dtype, groups[0][1], blocks, ranks))


def chosen():
    cases = list(every_case())
    if os.environ.get("CAIRN_GEOMETRIES") == "all":
        return cases
    rng = random.Random(int(os.environ.get("CAIRN_SEED", "1")))
    small = [case for case in cases if case.heads * max(planes(case.groups[0][1])) <= 4096]
    by_shape = {}
    for case in rng.sample(cases, len(cases)):
        by_shape.setdefault(case.groups, case)
        by_shape.setdefault(("heads", case.heads), case)
        by_shape.setdefault(("dtype", case.dtype), case)
        for name, engine in (("first", case.first), ("second", case.second)):
            by_shape.setdefault((name, "blocks", engine.block), case)
            by_shape.setdefault((name, "layout", engine.layout), case)
            by_shape.setdefault((name, "ranks", engine.ranks), case)
    return list(dict.fromkeys([*by_shape.values(), *rng.sample(small, SAMPLED)]))


# ------------------------------------------------------------------------------------ the memories


def arrays_of(name, blocks, heads, tokens, row, dtype):
    """A layer's arrays [blocks, heads, tokens, row], as vLLM hands them over."""
    def new(*shape):
        return np.full(shape, UNTOUCHED, dtype)

    if name == "nhd":
        return [new(blocks, tokens, heads, row).swapaxes(1, 2) for _ in range(LAYERS)]
    if name == "layers-in-blocks":
        whole = new(blocks, LAYERS, heads, tokens, row)
        return [whole[:, i] for i in range(LAYERS)]
    if name == "padded":
        return [new(blocks, heads, tokens, row + 32)[..., :row] for _ in range(LAYERS)]
    return [new(blocks, heads, tokens, row) for _ in range(LAYERS)]


def planes_of(name, block, dims):
    """Views of a block, [heads, tokens, row], in which the planes' elements are in their order. dims:
    channels of each plane."""
    heads, tokens, _ = block.shape
    if name not in (layout.TRANSPOSED, layout.TILED):
        ends = list(itertools.accumulate(dims))
        return [block[..., end - dim : end] for end, dim in zip(ends, dims, strict=True)]
    dim = dims[0]
    k, v = block.reshape(heads, 2, tokens * dim).swapaxes(0, 1)
    if name == layout.TRANSPOSED:
        return [k.reshape(heads, dim, tokens).swapaxes(1, 2), v.reshape(heads, tokens, dim)]
    k = k.reshape(heads, tokens // 16, dim // 2, 16, 2).transpose(0, 1, 3, 2, 4)
    v = v.reshape(heads, dim // 16, tokens // 2, 16, 2).transpose(0, 2, 4, 1, 3)
    return [k, v]


class Rank:
    """One of an engine's workers, with what it has of every group. values: of each group, layer and
    plane [heads, tokens, channels], which are in the engine's blocks `tables`."""

    def __init__(self, case, engine, model, rank, tables):
        self.case, self.engine, self.tables = case, engine, tables
        names = [f"layers.{i}.attn" for i in range(LAYERS)]
        self.parts, self.arrays = [], []
        blocks = max(max(table) for table in tables) + 2
        for i, (kind, dim) in enumerate(case.groups):
            shape = model.layers[i].shape
            part = part_of(names, model, rank, engine.ranks, i)
            is_writer = not shape.is_replicated or rank == 0
            if kind == "opaque_rows":
                arrays = arrays_of("hnd", blocks, 1, engine.block, dim, "uint8")
                made = BytesPart(arrays, engine.block * dim, part, 1, is_writer)
            else:
                row = sum(planes_of_group(kind, dim))
                is_of_processor = engine.layout in (layout.TRANSPOSED, layout.TILED)
                kernels = engine.layout if is_of_processor else None
                dtype = ELEMENTS[case.dtype]
                arrays = arrays_of(engine.layout, blocks, shape.heads, engine.block, row, dtype)
                cache = layout.paged_cache(arrays, shape, kernels)
                made = PagedPart(cache, part, 1, is_writer)
            self.parts.append(made)
            self.arrays.append(arrays)

    def write(self, values, arrays=None):
        for group, (kind, dim) in enumerate(self.case.groups):
            own = self.parts[group].part.heads if kind == "kv" else range(1)
            heads = slice(own.start, own.stop)
            given, dims = values[group], planes_of_group(kind, dim)
            name = "hnd" if kind == "opaque_rows" else self.engine.layout
            for layer, array in enumerate((arrays or self.arrays)[group]):
                for at, block in enumerate(self.tables[group]):
                    if block == 0:
                        continue
                    rows = slice(at * self.engine.block, (at + 1) * self.engine.block)
                    views = planes_of(name, array[block], dims)
                    for view, plane in zip(views, given, strict=True):
                        view[...] = plane[layer, heads, rows].reshape(view.shape)

    def put(self, space, keys, geometry):
        for group, part in enumerate(self.parts):
            tokens = len(keys) * geometry.store_tokens
            table = geometry.tables(self.tables, 0, len(keys), range(tokens), {})[group]
            ratio, puts = len(table) // len(keys), []
            for i, key in enumerate(keys):
                own = table[i * ratio : (i + 1) * ratio]
                if part.is_put(own):
                    puts.append(Put(key, part=part.part, source=bytearray(space.source_bytes(part.part))))
                    part.gather(space, own, puts[-1].source)
            assert bool(puts) == part.is_writer
            step = max(1, PUT_BYTES_MAX // space.source_bytes(part.part))
            for first in range(0, len(puts), step):
                results = space.put_batch(puts[first : first + step], timeout=SECONDS)
                assert [one.error for one in results if one.error is not None] == []

    def get(self, space, keys, geometry):
        tokens = len(keys) * geometry.store_tokens
        tables = geometry.tables(self.tables, 0, len(keys), range(tokens), {})
        for part, table in zip(self.parts, tables, strict=True):
            moved = part.get(space, keys, table, None, SECONDS)
            assert moved.statuses == [paged.OK] * len(keys)


def whole(array):
    """Its memory, with what lies between its rows."""
    while array.base is not None:
        array = array.base
    return array.view(np.uint8)


# ---------------------------------------------------------------------------------------- the runs


def model_of(case, engine, store_tokens):
    groups, layers, tables = [], [], []
    for i, (kind, dim) in enumerate(case.groups):
        if kind == "kv":
            k_dim, v_dim = planes_of_group(kind, dim)
            groups.append(cairn.KvGroup(LAYERS, case.heads, k_dim, v_dim=v_dim))
            heads, v_dim = max(1, case.heads // engine.ranks), None if k_dim == v_dim else v_dim
            shape = Shape("kv", heads, k_dim, dtype=case.dtype, v_dim=v_dim)
        elif kind == "latent":
            groups.append(cairn.Group("latent", LAYERS, kv_heads=1, k_dim=dim))
            shape = Shape("latent", 1, dim, dtype=case.dtype, is_replicated=True)
        else:
            groups.append(cairn.Group("opaque_rows", LAYERS, row_bytes=dim))
            shape = Shape("opaque_rows", bytes=dim, is_replicated=True)
        layers.append(Layers(i, ("layers.0.attn", "layers.1.attn"), shape, engine.block))
        tables.append(GroupTable(i, engine.block))
    spec = cairn.SpaceSpec("geometry", str(case), groups, case.dtype, store_tokens)
    return Model(spec, Geometry(engine.block, store_tokens, tuple(tables)), tuple(layers))


def values_of(case, rng, tokens):
    """Any bits: the recipe is lossless."""
    made = []
    for kind, dim in case.groups:
        heads = case.heads if kind == "kv" else 1
        dtype = np.dtype("uint8" if kind == "opaque_rows" else ELEMENTS[case.dtype])
        shapes = [(LAYERS, heads, tokens, count) for count in planes_of_group(kind, dim)]
        made.append(
            [
                np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
                for shape in shapes
            ]
        )
    return made


def table_of(rng, engine, tokens, holes=0.0):
    """The engine's blocks of so many tokens, in any order; those that it has let go of are 0."""
    count = tokens // engine.block
    table = rng.permutation(np.arange(1, 2 * count + 1))[:count]
    table[rng.random(count) < holes] = 0
    return table.tolist()


def check(client, case):
    rng = np.random.default_rng(list(str(case).encode()))
    store_tokens = max(16, case.first.block, case.second.block)
    tokens = KEYS * store_tokens
    values = values_of(case, rng, tokens)
    model = model_of(case, case.first, store_tokens)
    recipe = "exact" if case.heads * max(planes(case.groups[0][1])) <= 1024 else "raw"
    spec = model.spec
    with client.open_space(
        spec.model,
        spec.weights_revision,
        spec.groups,
        dtype=spec.dtype,
        tokens_per_block=store_tokens,
        recipe=recipe,
        timeout=SECONDS,
    ) as space:
        keys = [space.opaque_key(b"%d" % i) for i in range(KEYS)]
        for rank in range(case.first.ranks):
            tables = [table_of(rng, case.first, tokens) for _ in case.groups]
            writer = Rank(case, case.first, model, rank, tables)
            writer.write(values)
            writer.put(space, keys, model.geometry)
        model = model_of(case, case.second, store_tokens)
        for rank in range(case.second.ranks):
            tables = [table_of(rng, case.second, tokens, holes=0.25) for _ in case.groups]
            reader, same = (Rank(case, case.second, model, rank, tables) for _ in range(2))
            same.write(values)
            reader.get(space, keys, model.geometry)
            for got, wanted in zip(reader.arrays, same.arrays, strict=True):
                for mine, theirs in zip(got, wanted, strict=True):
                    assert np.array_equal(whole(mine), whole(theirs)), (case, rank)
        space.invalidate(timeout=SECONDS)


def test_a_run_has_each_of_the_values():
    cases = chosen()
    assert {case.heads for case in cases} == set(HEADS)
    assert {case.dtype for case in cases} == set(ELEMENTS)
    groups = {case.groups for case in cases}
    assert groups >= {(("kv", dim),) for dim in (*DIMS, UNLIKE)}
    assert groups >= {tuple(latents) for latents in LATENTS.values()}
    for engines in ([case.first for case in cases], [case.second for case in cases]):
        assert {one.block for one in engines} == set(BLOCKS)
        assert {one.ranks for one in engines} == set(RANKS)
        layouts = {"hnd", "nhd", "layers-in-blocks", "padded", layout.TRANSPOSED, layout.TILED}
        assert {one.layout for one in engines} == layouts


def test_every_byte_comes_back(bin_dir, tmp_path):
    cases = chosen()
    print(f"{len(cases)} geometries")
    for first in range(0, len(cases), SPACES_MAX):
        folder = tmp_path / str(first)
        folder.mkdir()
        with Daemon(bin_dir, "local", folder, "512MiB") as daemon:
            with cairn.connect(daemon.control, data=daemon.data) as client:
                for case in cases[first : first + SPACES_MAX]:
                    check(client, case)


@pytest.mark.parametrize("ranks", RANKS)
def test_heads_that_ranks_share(ranks):
    """Of fewer heads than ranks, each rank has one."""
    case = Case((("kv", 64),), 2, "bf16", Engine("hnd", 16, ranks), Engine("hnd", 16, ranks))
    model = model_of(case, case.first, 16)
    names = ["layers.0.attn", "layers.1.attn"]
    heads = [part_of(names, model, rank, ranks).heads for rank in range(ranks)]
    assert {head for some in heads for head in some} == {0, 1}
