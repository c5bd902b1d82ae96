# SPDX-License-Identifier: Apache-2.0
"""A stand-in for vLLM 0.32: the modules that the connector imports, and an engine that calls it in
the order that was recorded of the real one, on a cache of numpy arrays. What it computes for a
token depends on all tokens before it, so that a wrong block shows."""

import hashlib
import logging
import sys
import types
from types import SimpleNamespace

import numpy as np

LAYERS, HEADS, DIM = 4, 2, 32
ENGINE = 32  # tokens of a block


class _Base:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config, self._role = vllm_config, role
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._metadata = None

    def bind_connector_metadata(self, metadata):
        self._metadata = metadata

    def clear_connector_metadata(self):
        self._metadata = None

    def _get_connector_metadata(self):
        assert self._metadata is not None
        return self._metadata


class _Stats:
    def __init__(self, data):
        self.data = data


def install():
    """Puts the modules where `import vllm…` finds them, unless there is a real vLLM."""
    role = SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")
    members = {
        "vllm.distributed.kv_transfer.kv_connector.v1.base": {
            "KVConnectorBase_V1": _Base,
            "KVConnectorMetadata": object,
            "KVConnectorRole": role,
        },
        "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {
            "KVConnectorPromMetrics": object,
            "KVConnectorStats": _Stats,
        },
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": SimpleNamespace(HOST="host")},
        "vllm.v1.metrics.utils": {"create_metric_per_engine": None},
    }
    for path, given in members.items():
        parts = path.split(".")
        for i in range(1, len(parts) + 1):
            name = ".".join(parts[:i])
            sys.modules.setdefault(name, types.ModuleType(name))
        vars(sys.modules[path]).update(given)


class FullAttentionSpec:
    block_size, num_kv_heads, head_size, dtype = ENGINE, HEADS, DIM, "torch.bfloat16"


def configs(extra, role="kv_both", kernels=None, **changed):
    """vllm_config and kv_cache_config."""
    model = SimpleNamespace(
        model="fake-model",
        hf_config=SimpleNamespace(_commit_hash="c0ffee"),
        hf_text_config=SimpleNamespace(rope_theta=10000.0),
        quantization=None,
        get_total_num_hidden_layers=lambda: LAYERS,
        get_total_num_kv_heads=lambda: HEADS,
    )
    transfer = SimpleNamespace(
        kv_connector_extra_config=extra,
        engine_id="fake",
        is_kv_consumer=role != "kv_producer",
        is_kv_producer=role != "kv_consumer",
        kv_load_failure_policy="recompute",
    )
    layers = {f"model.layers.{i}.attn": SimpleNamespace(isa=kernels) for i in range(LAYERS)}
    config = SimpleNamespace(
        model_config=model,
        kv_transfer_config=transfer,
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )
    for path, value in changed.items():
        part, name = path.split("__")
        setattr(getattr(config, part), name, value)
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec())
    return config, SimpleNamespace(kv_cache_groups=[group])


class Request:
    def __init__(self, request_id, tokens, **more):
        self.request_id, self.all_token_ids = request_id, list(tokens)
        self.num_computed_tokens = 0
        self.lora_request = self.cache_salt = self.prompt_embeds = None
        self.mm_features = []
        self.__dict__.update(more)
        self.blocks, self.is_loading, self.is_loaded, self.external = [], False, False, 0

    @property
    def num_tokens(self):
        return len(self.all_token_ids)


def kv_of(tokens):
    """K and V bits [tokens, layers, heads, 2 * dim] that a sequence has."""
    out = np.empty((len(tokens), LAYERS, HEADS, 2 * DIM), np.uint16)
    state = hashlib.sha256()
    for i, token in enumerate(tokens):
        state.update(int(token).to_bytes(4, "little"))
        seed = int.from_bytes(state.digest()[:8], "little")
        values = np.random.default_rng(seed).standard_normal(out[i].shape, np.float32)
        out[i] = values.view(np.uint32) >> 16
    return out


class Engine:
    """One request at a time or many; `budget` tokens a step; its own prefix cache is off."""

    def __init__(self, connector_class, extra, *, block_count=64, budget=512, **changed):
        config, cache_config = configs(extra, **changed)
        self.worker = connector_class(config, "worker", cache_config)
        self.layers = [
            np.full((block_count, HEADS, ENGINE, 2 * DIM), 9, np.uint16) for _ in range(LAYERS)
        ]
        self.worker.register_kv_caches(
            {f"model.layers.{i}.attn": layer for i, layer in enumerate(self.layers)}
        )
        self.scheduler = connector_class(config, "scheduler", cache_config)
        self.is_failing = config.kv_transfer_config.kv_load_failure_policy == "fail"
        self.errors = []  # requests that ended with one, under that policy
        self.free, self.budget = list(range(1, block_count)), budget
        self.waiting, self.running, self.done = [], [], {}
        self.questions, self.steps, self.counts = 0, 0, {}
        self._finished = set()
        self._kv = {}

    def add(self, request):
        self._kv[request.request_id] = kv_of(request.all_token_ids)
        self.scheduler.on_new_request(request)
        self.waiting.append(request)
        return request

    def run(self):
        while self.waiting or self.running:
            self.step()

    def preempt(self, request):
        self.running.remove(request)
        self._release(request)
        self.waiting.append(request)

    def abort(self, request):
        self.scheduler.request_finished(request, request.blocks)
        self._finished.add(request.request_id)
        if not request.is_loading:
            self._drop(request)

    def kv(self, request):
        """What the cache has of a request: [tokens, layers, heads, 2 * dim]."""
        rows = [
            np.stack([layer[block] for layer in self.layers]).transpose(2, 0, 1, 3)
            for block in request.blocks
        ]
        return np.concatenate(rows)[: request.num_computed_tokens]

    def step(self, step_limit=20000):
        self.steps += 1
        assert self.steps < step_limit, "the engine goes round and round"
        scheduled = self._schedule()
        tables = {request.request_id: (request.blocks,) for request in scheduled}
        counts = {request.request_id: tokens for request, tokens in scheduled.items()}
        metadata = self.scheduler.build_connector_meta(
            SimpleNamespace(
                num_scheduled_tokens=counts,
                kv_connector_block_state=SimpleNamespace(get_block_ids=tables.get),
            )
        )
        self.last_plan = metadata.plan
        for request, tokens in scheduled.items():
            self._compute(request, tokens)
        output = self._work(metadata)
        self._update(output)

    def _schedule(self):
        scheduled, budget = {}, self.budget
        for request in self.running + [r for r in self.waiting if not r.is_loading]:
            if budget == 0:
                break
            if request in self.waiting and not self._admit(request):
                continue
            tokens = min(budget, request.num_tokens - request.num_computed_tokens)
            budget -= tokens
            scheduled[request] = tokens
        return scheduled

    def _admit(self, request):
        if request.is_loaded and request.num_computed_tokens > 0:
            self.scheduler.update_state_after_alloc(request, self._blocks(request), 0)
        else:
            request.is_loaded = False
            self.questions += 1
            external, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
            if external is None:
                return False
            assert is_async == bool(external) and external % ENGINE == 0
            assert external < request.num_tokens
            wanted = -(-request.num_tokens // ENGINE)
            if len(self.free) < wanted:
                return False
            request.blocks = [self.free.pop(0) for _ in range(wanted)]
            self.scheduler.update_state_after_alloc(request, self._blocks(request), external)
            if external:
                request.is_loading, request.external = True, external
                request.num_computed_tokens = external
                return False
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _blocks(self, request):
        return SimpleNamespace(get_block_ids=lambda: (list(request.blocks),))

    def _compute(self, request, tokens):
        first = request.num_computed_tokens
        for i in range(first, first + tokens):
            block, row = request.blocks[i // ENGINE], i % ENGINE
            for layer in range(LAYERS):
                self.layers[layer][block][:, row] = self._kv[request.request_id][i, layer]
        request.num_computed_tokens += tokens

    def _work(self, metadata):
        worker = self.worker
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv(None)
        worker.wait_for_save()
        _, finished = worker.get_finished(self._finished)
        self._finished = set()
        failed = worker.get_block_ids_with_load_errors()
        stats = worker.get_kv_connector_stats()
        for name, amount in (stats.data if stats else {}).items():
            self.counts[name] = self.counts.get(name, 0) + amount
        worker.clear_connector_metadata()
        return SimpleNamespace(finished_recving=finished, invalid_block_ids=failed)

    def _update(self, output):
        for request in self.waiting:
            if request.is_loading:
                bad = [i for i, b in enumerate(request.blocks) if b in output.invalid_block_ids]
                if bad:
                    request.num_computed_tokens = min(
                        request.num_computed_tokens, bad[0] * ENGINE
                    )
                    if self.is_failing:
                        self.errors.append(request.request_id)
        self.scheduler.update_connector_output(output)
        for request in list(self.waiting):
            if request.request_id in (output.finished_recving or ()):
                request.is_loading, request.is_loaded = False, True
                if request.request_id in self.errors:
                    self.abort(request)
                elif request.num_computed_tokens == 0 or request.request_id in self.done:
                    self._release(request)
        for request in list(self.running):
            if request.num_computed_tokens == request.num_tokens:
                self.done[request.request_id] = self.kv(request)
                self.abort(request)

    def _drop(self, request):
        self._release(request)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def _release(self, request):
        self.free += request.blocks
        request.blocks, request.num_computed_tokens = [], 0

    def check(self, request):
        """Everything that the request computed with was right, bit for bit."""
        np.testing.assert_array_equal(
            self.done[request.request_id], self._kv[request.request_id]
        )

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()
