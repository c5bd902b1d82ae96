# SPDX-License-Identifier: Apache-2.0
"""The plug-in under the installed LMCache's own `native_plugin` adapter: what it hands over, what it
says of parameters that are wrong, and that a server which starts again finds what is there."""

import importlib
import os
import select
import sys
import types
from unittest.mock import MagicMock

import pytest
from conftest import ENGINES

ADAPTERS = "lmcache.v1.distributed.l2_adapters"
OBJECT = 64 << 10


def load(name):
    """A module of LMCache's, without what it needs and this environment has not."""
    if str(ENGINES / "lmcache") not in sys.path:
        sys.path.append(str(ENGINES / "lmcache"))
    for _ in range(50):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            sys.modules[error.name] = MagicMock(__path__=[], __spec__=None)
    raise AssertionError(f"{name} cannot be imported")


@pytest.fixture
def start(daemon, request):
    """Adapters as LMCache's server makes them, each of a process of its own as it were."""
    plugin = load(f"{ADAPTERS}.native_plugin_l2_adapter")

    def build(**changed):
        told = {"control": daemon.control, "data": daemon.data, "weights_revision": "connectors"}
        config = plugin.NativePluginL2AdapterConfig.from_dict(
            {
                "module_path": "cairn.lmcache",
                "class_name": "CairnL2",
                "adapter_params": told | changed,
            }
        )
        adapter = plugin._create_native_plugin_l2_adapter(config)
        request.addfinalizer(adapter.close)
        return adapter

    return build


def wait(event, answer):
    """What LMCache's threads wait for, once it is there."""
    poller = select.poll()
    poller.register(event, select.POLLIN)
    while not (found := answer()):
        assert poller.poll(30000), "the task never ends"
    return found


def keys_of(model, count):
    kind = load("lmcache.v1.distributed.api").ObjectKey
    return [kind(bytes([i] * 32), model, 3, 1, "salt") for i in range(count)]


def store(adapter, keys, size):
    objects = [types.SimpleNamespace(byte_array=memoryview(os.urandom(size))) for _ in keys]
    task = adapter.submit_store_task(keys, objects)
    done = wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
    assert done[task].is_successful()


def found(adapter, keys):
    task = adapter.submit_lookup_and_lock_task(keys, {})
    event = adapter.get_lookup_and_lock_event_fd()
    bits = wait(event, lambda: adapter.query_lookup_and_lock_result(task))
    return [bits.test(i) for i in range(len(keys))]


def test_a_server_that_starts_again_finds_what_is_there(start):
    keys, others = keys_of("a/model", 3), keys_of("b/model", 1)
    first = start()
    store(first, keys[:2], OBJECT)
    store(first, others, 2 * OBJECT)
    again = start()
    assert found(again, [*keys, *others]) == [True, True, False, True]
    # After a change of the layout, the objects of before are no longer there for LMCache.
    store(again, keys[2:], 3 * OBJECT)
    assert found(start(), keys) == [False, False, True]


def test_objects_of_lmcache_s_own_order_are_k_and_v(start):
    """MemoryFormat.KV_2LTD of the installed LMCache: the order that a stated shape means."""
    source = (ENGINES / "lmcache" / "lmcache" / "v1" / "memory_management.py").read_text()
    assert "[2, num_layers, num_tokens, hidden_dim]" in source.split("KV_2LTD = auto()")[0][-200:]
    shape = {"dtype": "bf16", "kv_layers": 2, "kv_heads": 2, "head_dim": 64, "recipe": "exact"}
    keys = keys_of("shape/model", 2)
    store(start(**shape), keys[:1], 2 * 2 * 128 * 2 * 64 * 2)
    assert found(start(**shape), keys) == [True, False]
    assert found(start(**shape | {"kv_heads": 4}), keys) == [False, False]


def test_objects_of_lmcache_s_latents_are_latents(start):
    """MLA as the installed LMCache describes its objects: by its formats, by its metadata, and by what its
    server makes of what a worker says."""
    source = (ENGINES / "lmcache" / "lmcache" / "v1" / "memory_management.py").read_text()
    told = source.split("KV_MLA_FMT = auto()")[1][:100]
    assert "[1, num_layers, num_tokens, aligned_head_size]" in told
    metadata = load("lmcache.v1.metadata").LMCacheMetadata
    layers, tokens, dim = 2, 128, 576
    torch = pytest.importorskip("torch")
    shape = (layers, 1, tokens, 1, dim)
    made = metadata("latent/model", 1, 1, 0, 0, torch.bfloat16, shape, use_mla=True)
    ((*planes, found_tokens, found_dim),) = made.get_shapes(tokens)
    assert (planes, found_tokens, found_dim) == ([1, layers], tokens, dim)
    shape = {"dtype": "bf16", "kv_layers": layers, "latent_dim": dim, "recipe": "exact"}
    keys = keys_of("latent/model", 2)
    store(start(**shape), keys[:1], layers * tokens * dim * 2)
    assert found(start(**shape), keys) == [True, False]
    assert found(start(**shape | {"latent_dim": 288}), keys) == [False, False]


def test_keys_say_a_model_a_rank_and_a_group():
    """And nothing of weights, dtype or layout, nor does LMCache hand over anything else."""
    from cairn.lmcache import _kind_of

    module = load(f"{ADAPTERS}.native_connector_l2_adapter")
    (key,) = keys_of("a/model", 1)
    text = module._object_key_to_string(key)
    assert text.split("@") == ["a/model", "00000003", "1", "00" * 32, "salt"]
    assert _kind_of(text) == "a/model@00000003@1"


def test_adapters_are_told_nothing_of_requests():
    """So there is nothing that could bring a hint: docs/guides/lmcache.md says so."""
    import dataclasses
    import inspect

    kind = load("lmcache.v1.distributed.api").ObjectKey
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == {"chunk_hash", "model_name", "kv_rank", "object_group_id", "cache_salt"}
    base = load(f"{ADAPTERS}.base").L2AdapterInterface
    for name in ("submit_store_task", "submit_load_task"):
        assert list(inspect.signature(getattr(base, name)).parameters)[1:] == ["keys", "objects"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"weight_revision": "r"}, "adapter_params has 'weight_revision' .'r'., expected some of"),
        ({"timeout": "10"}, "adapter_params: timeout is '10', expected float"),
        (
            {"dtype": "bf16", "kv_layers": 2, "latent_dim": 576, "kv_heads": 1},
            "adapter_params has latent_dim and kv_heads: an object has latents, or K and V",
        ),
        ({"weights_revision": None}, "adapter_params has no 'weights_revision'"),
    ],
)
def test_parameters_that_are_wrong_are_named(start, changed, named):
    with pytest.raises(ValueError, match=named):
        start(**changed)
