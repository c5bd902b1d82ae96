# SPDX-License-Identifier: Apache-2.0
"""Kinds of KV by vLLM's own classes: each class of its caches is in docs/guides/vllm.md, moved or
refused, and those that are moved go through the connector as vLLM's own scheduler and managers plan
it: chunks, hits, preemptions, loads that fail. The tensors are vLLM's too; what a model would write
there depends on all tokens before, so that a wrong byte shows."""

import functools
import itertools
import math
import pathlib
import re
import time
from types import SimpleNamespace

import kv_kinds
import numpy as np
import pytest
import torch
from cairn import InvalidArgumentError
from cairn.vllm import CairnConnector
from cairn.vllm.kinds import MOVED, shape_of
from cairn.vllm.layout import coded_arrays
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.utils import allocate_kv_cache

try:
    from vllm.v1.core import kv_cache_planning as planning  # from 0.33 on
except ImportError:
    planning = kv_cache_utils

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guides" / "vllm.md"
_numbers = itertools.count()

# -------------------------------------------------------------------------------------- the table


def rows_of_the_guide():
    """Of the table of kinds, by the class that a row begins with: its cells."""
    text = GUIDE.read_text(encoding="utf-8").split("### Kinds of KV")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if re.match(r"\| `\w+`", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {re.sub(r"`| \(.*\)", "", row[0]): row[1:] for row in cells}


def test_every_class_of_vllm_s_has_an_example():
    """One that is new belongs into kv_kinds.py and the guide."""
    assert {name.split(",")[0] for name in kv_kinds.examples()} == kv_kinds.classes()


def test_the_guide_says_of_every_class_what_comes_of_it():
    rows = rows_of_the_guide()
    assert set(rows) == set(kv_kinds.examples())
    for name, spec in kv_kinds.examples().items():
        made, cells = kv_kinds.made_of(spec), rows[name]
        if made.startswith("refused"):
            assert cells[1] == "–" and cells[2] == "refused by name", (name, made)
        else:
            assert all(f"`{kind}`" in cells[1] for kind in made.split(", ")), (name, made)
            assert re.match("an engine|its classes", cells[2]), name


@pytest.mark.parametrize("name", sorted(kv_kinds.EXAMPLES))
def test_a_subclass_is_none_of_ours(name):
    """What is not known is refused by its own name, whatever it derives from."""
    spec = kv_kinds.examples()[name]
    later = type("LaterSpec", (type(spec),), {})
    object.__setattr__(spec, "__class__", later)
    with pytest.raises(InvalidArgumentError, match="a group of KV is LaterSpec"):
        shape_of(spec)
    assert "LaterSpec" not in MOVED


# -------------------------------------------------------------------------------------- an engine


def row_seeds(tokens):
    """A number for each token, of it and all before."""
    seeds, seed = np.zeros(len(tokens), np.uint64), 7
    for i, token in enumerate(tokens):
        seed = (seed * 1103515245 + int(token) + 12345) % (1 << 31)
        seeds[i] = seed
    return seeds


def bytes_of(seeds, layer, count):
    """[seeds, count] bytes of a layer."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761 + layer)
    return ((seeds[:, None] * steps) >> np.uint64(11)).astype(np.uint8)


class Layer:
    """A layer's cache, written and read as its kind is."""

    def __init__(self, index, table, spec, tensor, impl=None):
        """index: of what it holds, a number. impl: of a cache with scales of its tokens."""
        self.index, self.table, self.spec = index, table, spec
        self.impl, self._tensor = impl, tensor
        self.array = tensor.view(torch.uint8).numpy()
        self.window = getattr(spec, "sliding_window", 0)
        self.chunk = getattr(spec, "attention_chunk_size", None)

    def begin(self):
        """What vLLM's implementation does at each step before it reads or writes."""
        if self.impl is not None:
            self.impl._ensure_scale_caches(self._tensor)

    def wrong(self, seeds, table, end):
        """Whether what a model sees of a prefix that ends there is not what it computed."""
        if isinstance(self.spec, MambaSpec):
            if end == 0:
                return False
            block = table[(end - 1) // self.spec.block_size]
            return not np.array_equal(self.array[block].ravel(), self._state(seeds, end))
        first = max(0, end - self.window + 1) if self.window else 0
        if self.chunk:
            first = end // self.chunk * self.chunk
        return any(
            not np.array_equal(self._row(table, i), self._row_of(seeds, i)) for i in range(first, end)
        )

    def write(self, seeds, table, begin, end):
        if isinstance(self.spec, MambaSpec):
            block = table[(end - 1) // self.spec.block_size]
            assert block != 0
            self.array[block] = self._state(seeds, end).reshape(self.array[block].shape)
            return
        for i in range(begin, end):
            self._row(table, i)[:] = self._row_of(seeds, i)

    def _state(self, seeds, end):
        return bytes_of(seeds[end - 1 : end], self.index, math.prod(self.array.shape[1:]))[0]

    def _row(self, table, token):
        block, place = divmod(token, self.spec.block_size)
        return self.array[table[block], :, place]

    def _row_of(self, seeds, token):
        heads, count = self.array.shape[1], self.array.shape[3]
        return bytes_of(seeds[token : token + 1], self.index, heads * count).reshape(heads, count)


def spec_of(group, name):
    """A layer's, whose blocks vLLM may have made larger."""
    return getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name, group.kv_cache_spec)


class Rank:
    """A worker: its connector, its layers' caches, and the plan of a step."""

    def __init__(self, config, cache, groups, specs, rank, layout):
        self.connector = CairnConnector(config, KVConnectorRole.WORKER, cache)
        tensors = allocate_kv_cache(cache, torch.device("cpu"), layout)
        impls = {}
        for group in groups:
            for name in group.layer_names:
                mode = getattr(spec_of(group, name), "kv_quant_mode", KVQuantMode.NONE)
                if mode.is_per_token_head:
                    impls[name] = object.__new__(TritonAttentionImpl)
                    of_layer = SimpleNamespace(impl=impls[name])
                    config.compilation_config.static_forward_context[name] = of_layer
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel_state, "get_tensor_model_parallel_rank", lambda: rank)
            self.connector.register_kv_caches(tensors)
        self.layers = []
        for table, group in enumerate(groups):
            for name in group.layer_names:
                spec = spec_of(group, name)
                shape = shape_of(spec, config.cache_config.cache_dtype)
                is_same = shape.is_replicated  # on all ranks; else each has a part
                index = list(specs).index(name) + (0 if is_same else 1000 * rank)
                self.layers.append(Layer(index, table, spec, tensors[name], impls.get(name)))

    def begin(self, metadata):
        self.connector.handle_preemptions(metadata)
        self.connector.bind_connector_metadata(metadata)

    def end(self, scheduled):
        connector = self.connector
        connector.start_load_kv(None)
        connector.wait_for_save()
        results = connector.get_transfer_results(scheduled.finished_req_ids)
        output = KVConnectorOutput(
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            invalid_block_ids=connector.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=connector.build_connector_worker_meta(),
        )
        connector.clear_connector_metadata()
        return output


class Engine:
    """vLLM's scheduler and managers, with a model that writes bytes. specs: by the layers' names, of
    one of the ranks."""

    def __init__(self, config, specs, blocks=160, layout="LBNHC"):
        self.config = config
        config.cache_config.mamba_cache_mode = "align"
        config.cache_config.enable_prefix_caching = True
        config.cache_config.kv_cache_layout = layout
        groups = planning.get_kv_cache_groups(config, specs)
        config.cache_config.block_size = min(group.kv_cache_spec.block_size for group in groups)
        layout = config.cache_config.get_resolved_kv_cache_layout()
        room = blocks * planning._get_kv_cache_bytes_per_block(groups, layout)
        self.cache = planning.get_kv_cache_config_from_groups(config, groups, room)
        config.cache_config.num_gpu_blocks = self.cache.num_blocks
        of_scheduler = kv_cache_utils.generate_scheduler_kv_cache_config([self.cache])
        block, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(of_scheduler, config)
        count = config.parallel_config.tensor_parallel_size
        self.ranks = [Rank(config, self.cache, groups, specs, i, layout) for i in range(count)]
        self.worker = self.ranks[0].connector
        self._aggregator = KVOutputAggregator(count)
        self.scheduler = Scheduler(
            config,
            of_scheduler,
            SimpleNamespace(accept_tokens=lambda *of, **more: True),
            block_size=block,
            hash_block_size=hashed,
            log_stats=False,
        )
        kv_cache_utils.init_none_hash(sha256)
        self._hash = kv_cache_utils.get_request_block_hasher(hashed, sha256)
        self.failures = []  # requests, layers and prefixes that were not what had been computed
        allocated = self.scheduler.connector.update_state_after_alloc

        def allocate(request, blocks, external):
            request.loaded = max(external, getattr(request, "loaded", 0))
            allocated(request, blocks, external)

        self.scheduler.connector.update_state_after_alloc = allocate
        assert all(rank.connector._session.wait(30) for rank in self.ranks)

    def open(self):
        """The scheduler hears of all shapes in a first step."""
        self.run([1, 2, 3])
        assert self.scheduler.connector._session.wait(30)
        return self

    def add(self, tokens, count=1):
        params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=0)
        params.update_from_generation_config({}, 127)
        name = f"request {next(_numbers)}"
        request = Request(name, list(tokens), params, None, block_hasher=self._hash)
        self.scheduler.add_request(request)
        return request

    def run(self, tokens, count=1):
        request = self.add(tokens, count)
        self.run_all()
        return request

    def run_all(self, seconds=60):
        until = time.monotonic() + seconds
        while self.scheduler.has_unfinished_requests():
            assert time.monotonic() < until, "requests that do not end"
            self.step()
        self.step()
        for rank in self.ranks:
            rank.connector._worker.drain()

    def step(self):
        scheduled = self.scheduler.schedule()
        for rank in self.ranks:
            rank.begin(scheduled.kv_connector_metadata)
        for number, count in scheduled.num_scheduled_tokens.items():
            self.compute(self.scheduler.requests[number], count, scheduled)
        names = list(scheduled.num_scheduled_tokens)
        made = [[5] if self.is_whole(name) else [] for name in names]
        numbers = {name: i for i, name in enumerate(names)}
        results = [
            ModelRunnerOutput(names, numbers, made, kv_connector_output=rank.end(scheduled))
            for rank in self.ranks
        ]
        self.scheduler.update_from_output(scheduled, self._aggregator.aggregate(results))
        return scheduled

    def is_whole(self, name):
        request = self.scheduler.requests[name]
        return request.num_computed_tokens >= request.num_tokens

    def compute(self, request, count, scheduled):
        end = request.num_computed_tokens
        begin = end - count  # the scheduler has counted them
        seeds = row_seeds(request.all_token_ids)
        tables = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        for layer in (layer for rank in self.ranks for layer in rank.layers):
            table = tables[layer.table]
            layer.begin()
            if layer.wrong(seeds, table, begin):
                self.failures.append((request.request_id, layer.index, begin))
            layer.write(seeds, table, begin, end)

    def forget(self):
        assert self.scheduler.reset_prefix_cache()

    def close(self):
        self.scheduler.connector.shutdown()
        for rank in self.ranks:
            rank.connector.shutdown()


BF16 = torch.bfloat16
KV = {"num_kv_heads": 2, "head_size": 64, "dtype": BF16}
LATENT = {"num_kv_heads": 1, "head_size": 576, "dtype": BF16, "max_tp_shards": 1}
STATE = {"shapes": ((3, 192), (2, 64, 16)), "dtypes": (BF16, torch.float32)}


def attn(layer):
    return f"model.layers.{layer}.self_attn.attn"


def latents():
    return {attn(i): MLAAttentionSpec(block_size=16, **LATENT) for i in range(4)}


def latents_of_a_window():
    made = {attn(i): MLAAttentionSpec(block_size=32, **LATENT) for i in range(2)}
    window = SlidingWindowMLASpec(block_size=32, sliding_window=160, **LATENT)
    return made | {attn(i): window for i in range(2, 4)}


def sparse():
    """As DeepSeek V3.2: an index beside the latents, of other bytes, in one group."""
    index = MLAAttentionSpec(block_size=64, **kv_kinds.INDEX)
    names = [f"model.layers.{i}.self_attn.indexer.k_cache" for i in range(4)]
    made = {attn(i): MLAAttentionSpec(block_size=64, **LATENT) for i in range(4)}
    return made | dict.fromkeys(names, index)


def windows_of_other_blocks():
    """Groups of unlike block size: pages are equal, and the heads of one of them half as many."""
    few = {"num_kv_heads": 1, "head_size": 64, "dtype": BF16}
    made = {attn(i): FullAttentionSpec(block_size=32, **KV) for i in range(2)}
    window = SlidingWindowSpec(block_size=32, sliding_window=160, **few)
    return made | {attn(i): window for i in range(2, 4)}


def chunks():
    """As Llama 4: three layers of four see no further back than where their chunk begins."""
    local = ChunkedLocalAttentionSpec(block_size=32, attention_chunk_size=256, **KV)
    made = {attn(i): local for i in range(3)}
    return made | {attn(3): FullAttentionSpec(block_size=32, **KV)}


def states(count=3, block=64, heads=2):
    """As Qwen3-Next and Bamba: layers with states, and one with full attention."""
    full = FullAttentionSpec(block_size=block, **KV | {"num_kv_heads": heads})
    state = MambaSpec(
        block_size=block, mamba_cache_mode="align", page_size_padded=full.page_size_bytes, **STATE
    )
    names = [f"model.layers.{i}.linear_attn" for i in range(count)]
    return dict.fromkeys(names, state) | {attn(count): full}


def states_and_latents():
    """As Kimi Linear."""
    full = MLAAttentionSpec(block_size=128, **LATENT)
    state = MambaSpec(
        block_size=128, mamba_cache_mode="align", page_size_padded=full.page_size_bytes, **STATE
    )
    return {"model.layers.0.kda": state, "model.layers.1.kda": state, attn(2): full}


def states_alone():
    state = MambaSpec(block_size=32, mamba_cache_mode="align", **STATE)
    return {f"model.layers.{i}.mixer": state for i in range(4)}


def unlike():
    """As MiMo-V2: K has 192 channels and V 128, and windows have twice the heads of other layers."""
    sizes = {"head_size": 192, "head_size_v": 128, "dtype": BF16}
    full = FullAttentionSpec(block_size=64, num_kv_heads=1, **sizes)
    window = SlidingWindowSpec(block_size=32, sliding_window=160, num_kv_heads=2, **sizes)
    return {attn(0): full} | {attn(i): window for i in range(1, 4)} | {attn(4): full}


def coded(mode=KVQuantMode.FP8_PER_TOKEN_HEAD, heads=2):
    """With scales of each token and head, as vLLM's backends customize the specifications."""
    fields = dict(kv_kinds.CODED, **kv_kinds.OF_TOKENS, num_kv_heads=heads, kv_quant_mode=mode)
    fields["dtype"] = torch.int8 if "INT8" in mode.name else torch.uint8
    return {attn(i): FullAttentionSpec(block_size=32, **fields) for i in range(4)}


def coded_windows():
    """As GPT-OSS with int8_per_token_head."""
    mode = {"kv_quant_mode": KVQuantMode.INT8_PER_TOKEN_HEAD, "dtype": torch.int8}
    made = coded(KVQuantMode.INT8_PER_TOKEN_HEAD)
    fields = kv_kinds.CODED | kv_kinds.OF_TOKENS | mode
    window = SlidingWindowSpec(block_size=32, sliding_window=160, **fields)
    return made | {attn(i): window for i in range(4, 6)}


def nvfp4():
    """K and V have a place each, with scales of 16 elements behind them."""
    spec = FullAttentionSpec(
        block_size=32, kv_quant_mode=KVQuantMode.NVFP4, **kv_kinds.CODED | kv_kinds.NVFP4
    )
    return {attn(i): spec for i in range(4)}


def sparse_coded():
    """As DeepSeek V3.2 with fp8_ds_mla, an index beside it."""
    names = [f"model.layers.{i}.self_attn.indexer.k_cache" for i in range(3)]
    fields = kv_kinds.EXAMPLES["MLAAttentionSpec, fp8_ds_mla"]
    made = {attn(i): MLAAttentionSpec(block_size=64, **fields) for i in range(3)}
    return made | dict.fromkeys(names, MLAAttentionSpec(block_size=64, **kv_kinds.INDEX))


CODED = [coded, coded_windows, nvfp4, sparse_coded]
KINDS = [
    latents,
    latents_of_a_window,
    sparse,
    windows_of_other_blocks,
    chunks,
    states,
    states_and_latents,
    states_alone,
    unlike,
    *CODED,
]
WITH_STATES = [states, states_and_latents, states_alone]


@pytest.fixture
def make(vllm_config, daemon, request):
    revision, engines = f"kinds {next(_numbers)}", []

    def build(kind, budget=512, blocks=160, layout="LBNHC", is_open=True, **options):
        extra = {"control": daemon.control, "weights_revision": revision, "recipe": "exact"}
        extra |= {"lookup_timeout": 10.0, "load_timeout": 20.0, "save_timeout": 20.0}  # it is busy
        config = vllm_config(
            extra=extra,
            max_num_batched_tokens=budget,
            max_num_seqs=8,
            max_model_len=4096,
            enable_prefix_caching=True,
            **options,
        )
        engines.append(Engine(config, kind(), blocks, layout))
        return engines[-1].open() if is_open else engines[-1]

    yield build
    for engine in engines:
        engine.close()


def prompt(seed, count):
    return np.random.default_rng(seed).integers(10, 100, count).tolist()


def cached(request):
    """Tokens that were loaded for it."""
    return request.loaded


def store_tokens(engine):
    return engine.worker._model.spec.tokens_per_block


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_engine_computes_another_loads(make, kind):
    first, second = make(kind), make(kind)
    step = store_tokens(first)
    tokens = prompt(1, 5 * step + 9)
    first.run(tokens)
    one = first.run(prompt(2, 3 * step) + tokens[:step])
    assert cached(one) == 0
    again = second.run(tokens)
    assert cached(again) == 5 * step
    assert first.failures == second.failures == []
    second.forget()
    assert cached(second.run(tokens[: 3 * step + 1] + prompt(3, 40))) >= (
        0 if kind in WITH_STATES else 3 * step
    )
    assert second.failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_chunks(make, kind):
    first, second = make(kind, budget=192), make(kind, budget=160)
    step = store_tokens(first)
    tokens = prompt(4, 5 * step + 9)
    first.run(tokens)
    assert cached(second.run(tokens)) == 5 * step
    assert first.failures == second.failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_that_fails_is_computed(make, kind, monkeypatch):
    first, second = make(kind), make(kind)
    step = store_tokens(first)
    tokens = prompt(5, 4 * step + 9)
    first.run(tokens)
    part = second.worker._worker._groups[-1]
    monkeypatch.setattr(part, "get", lambda *of: SimpleNamespace(statuses=[5] * 9, wire_bytes=0))
    second.run(tokens)
    assert second.failures == []
    monkeypatch.undo()
    second.forget()
    assert cached(second.run(tokens)) == 4 * step and second.failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_aborted_while_it_loads(make, kind):
    first, second = make(kind), make(kind)
    step = store_tokens(first)
    tokens = prompt(6, 4 * step + 9)
    first.run(tokens)
    request = second.add(tokens)
    until = time.monotonic() + 30
    while request.status != RequestStatus.WAITING_FOR_REMOTE_KVS and time.monotonic() < until:
        second.step()
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    second.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    while request.request_id in second.scheduler.requests and time.monotonic() < until:
        second.step()  # its blocks stay until the load has ended
    second.run_all()
    second.forget()
    assert cached(second.run(tokens)) == 4 * step and second.failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_are_preempted(make, kind):
    """All together want more blocks than there are: one more each, as they go on."""
    engine = make(kind)
    step, blocks = store_tokens(engine), 0
    for group in engine.cache.kv_cache_groups:
        is_state = isinstance(group.kv_cache_spec, MambaSpec)
        blocks += 1 if is_state else 2 * step // group.kv_cache_spec.block_size
    first = make(kind, blocks=3 * blocks + 2)
    requests = [first.add(prompt(seed, 2 * step - 4), 8) for seed in (7, 8, 9)]
    first.run_all(100)
    lets_go = (latents_of_a_window, chunks, states_alone, unlike, coded_windows)
    if kind not in lets_go:
        assert sum(one.num_preemptions for one in requests) > 0
    assert all(one.is_finished() for one in requests) and first.failures == []
    second = make(kind)
    assert cached(second.run(prompt(7, 2 * step - 4) + prompt(11, 9))) == step
    assert second.failures == []


@pytest.mark.parametrize("kind", WITH_STATES)
@pytest.mark.parametrize("every", [0, 2])
def test_a_hit_ends_where_vllm_keeps_a_state(make, kind, every):
    """That is at the last whole block of a prompt, and as often as vLLM is told to, where a chunk ends."""
    step = {states: 64, states_and_latents: 128, states_alone: 32}[kind]
    engine = make(kind, budget=2 * step, prefix_cache_retention_interval=every * step)
    engine.run(prompt(10, 9 * step + 5))
    space = engine.worker._session.space
    wanted = space.keys(prompt(10, 9 * step + 5))
    there = [space.match(wanted[:count], lease=False).block_count for count in range(1, 10)]
    assert there == ([0, 2, 2, 4, 4, 6, 6, 8, 9] if every else [0] * 8 + [9])


@pytest.mark.parametrize("kind", [latents, sparse, sparse_coded, coded, *WITH_STATES])
def test_ranks_that_share_a_model(make, kind):
    """Of states and of coded rows each rank has a part, of latents and of an index all have the same. A
    rank whose load fails ends the load of all."""
    of_rank = functools.partial(kind, heads=1) if kind in (states, coded) else kind
    first, second = (make(of_rank, tensor_parallel_size=2) for _ in range(2))
    step = store_tokens(first)
    tokens = prompt(12, 4 * step + 9)
    first.run(tokens)
    assert cached(second.run(tokens)) == 4 * step
    second.forget()
    part = second.ranks[1].connector._worker._groups[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "get", lambda *of: SimpleNamespace(statuses=[5] * 9, wire_bytes=0))
        second.run(tokens)
    second.forget()
    assert cached(second.run(tokens)) == 4 * step
    assert first.failures == second.failures == []
    alone = make(kind)
    assert (cached(alone.run(tokens)) == 0) == (kind in WITH_STATES or kind is coded)
    assert alone.failures == []


@pytest.mark.parametrize("kind", [coded, nvfp4])
def test_coded_rows_are_of_one_order_of_heads_and_tokens(make, kind):
    """Only vLLM's kernels know what a block's bytes mean, so engines with another order share none."""
    first, second, other = (make(kind, layout=name) for name in ("LBNHC", "BLNHC", "LBHNC"))
    step = store_tokens(first)
    tokens = prompt(16, 3 * step + 9)
    first.run(tokens)
    assert cached(second.run(tokens)) == 3 * step
    assert cached(other.run(tokens)) == 0
    other.forget()
    assert cached(other.run(tokens)) == 3 * step  # its own
    assert first.failures == second.failures == other.failures == []
    with pytest.raises(InvalidArgumentError, match="layout is not known: a block is not one piece"):
        make(kind, layout="LHBNC")


def test_coded_rows_that_are_not_as_vllm_s_layout_says_are_refused(make):
    (spec,) = set(coded().values())
    shape, block = shape_of(spec), torch.zeros(4, 2, 32, 136, dtype=torch.uint8)
    assert coded_arrays([block], shape, 32, "LBHNC")[0].shape == (4, 2, 32, 136)
    turned = block.reshape(4, 32, 2, 136).transpose(1, 2)
    assert coded_arrays([turned], shape, 32, "LBNHC")[0].shape == (4, 32, 2, 136)
    for array, layout in ((block, "LBNHC"), (turned, "LBHNC"), (block, None)):
        with pytest.raises(InvalidArgumentError, match=f"vLLM names it {layout}, and coded rows have"):
            coded_arrays([array], shape, 32, layout)
    with pytest.raises(InvalidArgumentError, match="of 2 slots and 64 tokens, but"):
        coded_arrays([block], shape, 64, "LBHNC")  # kernels with smaller blocks than the scheduler's


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_a_draft_is_hit_with_the_model_or_not_at_all(make, make_model, method):
    """Of EAGLE, what is hit is computed again from the last block on, as in vLLM's own cache: there KV
    of a token depends on the one after it. The draft has other heads, of which vLLM's scheduler is not
    told."""
    draft = make_model(num_hidden_layers=1, num_key_value_heads=1, num_attention_heads=1, head_dim=64)
    told = {"method": method, "model": str(draft), "num_speculative_tokens": 2}
    name = "draft_model.model.layers.0.self_attn.attn" if method == "draft_model" else attn(4)
    few = FullAttentionSpec(block_size=32, **KV | {"num_kv_heads": 1})

    def with_draft():
        return {attn(i): FullAttentionSpec(block_size=32, **KV) for i in range(4)} | {name: few}

    first, second = (make(with_draft, speculative_config=told) for _ in range(2))
    step, tokens = store_tokens(first), prompt(13, 5 * 128 + 9)
    kinds = [(one.is_draft, one.shape.heads) for one in second.scheduler.connector._model.layers]
    assert kinds == [(False, 2), (True, 1)]
    first.run(tokens)
    lag = 32 if method == "eagle" else 0
    assert cached(second.run(tokens)) == 5 * step - lag
    second.forget()
    part = second.worker._worker._groups[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "get", lambda *of: SimpleNamespace(statuses=[5] * 9, wire_bytes=0))
        second.run(tokens)  # the draft's layers fail: nothing of the load counts
    second.forget()
    assert cached(second.run(tokens[: 3 * step + 1] + prompt(14, 40))) == 3 * step - lag
    assert first.failures == second.failures == []


@pytest.mark.parametrize(
    ("draft_spec", "said"),
    [
        (FullAttentionSpec(block_size=32, **KV | {"dtype": torch.float32}), "differ in dtype"),
        (MLAAttentionSpec(block_size=32, **kv_kinds.V4), "it is of deepseek_v4"),
    ],
)
def test_a_draft_that_is_not_moved_is_refused_at_start(vllm_config, make_model, draft_spec, said):
    """By the worker, which is made before the first request, also where vLLM tells its scheduler the
    shape of the model's layers alone."""
    draft = make_model(num_hidden_layers=1)
    told = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2}
    name = "draft_model.model.layers.0.self_attn.attn"
    config = vllm_config(extra={"weights_revision": "r"}, speculative_config=told)
    specs = {attn(i): FullAttentionSpec(block_size=32, **KV) for i in range(4)} | {name: draft_spec}
    together = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs=specs)
    cache = KVCacheConfig(40, [], [KVCacheGroupSpec(list(specs), together)])
    with pytest.raises(InvalidArgumentError, match=said):
        CairnConnector(config, KVConnectorRole.WORKER, cache)


def test_deepseek_v4_is_refused_at_start(vllm_config):
    """Its compressor's windows look like latents, and are no use without the rest."""
    sizes = {"num_kv_heads": 1, "head_size": 1024, "dtype": torch.float32}
    compressor = SlidingWindowMLASpec(block_size=4, sliding_window=8, alignment=576, **sizes)
    examples = kv_kinds.examples()
    specs = {
        "model.layers.0.attn.compressor": compressor,
        "model.layers.0.attn.swa": examples["SlidingWindowMLASpec, of DeepSeek V4"],
        "model.layers.0.attn.mla": examples["MLAAttentionSpec, of DeepSeek V4"],
    }
    assert shape_of(compressor).kind == "latent"
    groups = [KVCacheGroupSpec([name], spec) for name, spec in specs.items()]
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        with pytest.raises(InvalidArgumentError, match="it is of deepseek_v4, whose caches"):
            CairnConnector(vllm_config(extra={"weights_revision": "r"}), role, KVCacheConfig(40, [], groups))


def test_layers_of_several_shapes_are_a_group_each(make):
    engine = make(sparse)
    assert isinstance(engine.cache.kv_cache_groups[0].kv_cache_spec, UniformTypeKVCacheSpecs)
    kinds = [group.kind for group in engine.scheduler.connector._model.spec.groups]
    assert kinds == ["latent", "opaque_rows"]
