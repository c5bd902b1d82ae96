# SPDX-License-Identifier: Apache-2.0
"""Groups of other kinds than K and V, in parts of the vLLM connector alone: which group of a space a
cache is in, what is refused by name, which blocks move, and that every byte of them does. With
vLLM's own classes: tests/connectors/test_vllm_kinds.py."""

import logging
import time
from types import SimpleNamespace

import fake_vllm
import numpy as np
import pytest
from cairn import InvalidArgumentError, Part
from cairn.keys import Group, derive_key
from conftest import open_space

fake_vllm.install()

from cairn.vllm.connector import CairnConnector, PlanMetadata, StepEnded  # noqa: E402
from cairn.vllm.group import BytesPart, PagedPart  # noqa: E402
from cairn.vllm.kinds import Shape, layers_of, shape_of  # noqa: E402
from cairn.vllm.layout import paged_cache  # noqa: E402
from cairn.vllm.model import model_of, part_of  # noqa: E402
from cairn.vllm.plan import Geometry, GroupTable, Load, Plan, Save  # noqa: E402
from cairn.vllm.scheduler import Scheduler  # noqa: E402
from cairn.vllm.settings import Settings  # noqa: E402
from cairn.vllm.worker import Worker  # noqa: E402

STORE, LATENT, ROW, STATE = 128, 576, 132, 1000
LOG = logging.getLogger("test")


class Dtype(str):
    itemsize = 1


class MLAAttentionSpec(fake_vllm.FullAttentionSpec):
    """Its latents, or the keys of an index: `role`, with a dtype of its own."""

    def __init__(self, head_size=LATENT, role="sparse", **changed):
        super().__init__(1)
        self.head_size, self.head_size_v = head_size, 0
        self.cache_role = SimpleNamespace(value=role)
        self.__dict__ |= changed


class SlidingWindowMLASpec(MLAAttentionSpec):
    sliding_window = 160


class MambaSpec:
    shapes, dtypes = ((3, 100), (100,)), ()
    mamba_type, mamba_cache_mode = SimpleNamespace(name="MAMBA2"), "align"
    num_speculative_blocks, tp_replicated = 0, False

    def __init__(self, block_size=32, **changed):
        self.block_size = block_size
        sizes = (Dtype("torch.bfloat16"), Dtype("torch.float32"))
        sizes[0].itemsize, sizes[1].itemsize = 2, 4
        self.dtypes = sizes
        self.__dict__ |= changed


class UniformTypeKVCacheSpecs:
    def __init__(self, specs):
        self.kv_cache_specs, self.block_size = specs, 32


def index_name(layer):
    return f"model.layers.{layer}.indexer.k_cache"


INDEX = MLAAttentionSpec(ROW, "indexer", dtype=Dtype("torch.uint8"))


def group_of(spec, *layers):
    names = [fake_vllm.layer_name(layer) for layer in layers]
    return SimpleNamespace(kv_cache_spec=spec, layer_names=names)


def sparse_group(layers=2, worker=True):
    """Latents and the keys of their index, which share a table. vLLM's scheduler is told of one."""
    specs = {fake_vllm.layer_name(i): MLAAttentionSpec() for i in range(layers)}
    specs |= {index_name(i): INDEX for i in range(layers)}
    spec = UniformTypeKVCacheSpecs(specs) if worker else MLAAttentionSpec()
    return SimpleNamespace(kv_cache_spec=spec, layer_names=list(specs))


def model_with(*groups, extra=None, **changed):
    config, cache = fake_vllm.configs({}, **changed)
    config.model_config.get_total_num_hidden_layers = lambda: 2
    cache.kv_cache_groups = list(groups)
    return model_of(config, cache, Settings("127.0.0.1:1", **(extra or {})))


# ------------------------------------------------------------------------------------------ kinds


def test_latents_are_one_plane_that_all_ranks_have():
    model = model_with(group_of(MLAAttentionSpec(), 0, 1), tensor=4)
    assert model.spec.groups == (Group("latent", 2, kv_heads=1, k_dim=LATENT),)
    assert model.layers[0].shape.is_replicated and not model.is_all_or_nothing
    names = [fake_vllm.layer_name(i) for i in range(2)]
    assert [part_of(names, model, rank, 4) for rank in range(4)] == [Part(range(2), range(1))] * 4
    windows = model_with(group_of(SlidingWindowMLASpec(), 0, 1))
    assert (windows.spec.groups[0].kind, windows.spec.groups[0].window_tokens) == ("latent", 160)


def test_the_keys_of_an_index_are_a_group_of_their_own():
    model = model_with(sparse_group())
    assert [group.kind for group in model.spec.groups] == ["latent", "opaque_rows"]
    assert [group.layer_indices for group in model.spec.groups] == [(0, 1)] * 2
    assert model.spec.groups[1].row_bytes == ROW and model.is_all_or_nothing
    assert [group.table for group in model.geometry.groups] == [0, 0]
    plain = model_with(group_of(MLAAttentionSpec(), 0, 1))
    assert plain.bytes_name == "" and model.spec.weights_revision.endswith(model.bytes_name)
    # An index of elements that the store knows is coded as latents are.
    keys = MLAAttentionSpec(128, "indexer")
    assert shape_of(keys) == Shape("latent", 1, 128, dtype="bf16", is_replicated=True)


def test_states_are_of_the_ends_of_vllm_s_blocks():
    groups = group_of(MambaSpec(544), 0), group_of(fake_vllm.FullAttentionSpec(2), 1)
    groups[1].kv_cache_spec.block_size = 544
    model = model_with(*groups)
    assert model.spec.groups[0] == Group("state", [0], state_bytes=STATE)
    assert model.spec.tokens_per_block == 544 and model.geometry.has_states
    other = model_with(group_of(MambaSpec(544, shapes=((100, 3), (100,))), 0), groups[1])
    assert other.spec.groups == model.spec.groups
    assert other.spec.weights_revision != model.spec.weights_revision
    with pytest.raises(InvalidArgumentError, match="tokens_per_block is 1088, expected the engine's"):
        model_with(*groups, extra={"tokens_per_block": 1088})
    with pytest.raises(InvalidArgumentError, match="blocks have 2112 tokens, and a block of the store"):
        model_with(group_of(MambaSpec(2112), 0))


def test_parts_of_states_that_ranks_have_are_layers_of_the_group():
    groups = group_of(MambaSpec(), 0, 2), group_of(fake_vllm.FullAttentionSpec(1), 1)
    model = model_with(*groups, tensor=2)
    assert model.spec.groups[0] == Group("state", [0, 2, 3, 5], state_bytes=STATE)
    assert [one.kv_heads for one in model.spec.groups] == [0, 2]
    names = [fake_vllm.layer_name(i) for i in (0, 2)]
    assert part_of(names, model, 0, 2) == Part(range(2), range(1))
    assert part_of(names, model, 1, 2) == Part(range(2, 4), range(1))
    same = model_with(group_of(MambaSpec(tp_replicated=True), 0, 2), groups[1], tensor=2)
    assert same.spec.groups[0].layers == [0, 2]
    assert part_of(names, same, 1, 2) == Part(range(2), range(1))


def test_groups_of_unlike_blocks_are_counted_in_what_all_divide():
    small, large = fake_vllm.FullAttentionSpec(2), fake_vllm.SlidingWindowSpec(2, 160)
    small.block_size, large.block_size = 32, 64
    model = model_with(group_of(small, 0), group_of(large, 1))
    assert (model.geometry.engine_tokens, model.geometry.store_tokens) == (64, 128)
    tables = model.geometry.tables([list(range(1, 9)), [0, 0, 7, 8]], 1, 1, range(128, 256), {})
    assert tables == [[5, 6, 7, 8], [7, 8]]


@pytest.mark.parametrize(
    "spec, says",
    [
        (type("RSWASpec", (fake_vllm.FullAttentionSpec,), {})(2), "is RSWASpec: Cairn does not know"),
        (SlidingWindowMLASpec(prefix_cacheable=False), "finds no prefixes in it"),
        (MLAAttentionSpec(model_version="deepseek_v4"), "only make sense together"),
        (MLAAttentionSpec(tokens_per_state=4), "a row is of 4 tokens"),
        (MLAAttentionSpec(state_content_bytes=656), "a row is 656 coded bytes"),
        (MLAAttentionSpec(dtype="torch.int8"), "the KV cache has torch.int8"),
        (MLAAttentionSpec(non_causal=True), "is not causal"),
        (MambaSpec(mamba_cache_mode="none"), "--mamba-cache-mode align"),
        (MambaSpec(num_speculative_blocks=2), "speculative decoding moves its states"),
    ],
)
def test_what_is_not_moved_is_refused_by_name(spec, says):
    with pytest.raises(InvalidArgumentError, match=says):
        shape_of(spec)


def test_groups_that_vllm_keeps_elsewhere_are_refused():
    for name, value in (("host_resident", True), ("enable_kv_transfer", False)):
        group = group_of(MLAAttentionSpec(), 0)
        setattr(group, name, value)
        with pytest.raises(InvalidArgumentError, match="keeps it elsewhere"):
            layers_of([group])


# -------------------------------------------------------------------------------------- decisions

HYBRID = Geometry(STORE, STORE, (GroupTable(0, STORE, is_state=True), GroupTable(1, STORE)))


def scheduler_of(geometry, found=0):
    answer = SimpleNamespace(block_count=found, lease=b"lease")
    lookups = SimpleNamespace(
        ask=lambda keys: SimpleNamespace(keys=keys, found=answer),
        poll=lambda lookup: lookup.found,
        drop=lambda lookup: None,
        release=lambda lease: None,
        yield_to=lambda seconds: None,
        is_open=True,
        is_lossless=True,
    )
    return Scheduler(lookups, bytes(32), geometry)


def planned(scheduler, request, tokens, tables, states=None):
    states = {request.request_id: states or {}}
    return scheduler.plan({request.request_id: tokens}, lambda _: tables, states)


def test_a_state_is_saved_where_vllm_offers_one():
    scheduler, request = scheduler_of(HYBRID), fake_vllm.Request("one", list(range(700)))
    scheduler.begin(request)
    scheduler.answer(request, 0)
    tables = [[0, 0, 0, 44, 45, 46], [1, 2, 3, 4, 5, 6]]
    (save,) = planned(scheduler, request, 512, tables, {(0, 512): 44}).saves
    assert len(save.keys) == 4 and save.blocks == [[-1, -1, -1, 44], [1, 2, 3, 4]]
    request.num_computed_tokens = 512
    (save,) = planned(scheduler, request, 188, tables).saves  # none of its end
    assert save.blocks == [[-1], [5]] and save.first_position == 512


def test_a_hit_loads_the_last_state():
    scheduler, request = scheduler_of(HYBRID, 4), fake_vllm.Request("one", list(range(4 * STORE + 1)))
    scheduler.begin(request)
    assert scheduler.answer(request, STORE) == 3 * STORE
    scheduler.allocated(request, [[0, 0, 0, 44, 45], [1, 2, 3, 4, 5]], 3 * STORE)
    (load,) = planned(scheduler, request, 0, [[], []]).loads
    assert load.blocks == [[-1, -1, 44], [2, 3, 4]] and load.is_placed


def test_a_prompt_that_ends_with_a_block_is_not_asked_for_to_its_end():
    """The last token is computed: of a state before it nothing is there."""
    scheduler, request = scheduler_of(HYBRID, 3), fake_vllm.Request("one", list(range(4 * STORE)))
    scheduler.begin(request)
    assert len(scheduler._chains["one"].lookup.keys) == 3
    assert scheduler.answer(request, 0) == 3 * STORE
    scheduler._chains["one"].lookup.found.block_count = 4
    assert scheduler.answer(request, 0) == 0


def test_a_request_from_before_a_move_is_not_saved_under_names_of_the_old_space():
    geometry, moved = Geometry(STORE, STORE), bytes([1] * 32)
    scheduler, before = scheduler_of(geometry), fake_vllm.Request("before", list(range(300)))
    scheduler.begin(before)
    scheduler.move(moved, geometry)
    assert not planned(scheduler, before, 300, [[1, 2]]).saves
    after = fake_vllm.Request("after", list(range(300)))
    scheduler.begin(after)
    (save,) = planned(scheduler, after, 300, [[3, 4]]).saves
    assert save.keys[0] == derive_key(moved, None, list(range(STORE)), [])


def test_a_state_for_which_vllm_has_no_block_fails_the_load():
    scheduler, request = scheduler_of(HYBRID, 4), fake_vllm.Request("one", list(range(4 * STORE + 1)))
    scheduler.begin(request)
    scheduler.allocated(request, [[0, 0, 0, 0], [1, 2, 3, 4]], 4 * STORE)
    (load,) = planned(scheduler, request, 0, [[], []]).loads
    assert not load.is_placed


# ------------------------------------------------------------------------------------------ bytes

BLOCKS, TOKENS = 20, 32
KINDS = (
    Group("latent", 2, kv_heads=1, k_dim=LATENT),
    Group("opaque_rows", 2, row_bytes=ROW),
    Group("state", 3, state_bytes=STATE),
)


def arrays_of(seed):
    """As vLLM lays them out: pages of states have a gap between them."""
    rng = np.random.default_rng(seed)
    latents = [rng.integers(0, 20000, (BLOCKS, 1, TOKENS, LATENT), np.uint16) for _ in range(2)]
    rows = [rng.integers(0, 256, (BLOCKS, 1, TOKENS, ROW), np.uint8) for _ in range(2)]
    pages = [rng.integers(0, 256, (BLOCKS, 1, 1, STATE + 24), np.uint8) for _ in range(3)]
    return latents, rows, [page[..., :STATE] for page in pages]


def parts_of(arrays, is_writer=True):
    latents, rows, states = arrays
    cache = paged_cache(latents, Shape("latent", 1, LATENT), None)
    return [
        PagedPart(cache, Part(), 1, is_writer),
        BytesPart(rows, TOKENS * ROW, Part(group=1), 1, is_writer),
        BytesPart(states, STATE, Part(group=2), 1, is_writer),
    ]


@pytest.fixture
def make_worker(client):
    opened = []
    with open_space(client, "raw", groups=KINDS, tokens_per_block=2 * TOKENS) as space:

        def make(arrays, is_writer=True):
            session = SimpleNamespace(space=space)
            made = Worker(session, Settings("127.0.0.1:1"), parts_of(arrays, is_writer), LOG)
            opened.append(made)
            return made

        yield space, make
        for one in opened:
            one.close()


def wait(worker):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        worker.step(Plan(is_idle=True))
        ended = worker.take_ended()
        if ended.requests:
            return ended
    raise AssertionError("the load did not end")


SAVED = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [-1, -1, 9]]
LOADED = [[11, 12, 13, 14, 15, 16], [11, 12, 13, 14, 15, 16], [-1, -1, 19]]


def save_all(worker, keys):
    worker.save(Plan(saves=[Save(keys, SAVED, None, 0, False)]))
    worker.drain()


def test_every_byte_of_every_kind_comes_back(make_worker):
    space, make = make_worker
    saved, loaded = arrays_of(1), arrays_of(2)
    before = [[layer.copy() for layer in kind] for kind in loaded]
    keys = space.keys(range(6 * TOKENS))
    writer, other = make(saved), make(loaded)
    save_all(writer, keys)
    assert space.match(keys, lease=False).block_count == 3
    assert space.match(keys[:2], lease=False).block_count == 0  # no state is of its end
    other.step(Plan(loads=[Load("one", keys, LOADED, None)]))
    ended = wait(other)
    assert not ended.failed_requests and not ended.failed_blocks
    for kind, group in enumerate(SAVED):
        pairs = [pair for pair in zip(group, LOADED[kind], strict=True) if pair[0] >= 0]
        for was, new, old in zip(saved[kind], loaded[kind], before[kind], strict=True):
            for source, target in pairs:
                old[target] = was[source]
            assert np.array_equal(new, old)  # and nothing else was written


def test_the_lowest_rank_alone_puts_what_all_have(make_worker):
    space, make = make_worker
    keys = space.keys(range(6 * TOKENS))
    save_all(make(arrays_of(1), is_writer=False), keys)
    assert space.contains(keys) == [False] * 3
    save_all(make(arrays_of(1)), keys)
    assert space.match(keys, lease=False).block_count == 3


def test_a_kind_that_is_missing_fails_the_load(make_worker):
    space, make = make_worker
    keys = space.keys(range(6 * TOKENS))
    worker = make(arrays_of(1))
    without = [SAVED[0], SAVED[1], [-1, -1, -1]]
    worker.save(Plan(saves=[Save(keys, without, None, 0, False)]))
    worker.drain()
    assert space.match(keys, lease=False).block_count == 0
    for load in (Load("one", keys, LOADED, None), Load("two", keys, LOADED, None, None, False)):
        worker.step(Plan(loads=[load]))
        assert wait(worker).failed_requests == {load.request_id}


def test_bytes_in_pieces_are_refused():
    turned = np.zeros((BLOCKS, ROW, TOKENS), np.uint8).swapaxes(1, 2)
    with pytest.raises(InvalidArgumentError, match="is not one piece of 4224 bytes"):
        BytesPart([turned], TOKENS * ROW, Part(), 1)
    with pytest.raises(InvalidArgumentError, match="is not one piece of 1000 bytes"):
        BytesPart([np.zeros((BLOCKS, 1, 1, 999), np.uint8)], STATE, Part(), 1)


# ------------------------------------------------------------------------ what a scheduler is told


def connector_of(settings, role, group):
    config, cache = fake_vllm.configs(settings)
    config.model_config.get_total_num_hidden_layers = lambda: 2
    cache.kv_cache_groups = [group]
    return CairnConnector(config, role, cache)


def test_a_scheduler_is_told_of_shapes_that_it_does_not_see(settings):
    """vLLM gives it the first layer's of those that share a table."""
    scheduler = connector_of(settings, "scheduler", sparse_group(worker=False))
    worker = connector_of(settings, "worker", sparse_group())
    try:
        assert worker._session.wait(30) and not scheduler._session.wait(1)
        latents, rows, _ = arrays_of(1)
        caches = {fake_vllm.layer_name(i): latents[i] for i in range(2)}
        worker.register_kv_caches(caches | {index_name(i): rows[i] for i in range(2)})
        guessed = PlanMetadata(Plan(loads=[Load("one", [], [], None)]), scheduler._model)
        worker.bind_connector_metadata(guessed)
        assert not worker._plan.loads  # of another space
        told = worker.build_connector_worker_meta()
        scheduler.update_connector_output(
            SimpleNamespace(
                kv_connector_worker_meta=StepEnded(set(), {}).aggregate(told),
                finished_recving=None,
                invalid_block_ids=(),
                failed_recving=(),
            )
        )
        assert scheduler._session.wait(30)
        assert scheduler._model.spec == worker._model.spec
        assert scheduler._decider._geometry == worker._model.geometry
        worker.bind_connector_metadata(PlanMetadata(Plan(), scheduler._model))
        assert worker.build_connector_worker_meta() is None
    finally:
        for one in (scheduler, worker):
            one.shutdown()


@pytest.mark.parametrize("name", ["capture", "query_squares"])
def test_what_looks_at_queries_wants_k_and_v(settings, tmp_path, name):
    extra = settings | {name: str(tmp_path / "new") if name == "capture" else True}
    worker = connector_of(extra, "worker", group_of(MLAAttentionSpec(), 0, 1))
    latents, _, _ = arrays_of(1)
    with pytest.raises(InvalidArgumentError, match=f"{name} needs K and V"):
        worker.register_kv_caches({fake_vllm.layer_name(i): latents[i] for i in range(2)})
    worker.shutdown()
