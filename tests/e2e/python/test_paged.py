# SPDX-License-Identifier: Apache-2.0
"""Blocks between the store and paged caches of engines, in the layouts that engines have."""

import tempfile

import cairn
import numpy as np
import pytest
from cairn import InvalidArgumentError, Part, UnavailableError, UnimplementedError, paged
from conftest import DIM, HEADS, LAYERS, TOKENS, make_kv, open_space
from daemon import Daemon

ENGINE = 16  # tokens of the engine's blocks: two to one of the store's
BLOCKS = 11
ITEM = 2


class Packed:
    """[blocks, heads, tokens, K then V] of a layer: vLLM's, on a GPU."""

    shape = (BLOCKS, HEADS, ENGINE, 2 * DIM)

    def __init__(self):
        self.layers = [np.full(self.shape, 9, np.uint16) for _ in range(LAYERS)]
        self.cache = paged.PagedCache(
            self.layers, tokens_per_block=ENGINE, block_count=BLOCKS, **self.placements()
        )

    def placements(self):
        block, head, token, dim = self.layers[0].strides
        half = {"block": block, "head": head, "token": token, "dim": dim}
        return {
            "k": paged.Placement(**half),
            "v": paged.Placement(**half, offset=DIM * ITEM),
        }

    def block(self, layer, block):
        """K and V [heads, tokens, dim] of an engine's block, the plain way."""
        kv = self.layers[layer][block]
        return kv[..., :DIM], kv[..., DIM:]


class Transposed(Packed):
    """K as [dim, tokens], V plain: vLLM's on a processor without a matrix unit."""

    def placements(self):
        block, head = self.layers[0].strides[:2]
        half = ENGINE * DIM * ITEM
        return {
            "k": paged.Placement(block=block, head=head, token=ITEM, dim=ENGINE * ITEM),
            "v": paged.Placement(block=block, head=head, token=DIM * ITEM, dim=ITEM, offset=half),
        }

    def block(self, layer, block):
        flat = self.layers[layer][block].reshape(HEADS, 2, ENGINE * DIM)
        return flat[:, 0].reshape(HEADS, DIM, ENGINE).swapaxes(1, 2), flat[:, 1].reshape(
            HEADS, ENGINE, DIM
        )


class Tiled(Packed):
    """K as [token / 16, dim / 2, 16, 2], V as [dim / 16, token / 2, 16, 2]: on one that has it."""

    def placements(self):
        block, head = self.layers[0].strides[:2]
        half = ENGINE * DIM * ITEM
        return {
            "k": paged.Placement(
                block, head, 2 * ITEM, ITEM, 0, 16, 16 * DIM * ITEM, 2, 32 * ITEM
            ),
            "v": paged.Placement(
                block, head, ITEM, 2 * ITEM, half, 2, 32 * ITEM, 16, 16 * ENGINE * ITEM
            ),
        }

    def block(self, layer, block):
        flat = self.layers[layer][block].reshape(HEADS, 2, ENGINE * DIM)
        k = flat[:, 0].reshape(HEADS, ENGINE // 16, DIM // 2, 16, 2)
        v = flat[:, 1].reshape(HEADS, DIM // 16, ENGINE // 2, 16, 2)
        return (
            k.transpose(0, 1, 3, 2, 4).reshape(HEADS, ENGINE, DIM),
            v.transpose(0, 2, 4, 1, 3).reshape(HEADS, ENGINE, DIM),
        )


class Apart(Packed):
    """[K and V, blocks, tokens, heads, dim]: vLLM's up to 0.25."""

    shape = (2, BLOCKS, ENGINE, HEADS, DIM)

    def placements(self):
        plane, block, token, head, dim = self.layers[0].strides
        half = {"block": block, "head": head, "token": token, "dim": dim}
        return {"k": paged.Placement(**half), "v": paged.Placement(**half, offset=plane)}

    def block(self, layer, block):
        kv = self.layers[layer][:, block]
        return kv[0].swapaxes(0, 1), kv[1].swapaxes(0, 1)


class OneAllocation(Packed):
    """Layers within each block: the strides say so, the shapes do not."""

    def __init__(self):
        whole = np.full((BLOCKS, LAYERS, *self.shape[1:]), 9, np.uint16)
        self.layers = [whole[:, layer] for layer in range(LAYERS)]
        self.cache = paged.PagedCache(
            self.layers, tokens_per_block=ENGINE, block_count=BLOCKS, **self.placements()
        )


LAYOUTS = [Packed, Transposed, Tiled, Apart, OneAllocation]


def check(engine, table, k, v):
    """The engine's blocks of `table` hold k and v, [layers, heads, tokens, dim]."""
    for layer in range(LAYERS):
        for i, block in enumerate(table):
            if block == paged.SKIPPED:
                continue
            rows = slice(i * ENGINE, (i + 1) * ENGINE)
            got_k, got_v = engine.block(layer, block)
            np.testing.assert_array_equal(got_k, k[layer][:, rows])
            np.testing.assert_array_equal(got_v, v[layer][:, rows])


@pytest.fixture
def space(client):
    with open_space(client, "exact") as opened:
        yield opened


def put_three(space):
    """Three blocks of K and V, put from plain arrays; their keys."""
    k, v = make_kv(3, (LAYERS, HEADS, 3 * TOKENS, DIM))
    keys = space.keys(range(3 * TOKENS))
    for i, key in enumerate(keys):
        rows = slice(i * TOKENS, (i + 1) * TOKENS)
        space.put(key, k[:, :, rows], v[:, :, rows], first_position=i * TOKENS)
    return keys, k, v


@pytest.mark.parametrize("layout", LAYOUTS)
def test_get_lands_in_the_engines_layout(space, layout):
    keys, k, v = put_three(space)
    engine, table = layout(), [7, 2, 0, 10, 5, 4]
    moved = paged.get(space, engine.cache, keys, table)
    assert moved.statuses == [paged.OK] * 3
    assert moved.bytes == 3 * space.source_bytes() and moved.wire_bytes > 0
    check(engine, table, k, v)
    for layer in range(LAYERS):
        for block in (1, 3, 6, 8, 9):
            assert all((plane == 9).all() for plane in engine.block(layer, block))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_put_from_the_engines_layout(space, layout):
    keys, k, v = put_three(space)
    engine, table = layout(), [1, 2, 3, 8, 9, 10]
    paged.get(space, engine.cache, keys, table)
    others = space.keys([5, *range(3 * TOKENS - 1)])
    moved = paged.put(space, engine.cache, others, table)
    assert moved.statuses == [paged.OK] * 3
    k_out, v_out = np.zeros_like(k), np.zeros_like(v)
    with space.match(others) as match:
        assert match.get(k_out, v_out) == 3 * TOKENS
    np.testing.assert_array_equal(k_out, k)
    np.testing.assert_array_equal(v_out, v)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gather_is_the_source_form(space, layout):
    keys, k, v = put_three(space)
    engine, table = layout(), [1, 2, 3, 8, 9, 10]
    paged.get(space, engine.cache, keys, table)
    target = np.zeros((3, LAYERS, HEADS, 2, TOKENS, DIM), np.uint16)
    paged.gather(space, engine.cache, table, target)
    for i in range(3):
        rows = slice(i * TOKENS, (i + 1) * TOKENS)
        np.testing.assert_array_equal(target[i, :, :, 0], k[:, :, rows])
        np.testing.assert_array_equal(target[i, :, :, 1], v[:, :, rows])
        assert space.put(space.keys([i] * TOKENS)[0], source=target[i]).image_bytes > 0


def test_skipped_blocks_stay(space):
    keys, k, v = put_three(space)
    engine, table = Transposed(), [paged.SKIPPED, 2, 3, 4, 5, paged.SKIPPED]
    paged.get(space, engine.cache, keys, table)
    check(engine, table, k, v)
    assert all((plane == 9).all() for plane in engine.block(0, 0) + engine.block(0, 10))


def test_a_miss_has_its_own_status(space):
    keys, k, v = put_three(space)
    space.delete([keys[1]])
    engine = Packed()
    moved = paged.get(space, engine.cache, keys, [0, 1, 2, 3, 4, 5])
    assert moved.statuses == [paged.OK, paged.MISS, paged.OK]
    check(engine, [0, 1], k[:, :, :TOKENS], v[:, :, :TOKENS])


def test_a_rank_has_its_heads(space):
    keys, k, v = put_three(space)
    layers = [np.zeros((BLOCKS, 1, ENGINE, 2 * DIM), np.uint16) for _ in range(LAYERS)]
    block, head, token, dim = layers[0].strides
    half = {"block": block, "head": head, "token": token, "dim": dim}
    cache = paged.PagedCache(
        layers,
        tokens_per_block=ENGINE,
        block_count=BLOCKS,
        k=paged.Placement(**half),
        v=paged.Placement(**half, offset=DIM * ITEM),
    )
    paged.get(space, cache, keys[:1], [4, 6], part=Part(heads=range(1, 2)))
    np.testing.assert_array_equal(layers[2][4][0, :, :DIM], k[2, 1, :ENGINE])
    np.testing.assert_array_equal(layers[2][6][0, :, DIM:], v[2, 1, ENGINE:TOKENS])


def test_what_is_refused(space):
    keys, engine = space.keys(range(TOKENS)), Packed()
    with pytest.raises(InvalidArgumentError, match=r"blocks\[1\] is 11"):
        paged.get(space, engine.cache, keys, [0, BLOCKS])
    with pytest.raises(InvalidArgumentError, match="the table has 1 blocks"):
        paged.get(space, engine.cache, keys, [0])
    with pytest.raises(InvalidArgumentError, match="2 keys, but blocks of the engine for 1"):
        paged.get(space, engine.cache, keys * 2, [0, 1])
    with pytest.raises(InvalidArgumentError, match=r"blocks\[0\] is -1"):
        paged.put(space, engine.cache, keys, [paged.SKIPPED, 1])
    with pytest.raises(InvalidArgumentError, match="has 4 layers, not 2"):
        paged.get(space, engine.cache, keys, [0, 1], part=Part(layers=range(2)))
    with pytest.raises(InvalidArgumentError, match="target has 4 bytes"):
        paged.gather(space, engine.cache, [0, 1], np.zeros(4, np.uint8))
    outside = Packed()
    outside.cache.native.v.end_byte -= ITEM
    with pytest.raises(InvalidArgumentError, match="outside its memory"):
        paged.get(space, outside.cache, keys, [10, 10])


class OnDevice:
    """An array that says it lies on a CUDA device. Nothing reads through its address here."""

    def __init__(self, values, number=0):
        self._values, self._number = values, number

    def __dlpack_device__(self):
        return (2, self._number)

    def __dlpack__(self, stream=None):
        assert stream == -1, "the engine's stream is named elsewhere"
        return self._values.__dlpack__()


def test_a_cache_on_a_device_wants_kernels(space):
    keys, engine = space.keys(range(TOKENS)), Packed()
    arrays = [OnDevice(layer) for layer in engine.layers]
    shape = {"tokens_per_block": ENGINE, "block_count": BLOCKS, **engine.placements()}
    for wrong in [{"layers": arrays}, {"layers": engine.layers, "stream": 5}]:
        with pytest.raises(InvalidArgumentError, match="comes with a stream"):
            paged.PagedCache(**wrong, **shape)
    with pytest.raises(InvalidArgumentError, match="or devices differ"):
        paged.PagedCache([*arrays[1:], OnDevice(engine.layers[0], 1)], stream=5, **shape)
    assert paged.PagedCache(arrays, stream=0, **shape).native.stream == 1, "cudaStreamLegacy"
    cache = paged.PagedCache(arrays, stream=5, **shape)
    said = f"{len(arrays)} layers, {BLOCKS} blocks of {ENGINE} tokens, uint16"
    assert repr(cache) == f"<cairn.PagedCache: {said}>"
    for call in [paged.get, paged.put]:
        # Of a build with kernels: that there is no device here.
        with pytest.raises((UnimplementedError, UnavailableError), match="kernels are unavailable"):
            call(space, cache, keys, [0, 1])
    with pytest.raises(InvalidArgumentError, match="only host caches"):
        paged.gather(space, cache, [0, 1], np.zeros(4, np.uint8))
    engine.cache.native.device = 2
    with pytest.raises(InvalidArgumentError, match="cache.device is 2, expected 0 or 1"):
        paged.get(space, engine.cache, keys, [0, 1])


def test_a_put_that_asks_to_be_durable(space, bin_dir, tmp_path):
    """Where nothing lasts it is stored all the same, and each key says why it is not durable."""
    keys, engine, table = space.keys(range(3 * TOKENS)), Packed(), [1, 2, 3, 8, 9, 10]
    moved = paged.put(space, engine.cache, keys, table, is_durable=True)
    assert moved.statuses == [paged.NOT_DURABLE] * 3 and moved.durabilities == ["no_tier"] * 3
    assert all(space.contains(keys))
    assert paged.put(space, engine.cache, keys, table).durabilities == ["not_asked"] * 3
    with tempfile.TemporaryDirectory(dir=bin_dir) as disk:  # a temporary folder may be memory
        with (
            Daemon(bin_dir, "local", tmp_path, "64MiB", f"{disk}=256MiB") as own,
            cairn.connect(own.control, data=own.data) as client,
        ):
            lasting = open_space(client, "exact")
            moved = paged.put(lasting, engine.cache, keys, table, is_durable=True, timeout=20)
            assert moved.statuses == [paged.OK] * 3 and moved.durabilities == ["durable"] * 3
