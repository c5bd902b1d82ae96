# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector where KV lies on a CUDA device, which is emulated, and torch a stand-in whose
streams do things as late as they may: what is loaded is what was computed, in every layout, and the
engine goes on whatever the device does."""

import dataclasses
import functools
import logging
import threading
import time

import cairn
import fake_torch
import fake_vllm
import numpy as np
import pytest
from cairn import InvalidArgumentError, Part, ResourceExhaustedError, paged
from conftest import PATIENT, open_space
from own_daemon import OwnDaemon

fake_vllm.install()

from cairn.vllm import device_saves  # noqa: E402
from cairn.vllm.cuda import Cuda  # noqa: E402
from cairn.vllm.device_bytes import DeviceBytes  # noqa: E402
from cairn.vllm.group import PagedPart  # noqa: E402
from cairn.vllm.kinds import Shape  # noqa: E402
from cairn.vllm.layout import coded_arrays, paged_cache  # noqa: E402
from cairn.vllm.plan import Load, Plan, Save  # noqa: E402
from cairn.vllm.settings import Settings  # noqa: E402
from cairn.vllm.staging import Staging  # noqa: E402
from cairn.vllm.worker import OnDevice, Worker  # noqa: E402

LAYERS, HEADS, DIM, TOKENS = 4, 2, 64, 16
STORE = 32  # tokens: two blocks of the engine's
BLOCKS = 8
log = logging.getLogger("vllm.cairn")


def packed(letters):
    """[blocks, heads, tokens, K then V] of each layer, where memory has the axes in that order.
    Without L, each layer has memory of its own."""
    if "L" not in letters:
        return [packed("L" + letters)[0] for _ in range(LAYERS)]
    extents = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": 2 * DIM}
    whole = fake_torch.Tensor.of(np.zeros([extents[one] for one in letters], np.uint16))
    ordered = whole.values.transpose([letters.index(one) for one in "LBHNC"])
    return [whole.view(ordered[i]) for i in range(LAYERS)]


LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC", "BHNC", "BNHC")


class _Session:
    def __init__(self, space):
        self.space = space


class Rank:
    """A worker without an engine, and its arrays."""

    def __init__(self, space, layers, slots=4, **settings):
        self.settings = Settings("127.0.0.1:1", **(PATIENT | settings))
        self.cuda = Cuda(0, log)
        self.stream = self.cuda.open_stream()
        self.layers, shape = layers, Shape("kv", HEADS, DIM)
        cache = paged_cache(layers, shape, None, self.stream.number)
        assert (cache.tokens_per_block, cache.block_count) == (TOKENS, BLOCKS)
        groups = [PagedPart(cache, Part(), 1)]
        room = slots * space.source_bytes() + 1
        self.staging = Staging(self.cuda, groups, [layers], [shape], STORE, room)
        on_device = OnDevice(self.cuda, self.stream, self.staging)
        self.worker = Worker(_Session(space), self.settings, groups, log, device=on_device)

    def compute(self, blocks, seed):
        """On the engine's stream: as a step does, which is not over when it has been planned."""
        for i, layer in enumerate(self.layers):
            for block in blocks:
                act = functools.partial(write, layer, block, values_of(seed, i, block))
                fake_torch.current_stream().put(act)

    def wrong(self, blocks, seed, computed):
        """Which are not as those that were computed."""
        fake_torch.current_stream().synchronize()
        return [
            block
            for block, was in zip(blocks, computed, strict=True)
            if not all(
                np.array_equal(read(one, block), values_of(seed, i, was))
                for i, one in enumerate(self.layers)
            )
        ]

    def save(self, keys, blocks):
        self.worker.save(Plan(saves=[Save(keys, [blocks], None, 0, False)]))

    def allow(self, **seconds):
        settings = dataclasses.replace(self.settings, **seconds)
        self.worker._settings = self.worker._saves._settings = settings

    def load(self, keys, blocks):
        """The engine's blocks that failed."""
        self.worker.step(Plan(loads=[Load("r", keys, [blocks], None)]))
        return self.end()

    def end(self):
        while True:
            self.worker.step(Plan(is_idle=True))
            ended = self.worker.take_ended()
            if ended.requests:
                return ended.failed_blocks


def planes(layer, block):
    """K and V [heads, tokens, dim] of a block."""
    return layer.values[block][..., :DIM], layer.values[block][..., DIM:]


def write(layer, block, values):
    for plane, given in zip(planes(layer, block), values, strict=True):
        plane[...] = given


def read(layer, block):
    return np.stack(planes(layer, block))


def values_of(seed, layer, block):
    rng = np.random.default_rng((seed, layer, block))
    values = rng.standard_normal((2, HEADS, TOKENS, DIM), np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def space(client):
    with open_space(client, "exact", tokens_per_block=STORE) as opened:
        yield opened


@pytest.fixture
def make(device, space, request):
    def build(layout="LBHNC", **more):
        rank = Rank(more.pop("space", space), packed(layout), **more)
        request.addfinalizer(lambda: fake_torch.fail() or rank.worker.close())
        return rank

    return build


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_come_back_as_they_were_in_every_layout(make, space, layout):
    rank, keys = make(layout), space.keys(range(3 * STORE))
    rank.compute(range(6), 1)
    rank.save(keys, [5, 0, 2, 1, 4, 3])
    rank.compute(range(8), 2)  # the engine uses them anew at once
    rank.worker.drain()
    assert rank.worker.take_counts()["saved_blocks"] == 6
    copies = 1 if "L" in layout else LAYERS  # in one piece of memory
    assert len(fake_torch.copies) == copies
    other = make("BHLNC")  # engines of other layouts share them
    for one, table in ((rank, [7, 6, 3, 2, paged.SKIPPED, 5]), (other, [0, 1, 2, 3, 4, 5])):
        one.compute(range(8), 3)  # of a step that is not over, and had them before
        assert one.load(keys, table) == set()
        there = [i for i, block in enumerate(table) if block != paged.SKIPPED]
        computed = [[5, 0, 2, 1, 4, 3][i] for i in there]
        assert one.wrong([table[i] for i in there], 1, computed) == []
    assert rank.wrong([0, 1, 4], 3, [0, 1, 4]) == [], "no other block was touched"


def test_who_waits_for_whom(make, space):
    rank, keys, engine = make(), space.keys(range(STORE)), 0
    rank.compute([1, 2], 1)
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert fake_torch.waits == [(rank.staging.stream.number, engine)]
    fake_torch.waits.clear()
    rank.load(keys, [3, 4])
    assert fake_torch.waits == [(rank.stream.number, engine), (engine, rank.stream.number)]
    assert 0 not in (rank.stream.number, rank.staging.stream.number), "the default one"


def test_a_step_does_not_wait_for_its_saves(make, space):
    """More than the staging has room for is dropped."""
    rank, keys = make(slots=2), space.keys(range(4 * STORE))
    may_go_on = threading.Event()
    rank.worker._saves._puts.submit(may_go_on.wait, 10)
    rank.compute(range(8), 1)
    began = time.monotonic()
    rank.save(keys[:3], [0, 1, 2, 3, 4, 5])
    rank.save(keys[3:], [6, 7])
    assert rank.worker.take_counts()["dropped_blocks"] == 4 and time.monotonic() - began < 5
    may_go_on.set()
    rank.worker.drain()
    assert rank.worker.take_counts()["saved_blocks"] == 4
    assert rank.load(keys[:2], [3, 2, 1, 0]) == set()
    assert rank.wrong([3, 2, 1, 0], 1, [0, 1, 2, 3]) == []


def test_slots_go_round(make, space):
    rank, keys, table = make(slots=3), space.keys(range(8 * STORE)), [4, 1, 6, 3]
    for i in range(0, 8, 2):
        rank.compute(table, i)
        rank.save(keys[i : i + 2], table)
        rank.compute(table, 99)
        rank.worker.drain()
    for i in range(0, 8, 2):
        assert rank.load(keys[i : i + 2], [0, 2, 5, 7]) == set()
        assert rank.wrong([0, 2, 5, 7], i, table) == []


def test_a_chain_is_put_in_calls_that_follow_one_another(make, space, caplog, monkeypatch):
    rank, keys, calls, put = make(), space.keys(range(4 * STORE)), [], paged.put

    def noted(to, cache, some, blocks, **more):
        calls.append((some, more["parent"], more["first_position"], more["is_derived"]))
        return put(to, cache, some, blocks, **more)

    monkeypatch.setattr(paged, "put", noted)
    monkeypatch.setattr(device_saves, "PUT_KEYS", 2)
    rank.compute(range(6), 1)
    save = Save(keys[1:], [[0, 1, 2, 3, 4, 5]], keys[0], STORE, True)
    rank.worker.save(Plan(saves=[save]))
    rank.worker.drain()
    assert calls == [
        (keys[1:3], keys[0], STORE, True),
        (keys[3:], keys[2], 3 * STORE, True),
    ]
    # Which a lossless space does not take: the step does not notice, and the log says it once.
    counts = rank.worker.take_counts()
    assert counts["dropped_blocks"] == 6 and counts["saved_blocks"] == 0
    assert caplog.text.count("blocks were not saved: ") == 1


def test_blocks_that_a_group_has_let_go_of_are_left_out(make, space):
    rank, keys = make(), space.keys(range(3 * STORE))
    rank.compute(range(6), 1)
    rank.save(keys, [0, 1, paged.SKIPPED, 3, 4, 5])
    rank.worker.drain()
    assert [space.contains([key])[0] for key in keys] == [True, False, True]
    assert rank.load(keys[2:], [6, 7]) == set() and rank.wrong([6, 7], 1, [4, 5]) == []


def test_a_load_that_is_given_up_is_over_before_what_comes_later(make, space):
    rank, keys = make(load_timeout=0.3), space.keys(range(STORE))
    rank.compute([1, 2], 1)
    rank.save(keys, [1, 2])
    rank.worker.drain()
    fake_torch.waits.clear()
    fake_torch.fail(hangs=True)
    began = time.monotonic()
    assert rank.load(keys, [3, 4]) == {3, 4} and time.monotonic() - began < 10
    assert fake_torch.waits[-1] == (0, rank.stream.number), "what computes them anew waits for it"
    assert not rank.cuda.is_lost
    fake_torch.fail()
    rank.allow(load_timeout=20.0)
    assert rank.load(keys, [5, 6]) == set() and rank.wrong([5, 6], 1, [1, 2]) == []


def test_a_device_that_is_lost_is_said_once(make, space, caplog):
    rank, keys = make(), space.keys(range(STORE))
    rank.compute([1, 2], 1)
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert rank.load(keys, [5, 6]) == set()
    fake_torch.fail(is_dead=True)
    for _ in range(3):
        assert rank.load(keys, [3, 4]) == {3, 4}
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert rank.worker.take_counts()["dropped_blocks"] == 2
    assert caplog.text.count("nothing is cached from now on") == 1
    assert caplog.text.count("were not loaded") == 1, "of the load that met it"


def test_puts_that_meet_it_first_say_it(make, space, caplog):
    rank, keys = make(), space.keys(range(3 * STORE))
    fake_torch.fail(is_dead=True)
    for key in keys:
        rank.save([key], [1, 2])
        rank.worker.drain()
    assert rank.worker.take_counts()["dropped_blocks"] == 6
    assert caplog.text.count("nothing is cached from now on") == 1


def test_streams_that_fail_lose_the_device(make, space, caplog, monkeypatch):
    rank, keys = make(), space.keys(range(STORE))

    def broken(*arguments, **more):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(fake_torch.Stream, "record_event", broken)
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert rank.load(keys, [3, 4]) == {3, 4}
    assert rank.worker.take_counts()["dropped_blocks"] == 2
    assert caplog.text.count("nothing is cached from now on") == 1 and "illegal memory access" in caplog.text


def test_copies_that_fail_lose_the_device(make, space, caplog, monkeypatch):
    rank, keys = make(), space.keys(range(STORE))
    rank.cuda._torch = object()
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert rank.worker.take_counts()["dropped_blocks"] == 2 and "nothing is cached from now on" in caplog.text
    assert rank.staging._used == 0


@pytest.fixture
def own(device, bin_dir):
    """A daemon of the test's own, and a space of it."""
    with OwnDaemon(bin_dir) as daemon:
        daemon.start()
        with cairn.connect(daemon.control, data=daemon.data) as client:
            with open_space(client, "exact", tokens_per_block=STORE) as space:
                yield daemon, space


def test_a_daemon_that_is_gone_loses_no_device(own, make):
    daemon, space = own
    rank, keys = make(space=space), space.keys(range(STORE))
    rank.compute([1, 2], 1)
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert rank.worker.take_counts()["saved_blocks"] == 2
    rank.allow(load_timeout=1.0, save_timeout=1.0)
    daemon.kill()
    assert rank.load(keys, [3, 4]) == {3, 4}
    rank.save(keys, [1, 2])
    rank.worker.drain()
    assert rank.worker.take_counts()["dropped_blocks"] == 2 and not rank.cuda.is_lost


def test_a_frozen_put_delays_no_load(own, make):
    """Loads and puts have movers of their own."""
    daemon, space = own
    rank = make(space=space)
    keys = space.keys(range(2 * STORE))
    rank.compute(range(4), 1)
    rank.save(keys[:1], [0, 1])
    rank.worker.drain()
    assert rank.load(keys[:1], [4, 5]) == set()  # which makes a mover
    rank.allow(load_timeout=0.5)
    daemon.freeze()
    rank.save(keys[1:], [2, 3])
    time.sleep(0.2)  # until it is at it
    began = time.monotonic()
    assert rank.load(keys[:1], [6, 7]) == {6, 7}
    assert time.monotonic() - began < 5
    daemon.thaw()


def test_staging_without_room(make, space):
    one = space.source_bytes()
    with pytest.raises(InvalidArgumentError, match=f"staging_bytes is 1, and one block of 32 tokens takes {one}"):
        make(slots=0)
    fake_torch.faults.room = one
    with pytest.raises(ResourceExhaustedError, match="staging_bytes"):
        make(slots=4)


# -------------------------------------------------------------------------------- bytes beside them

ROW, STATE = 132, 1000
KINDS = (
    cairn.Group("latent", LAYERS, kv_heads=1, k_dim=DIM),
    cairn.Group("opaque_rows", LAYERS, row_bytes=ROW),
    cairn.Group("state", LAYERS, state_bytes=STATE),
)
SAVED = [[6, 0, 2, 1, 4, 3], [6, 0, 2, 1, 4, 3], [7, -1, 5]]


class RankOfKinds(Rank):
    """Latents, rows of an index and states, in memory of its own for each layer or for all. slots: heads
    of coded rows, which are in the place of those of an index, behind one another for each token."""

    def __init__(self, space, is_together, seed, slots=1):
        rng = np.random.default_rng(seed)
        self.settings = Settings("127.0.0.1:1", **PATIENT)
        self.cuda, self.arrays = Cuda(0, log), []
        self.stream = self.cuda.open_stream()
        for shape, dtype in (
            ((BLOCKS, 1, TOKENS, DIM), np.uint16),
            ((BLOCKS, TOKENS, slots, ROW // slots), np.uint8),
            ((BLOCKS, 1, 1, STATE + 24), np.uint8),
        ):
            values = rng.integers(0, 250, (LAYERS, *shape)).astype(dtype)
            whole = fake_torch.Tensor.of(values)
            layers = [whole[i] for i in range(LAYERS)]
            self.arrays.append(layers if is_together else list(map(fake_torch.Tensor.of, values)))
        self.arrays[2] = [one.view(one.values[..., :STATE]) for one in self.arrays[2]]
        of_engine = [one.swapaxes(1, 2) for one in self.arrays[1]]
        coded = Shape("opaque_rows", bytes=ROW, slots=slots)
        if slots > 1:
            of_engine = coded_arrays(of_engine, coded, TOKENS, "LBNHC")
            assert [one.shape for one in of_engine] == [one.shape for one in self.arrays[1]]
        self.arrays[1] = of_engine
        latents, rows, states = self.arrays
        shapes = [Shape("latent", 1, DIM), coded, Shape("state")]
        cache = paged_cache(latents, shapes[0], None, self.stream.number)
        on = self.cuda, self.stream
        groups = [
            PagedPart(cache, Part(), 1),
            DeviceBytes(*on, rows, TOKENS * ROW, Part(group=1), 1, True, TOKENS),
            DeviceBytes(*on, states, STATE, Part(group=2), 1),
        ]
        room = 4 * sum(space.source_bytes(group.part) for group in groups)
        self.staging = Staging(self.cuda, groups, self.arrays, shapes, STORE, room)
        on_device = OnDevice(self.cuda, self.stream, self.staging)
        self.worker = Worker(_Session(space), self.settings, groups, log, device=on_device)

    def compute(self, tables, seed):
        """As a step does, which is not over when it has been planned."""
        rng = np.random.default_rng(seed)
        for of, table in zip(self.arrays, tables, strict=True):
            for layer in of:
                for block in table:
                    values = rng.integers(0, 250, layer.shape[1:]).astype(layer.dtype)
                    act = functools.partial(layer.values.__setitem__, block, values)
                    fake_torch.current_stream().put(act if block >= 0 else lambda: None)

    def copy(self):
        fake_torch.current_stream().synchronize()
        return [[layer.values.copy() for layer in of] for of in self.arrays]


@pytest.fixture
def make_kinds(device, client, request):
    with open_space(client, "raw", groups=KINDS, tokens_per_block=STORE) as space:

        def build(**more):
            rank = RankOfKinds(space, **more)
            request.addfinalizer(lambda: fake_torch.fail() or rank.worker.close())
            return rank

        yield space, build


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("is_together", [True, False])
def test_states_and_rows_come_back_as_they_were(make_kinds, is_together, slots):
    """In order with what the engine computes: blocks are written to again when they are staged."""
    space, build = make_kinds
    keys = space.keys(range(3 * STORE))
    first, second = (
        build(is_together=one, seed=seed, slots=slots) for one, seed in ((is_together, 1), (True, 2))
    )
    first.compute(SAVED, 3)
    first.worker.save(Plan(saves=[Save(keys, SAVED, None, 0, False)]))
    first.compute(SAVED, 4)  # of a later step
    first.worker.drain()
    assert space.match(keys, lease=False).block_count == 3
    assert space.contains(keys) == [True, False, True]
    again = build(is_together=True, seed=1, slots=slots)
    again.compute(SAVED, 3)
    was, wanted = again.copy(), second.copy()
    tables = [[-1, 1, 2, 3, 4, 5], [0, -1, 2, 3, 4, 5], [-1, -1, 6]]
    second.compute([[0, 1], [0, 1], [6]], 5)  # of a step that has yet to end
    second.worker.step(Plan(loads=[Load("r", keys, tables, None)]))
    second.end()
    fake_torch.current_stream().synchronize()
    later = RankOfKinds.copy(second)
    for group, (from_, to) in enumerate(zip(SAVED, tables, strict=True)):
        for layer in range(LAYERS):
            for source, target in zip(from_, to, strict=True):
                if target >= 0 and source >= 0:
                    wanted[group][layer][target] = was[group][layer][source]
            touched = {0, 1} - set(to) if group < 2 else set()
            same = [i for i in range(BLOCKS) if i not in touched]
            assert np.array_equal(later[group][layer][same], wanted[group][layer][same]), group


def test_bytes_of_a_device_that_fails_are_a_miss(make_kinds, monkeypatch, caplog):
    space, build = make_kinds
    keys = space.keys(range(3 * STORE))
    rank = build(is_together=True, seed=1)
    rank.compute(SAVED, 3)
    rank.worker.save(Plan(saves=[Save(keys, SAVED, None, 0, False)]))
    rank.worker.drain()

    def broken(*arguments, **more):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(fake_torch.Tensor, "index_copy_", broken)
    rank.worker.step(Plan(loads=[Load("r", keys, SAVED, None)]))
    assert rank.end()
    assert caplog.text.count("nothing is cached from now on") == 1


def test_rows_whose_channels_lie_apart(device):
    layers = [fake_torch.Tensor.of(np.zeros((BLOCKS, HEADS, 2 * DIM, TOKENS), np.uint16)) for _ in "12"]
    turned = [layer.view(layer.values.swapaxes(2, 3)) for layer in layers]
    with pytest.raises(InvalidArgumentError, match="the channels of a row are adjacent"):
        paged_cache(turned, Shape("kv", HEADS, DIM), None, 5)
