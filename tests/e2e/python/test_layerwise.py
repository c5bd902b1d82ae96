# SPDX-License-Identifier: Apache-2.0
"""Gets layer by layer: the first layers are used while the others are on their way."""

import asyncio
import select
import threading
import time

import numpy as np
import pytest
from cairn import DeadlineExceededError, InvalidArgumentError, Part, layerwise, paged
from conftest import LAYERS, TOKENS, make_kv, open_space
from test_paged import BLOCKS, ENGINE, LAYOUTS, Packed, check

TABLE = [3, 0, 7, 5, 10, 1]  # of three of the store's blocks


@pytest.fixture
def stored(client):
    """A space with three blocks, and their K and V, [layers, heads, tokens, dim]."""
    space = open_space(client)
    keys = space.keys(range(3 * TOKENS))
    planes = [make_kv(i) for i in range(3)]
    for i, (k, v) in enumerate(planes):
        space.put(keys[i], k, v)
    k, v = (np.concatenate([plane[i] for plane in planes], axis=2) for i in range(2))
    return space, keys, k, v


class Gate:
    """Lets one step of a transfer after the other through."""

    def __init__(self, monkeypatch):
        self._get, self._steps = paged.get, threading.Semaphore(0)
        monkeypatch.setattr(paged, "get", self._wait)

    def _wait(self, *arguments, **more):
        assert self._steps.acquire(timeout=20)
        return self._get(*arguments, **more)

    def open(self, steps):
        self._steps.release(steps)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", [1, 3])
def test_layers_come_one_after_the_other(stored, layout, step):
    space, keys, k, v = stored
    engine = layout()
    transfer = layerwise.get(space, engine.cache, keys, TABLE, layers_per_step=step)
    for layer in range(LAYERS):
        assert transfer.wait_layer(layer, 10) == 3
    moved = transfer.result()
    check(engine, TABLE, k, v)
    assert moved.statuses == [paged.OK] * 3 and moved.bytes == k.nbytes + v.nbytes
    untouched = set(range(BLOCKS)) - set(TABLE)
    assert all((engine.block(0, block)[0] == 9).all() for block in untouched)


def test_the_first_layer_is_there_before_the_others(stored, monkeypatch):
    space, keys, k, _ = stored
    gate, engine = Gate(monkeypatch), Packed()
    transfer = layerwise.get(space, engine.cache, keys, TABLE)
    assert transfer.poll() == 0
    with pytest.raises(DeadlineExceededError, match="layer 0 did not come"):
        transfer.wait_layer(0, 0.01)
    gate.open(1)
    assert select.select([transfer], [], [], 10)[0] == [transfer]
    assert transfer.wait_layer(0, 10) == 3 and transfer.poll() == 1 and not transfer.is_over
    assert repr(transfer) == f"<cairn.layerwise.Transfer: 1 of {LAYERS} layers>"
    np.testing.assert_array_equal(engine.block(0, TABLE[0])[0], k[0][:, :ENGINE])
    assert (engine.layers[1] == 9).all()
    assert not select.select([transfer], [], [], 0)[0]  # poll() took what it held
    gate.open(LAYERS)
    assert transfer.wait_layer(LAYERS - 1, 10) == 3
    transfer.result()
    assert transfer.is_over and transfer.poll() == LAYERS


def test_a_cancelled_transfer_begins_no_more(stored, monkeypatch):
    space, keys, _, _ = stored
    gate, engine = Gate(monkeypatch), Packed()
    transfer = layerwise.get(space, engine.cache, keys, TABLE)
    gate.open(1)
    transfer.wait_layer(0, 10)
    transfer.cancel()
    gate.open(1)  # the one that may have begun
    moved = transfer.result()
    assert moved.statuses == [layerwise.CANCELLED] * 3
    assert (engine.layers[2] == 9).all() and transfer.wait_layer(2, 0) == 0


def test_a_key_that_is_not_there_ends_what_counts(stored):
    space, keys, k, v = stored
    engine = Packed()
    space.delete([keys[1]])
    transfer = layerwise.get(space, engine.cache, keys, TABLE)
    assert transfer.wait_layer(LAYERS - 1, 10) == 1
    assert transfer.result().statuses == [paged.OK, paged.MISS, paged.OK]
    check(engine, TABLE[:2], k, v)


def test_a_rank_has_its_layers_and_heads(stored):
    space, keys, k, v = stored
    layers = [np.zeros((BLOCKS, 1, ENGINE, Packed.shape[3]), np.uint16) for _ in range(2)]
    block, head, token, dim = layers[0].strides
    cache = paged.PagedCache(
        layers,
        tokens_per_block=ENGINE,
        block_count=BLOCKS,
        k=paged.Placement(block, head, token, dim),
        v=paged.Placement(block, head, token, dim, offset=Packed.shape[3] // 2 * dim),
    )
    part = Part(layers=range(1, 3), heads=range(1, 2))
    layerwise.get(space, cache, keys, TABLE, part=part).result()
    half = Packed.shape[3] // 2
    for i, block in enumerate(TABLE):
        rows = slice(i * ENGINE, (i + 1) * ENGINE)
        np.testing.assert_array_equal(layers[1][block, 0, :, :half], k[2][1, rows])
        np.testing.assert_array_equal(layers[0][block, 0, :, half:], v[1][1, rows])


def test_asyncio_awaits_it_beside_others(stored):
    space, keys, k, v = stored
    engines = [Packed(), Packed()]

    async def both():
        transfers = [layerwise.get(space, engine.cache, keys, TABLE) for engine in engines]
        return await asyncio.gather(*(asyncio.wait_for(one, 20) for one in transfers))

    assert [moved.statuses for moved in asyncio.run(both())] == [[paged.OK] * 3] * 2
    for engine in engines:
        check(engine, TABLE, k, v)


def test_late_is_an_answer(stored, monkeypatch):
    space, keys, _, _ = stored
    gate, engine = Gate(monkeypatch), Packed()
    transfer = layerwise.get(space, engine.cache, keys, TABLE, timeout=0.01)
    while time.monotonic() < transfer._deadline:
        pass
    gate.open(1)  # the one that may have begun
    assert transfer.result().statuses != [paged.OK] * 3
    assert transfer.wait_layer(LAYERS - 1, 0) < 3


def test_a_table_that_does_not_fit_is_refused_at_once(stored):
    space, keys, _, _ = stored
    with pytest.raises(InvalidArgumentError, match="3 keys and 5 blocks of the engine, expected 2"):
        layerwise.get(space, Packed().cache, keys, TABLE[:5])
