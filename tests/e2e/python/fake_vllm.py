# SPDX-License-Identifier: Apache-2.0
"""A stand-in for vLLM 0.32: the modules that the connector imports, its configuration, and requests.
What is computed for a token depends on all tokens before it, so that a wrong block shows. The engine
is in fake_vllm_engine.py."""

import dataclasses
import functools
import hashlib
import logging
import os
import random
import sys
from types import SimpleNamespace

import numpy as np
from fake_modules import install_modules

LAYERS, HEADS, DIM = 4, 2, 32
ENGINE = 32  # tokens of a block

this_rank = [0]  # of the tensor-parallel ones, whose worker registers its caches


class _Base:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config, self._role = vllm_config, role
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._metadata = None

    def bind_connector_metadata(self, metadata):
        self._metadata = metadata

    def clear_connector_metadata(self):
        self._metadata = None

    def _get_connector_metadata(self):
        assert self._metadata is not None
        return self._metadata


@dataclasses.dataclass
class _Results:
    finished_sending: set = dataclasses.field(default_factory=set)
    finished_recving: set = dataclasses.field(default_factory=set)
    failed_recving: set = dataclasses.field(default_factory=set)


class _Stats:
    def __init__(self, data):
        self.data = data


class _Factory:
    names = {}

    @classmethod
    def register_connector(cls, name, module_path, class_name):
        if name in cls.names:
            raise ValueError(f"Connector '{name}' is already registered.")
        cls.names[name] = (module_path, class_name)


class WorkerLoRAManager:
    """Of adapters that a worker has loaded, by their numbers."""

    def __init__(self):
        self.loaded = set()

    def add_adapter(self, lora):
        if lora.lora_int_id not in self.loaded or lora.load_inplace:
            self._load_adapter(lora)
            self.loaded.add(lora.lora_int_id)

    def _load_adapter(self, lora):
        return sys.modules["vllm.lora.worker_manager"].get_adapter_absolute_path(lora.lora_path)


class VllmWorker:
    def reload_weights(self, *arguments, **more):
        pass

    def start_weight_update(self):
        pass


def lora(path, number=1, name="tuned", **more):
    fields = {"load_inplace": False, "is_3d_lora_weight": False} | more
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(path), **fields)


def install():
    """Puts the modules where `import vllm…` finds them, unless there is a real vLLM."""
    role = SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")
    members = {
        "vllm.distributed.kv_transfer.kv_connector.v1.base": {
            "KVConnectorBase_V1": _Base,
            "KVConnectorMetadata": object,
            "KVConnectorRole": role,
            "KVConnectorTransferResults": _Results,
            "KVConnectorWorkerMetadata": object,
            "SupportsHMA": type("SupportsHMA", (), {}),
        },
        "vllm.distributed.kv_transfer.kv_connector.factory": {"KVConnectorFactory": _Factory},
        "vllm.lora.worker_manager": {
            "WorkerLoRAManager": WorkerLoRAManager,
            "get_adapter_absolute_path": os.path.abspath,
        },
        "vllm.v1.worker.gpu_worker": {"Worker": VllmWorker},
        "vllm.distributed.parallel_state": {
            "get_tensor_model_parallel_rank": lambda: this_rank[0]
        },
        "vllm.distributed.kv_transfer.kv_connector.v1.metrics": {
            "KVConnectorPromMetrics": object,
            "KVConnectorStats": _Stats,
        },
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": SimpleNamespace(HOST="host")},
        "vllm.v1.metrics.utils": {"create_metric_per_engine": None},
    }
    install_modules(members)


class FullAttentionSpec:
    block_size, head_size, dtype = ENGINE, DIM, "torch.bfloat16"

    def __init__(self, heads):
        self.num_kv_heads = heads

    @property
    def page_size_bytes(self):
        """K and V of a block, of one layer, in bf16."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * 2


class SlidingWindowSpec(FullAttentionSpec):
    def __init__(self, heads, window):
        super().__init__(heads)
        self.sliding_window, self.extra_retained_tokens = window, 0


def spec_of(heads, window):
    return SlidingWindowSpec(heads, window) if window else FullAttentionSpec(heads)


def layer_name(layer):
    return f"model.layers.{layer}.attn"


class _Attention:
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None):
        return output


ALL_LAYERS = ((tuple(range(LAYERS)), 0),)


def configs(extra, role="kv_both", kernels=None, groups=ALL_LAYERS, tensor=1, **changed):
    """vllm_config and kv_cache_config. groups: of each its layers and its window, 0 for none."""
    total = sum(len(layers) for layers, _ in groups)
    model = SimpleNamespace(
        model="fake-model",
        hf_config=SimpleNamespace(_commit_hash="c0ffee"),
        hf_text_config=SimpleNamespace(rope_theta=10000.0),
        dtype="torch.bfloat16",
        max_model_len=4096,
        multimodal_config=None,
        quantization=None,
        get_total_num_hidden_layers=lambda: total,
        get_total_num_kv_heads=lambda: HEADS,
    )
    transfer = SimpleNamespace(
        kv_connector_extra_config=extra,
        engine_id="fake",
        is_kv_consumer=role != "kv_producer",
        is_kv_producer=role != "kv_consumer",
        kv_load_failure_policy="recompute",
    )
    layers = {layer_name(i): SimpleNamespace(isa=kernels, impl=_Attention()) for i in range(total)}
    config = SimpleNamespace(
        model_config=model,
        kv_transfer_config=transfer,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tensor, pipeline_parallel_size=1, world_size=1, rank=0
        ),
        compilation_config=SimpleNamespace(static_forward_context=layers),
        cache_config=SimpleNamespace(enable_prefix_caching=True, cache_dtype="auto"),
        lora_config=SimpleNamespace(lora_dtype="torch.bfloat16"),
    )
    for path, value in changed.items():
        part, name = path.split("__")
        setattr(getattr(config, part), name, value)
    made = [
        SimpleNamespace(
            kv_cache_spec=spec_of(max(1, HEADS // tensor), window),
            layer_names=[layer_name(i) for i in layers],
        )
        for layers, window in groups
    ]
    return config, SimpleNamespace(kv_cache_groups=made)


def prompt(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(50000) for _ in range(count)]


def queries_of(kv):
    """Query heads [tokens, 2 * heads, dim] of the K and V [tokens, heads, 2 * dim] of a layer. The
    two that read a head of K differ."""
    k = (kv[..., :DIM].astype(np.uint32) << 16).view(np.float32)
    return np.stack([2 * k, 3 * k], axis=2).reshape(len(k), -1, DIM)


class Request:
    def __init__(self, request_id, tokens, **more):
        self.request_id, self.all_token_ids = request_id, list(tokens)
        self.num_computed_tokens = 0
        self.lora_request = self.cache_salt = self.prompt_embeds = None
        self.mm_features = []
        self.__dict__.update(more)
        self.wrong = []  # what it computed with and was not right
        self.blocks, self.is_loading, self.is_loaded, self.external = [], False, False, 0

    @property
    def num_tokens(self):
        return len(self.all_token_ids)


def kv_of(tokens, layers=LAYERS):
    """K and V bits [tokens, layers, heads, 2 * dim] that a sequence has. Read only."""
    return _kv_of(tuple(tokens), layers)


@functools.lru_cache(maxsize=32)  # engines of a test have prompts in common
def _kv_of(tokens, layers):
    out = np.empty((len(tokens), layers, HEADS, 2 * DIM), np.uint16)
    state = hashlib.sha256()
    for i, token in enumerate(tokens):
        state.update(int(token).to_bytes(4, "little"))
        seed = int.from_bytes(state.digest()[:8], "little")
        values = np.random.default_rng(seed).standard_normal(out[i].shape, np.float32)
        out[i] = values.view(np.uint32) >> 16
    out.flags.writeable = False
    return out
