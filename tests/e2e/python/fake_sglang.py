# SPDX-License-Identifier: Apache-2.0
"""A stand-in for SGLang 0.5.23: the base class that its backends have, and pools of host memory with
the attributes, the layouts and the methods that were read of the real ones, in numpy. Checks
against the installed package: tests/connectors, and tests/engines/sglang_contract.py."""

import abc
import dataclasses
from types import SimpleNamespace

import numpy as np
from fake_modules import install_modules


class HiCacheStorage(abc.ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        if not hasattr(self, "registered_pools"):
            self.registered_pools = {}
        self.registered_pools[host_pool_name] = host_pool

    def on_host_pools_registered(self):
        pass

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def exists(self, key): ...


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list | None = None


def transfer(name, pool, keys, pages, policy="all_pages"):
    """A PoolTransfer of pages of a pool."""
    places = [np.arange(page * pool.page_size, (page + 1) * pool.page_size) for page in pages]
    indices = np.concatenate([np.zeros(0, np.int64), *places])
    return SimpleNamespace(name=name, keys=keys, host_indices=indices, hit_policy=policy)


class WeightUpdater:
    """Where SGLang's runner changes its weights."""

    def update_weights_from_disk(self, model_path):
        return True, "Succeeded to update model weights."

    def load_weights_from_distributed(self, weights):
        return True, "Success"

    def update_weights_from_tensor(self, named_tensors):
        return True, "Success"

    def update_weights_from_ipc(self, recv_req):
        return True, "Success"

    def begin_weight_update(self):
        pass

    def end_weight_update(self, *, run_post_load):
        pass


@dataclasses.dataclass
class ServerArgs:
    """A few of the settings of each namespace, with SGLang's defaults."""

    model_path: str = "fake-model"
    revision: str | None = None
    quantization_param_path: str | None = None
    kv_cache_dtype: str = "auto"
    tp_size: int = 1
    dcp_size: int = 1
    enable_kv_cache_sharding: bool = False
    lora_paths: list | None = None
    lora_target_modules: list | None = None
    attention_backend: str = "triton"
    mamba_ssm_dtype: str | None = None
    weight_version: str = "default"


_NAMESPACES = {
    "model": ("model_path", "revision", "quantization_param_path", "kv_cache_dtype"),
    "parallel": ("tp_size", "dcp_size", "enable_kv_cache_sharding"),
    "lora": ("lora_paths", "lora_target_modules"),
    "exec.kernel": ("attention_backend",),
    "exec.mamba": ("mamba_ssm_dtype",),
    "serving": ("weight_version",),
}


class ModelConfig:
    def __init__(self, **changed):
        fields = {"hidden_size": 256, "rope_scaling": None, "architectures": ["FakeForCausalLM"]}
        self.hf_config = SimpleNamespace(**(fields | changed))
        self.dtype, self.quantization, self.context_len = "torch.bfloat16", None, 4096


class Runtime:
    """SGLang's runtime_context, which a process has one of."""

    def __init__(self):
        self.publish()

    def publish(self, config=None, **changed):
        """What the server of the tests runs with from now on."""
        self.server, self.model = ServerArgs(**changed), config or ModelConfig()

    def bag(self, top):
        made = SimpleNamespace()
        for place, names in _NAMESPACES.items():
            if place.split(".")[0] == top:
                at = made
                for part in place.split(".")[1:]:
                    at.__dict__.setdefault(part, SimpleNamespace())
                    at = getattr(at, part)
                for name in names:
                    setattr(at, name, getattr(self.server, name))
        return made


RUNTIME = Runtime()


def storage_namespace_seed(extra_key, cache_salt):
    return None if (extra_key, cache_salt) == (None, None) else repr((extra_key, cache_salt))


def install():
    """Puts the modules where `import sglang…` finds them."""
    install_modules(MEMBERS)


_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
MEMBERS = {
    "sglang.version": {"__version__": "0.5.23"},
    "sglang.srt.mem_cache.hicache_storage": {
        "HiCacheStorage": HiCacheStorage,
        "PoolTransferResult": PoolTransferResult,
    },
    "sglang.srt.mem_cache.utils": {"storage_namespace_seed": storage_namespace_seed},
    "sglang.srt.runtime_context": {
        "get_server_args": lambda: RUNTIME.server,
        "process_model_config": lambda: RUNTIME.model,
        "get_context": lambda: SimpleNamespace(config_bag=RUNTIME.bag),
        "get_parallel": lambda: RUNTIME.bag("parallel"),
        "get_serving": lambda: RUNTIME.bag("serving"),
    },
    "sglang.srt.arg_groups.arg_utils": {
        "namespace_of": lambda kind: {
            name: place for place, names in _NAMESPACES.items() for name in names
        },
        "record_fields": dataclasses.fields,
    },
    _UPDATER: {"WeightUpdater": WeightUpdater},
}


def config(extra, **changed):
    """A HiCacheStorageConfig as SGLang makes it of one rank."""
    fields = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": False,
        "model_name": "fake-model",
        "extra_config": {
            "backend_name": "cairn",
            "module_path": "cairn.sglang",
            "class_name": "CairnHiCache",
            "interface_v1": 1,
        }
        | extra,
    }
    return SimpleNamespace(**(fields | changed))


class _Pool:
    storage_format_tag, dcp_size = None, 1
    start_layer, layer_num, page_size, page_num = 0, 3, 32, 6
    dtype = "torch.bfloat16"

    def __init__(self, layout, **changed):
        self.layout = layout
        for name, value in changed.items():
            setattr(self, name, value)
        self.size = self.page_size * self.page_num
        self.kv_buffer = np.zeros(self._dims(), np.uint16)

    def _page(self, index):
        """Where a page is in the buffer, as the layout has it."""
        page = index // self.page_size
        cuts = {
            "layer_first": (slice(None), slice(index, index + self.page_size)),
            "page_first": (slice(index, index + self.page_size),),
            "page_first_direct": (slice(page, page + 1),),
            "page_head": (slice(page, page + 1),),
        }[self.layout]
        return (*self._before, *cuts)

    def get_data_page(self, index, flat=True):
        page = self.kv_buffer[self._page(index)]
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self):
        return np.zeros(self.page_size * self.get_size_per_token() // 2, np.uint16)

    def set_from_flat_data_page(self, index, data_page):
        place = self.kv_buffer[self._page(index)]
        place[...] = data_page.reshape(place.shape)


class MHATokenToKVPoolHost(_Pool):
    head_num, head_dim, v_head_dim = 2, 64, 64
    _before = (slice(None),)

    def _dims(self):
        layers, heads, dim = self.layer_num, self.head_num, self.head_dim
        return {
            "layer_first": (2, layers, self.size, heads, dim),
            "page_first": (2, self.size, layers, heads, dim),
            "page_first_direct": (2, self.page_num, layers, self.page_size, heads, dim),
            "page_head": (2, self.page_num, heads, self.page_size, layers, dim),
        }[self.layout]

    def get_size_per_token(self):
        return (self.head_dim + self.v_head_dim) * self.head_num * self.layer_num * 2


class MLATokenToKVPoolHost(_Pool):
    kv_cache_dim = 128
    _before = ()

    def _dims(self):
        layers, dim = self.layer_num, self.kv_cache_dim
        return {
            "layer_first": (layers, self.size, 1, dim),
            "page_first": (self.size, layers, 1, dim),
            "page_first_direct": (self.page_num, layers, self.page_size, 1, dim),
        }[self.layout]

    def get_size_per_token(self):
        return self.kv_cache_dim * self.layer_num * 2


class MHATokenToKOnlyPoolHost(MHATokenToKVPoolHost):
    """An index, whose pages are kept as bytes."""


class SomeNewPoolHost(MHATokenToKVPoolHost):
    """A class that Cairn does not know."""


class MambaPoolHost(_Pool):
    """States: a slot each, which its pages are made of."""

    page_size, page_num, state_bytes = 1, 6, 4096
    dtype, _before = "torch.uint8", ()

    def _dims(self):
        return self.page_num, self.state_bytes // 2

    def _page(self, index):
        return (index,)

    def get_size_per_token(self):
        return self.state_bytes
