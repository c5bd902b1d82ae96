# SPDX-License-Identifier: Apache-2.0
"""What pages are named by under the installed SGLang: its own chains of hashes, its configuration
as it resolves it, its updates of weights, its factory of backends."""

import hashlib
import importlib
import json
import types
from array import array
from unittest.mock import MagicMock

import pytest
from conftest import ENGINES
from sglang_contract import config_of, use_package

PAGE = 32
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module", autouse=True)
def package():
    use_package(ENGINES / "sglang")


def load(name):
    """A module of SGLang's, without what it needs and this environment has not."""
    for _ in range(50):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            importlib.sys.modules[error.name] = MagicMock(__path__=[], __spec__=None)
    raise AssertionError(f"{name} cannot be imported")


@pytest.fixture
def publish(tmp_path, request):
    """Publishes a configuration as SGLang's scheduler has it, resolved by SGLang itself."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    load("sglang.srt.server_args")
    context = load("sglang.srt.runtime_context").get_context()

    def build(**given):
        override = context.override_server_args(**{"model_path": str(tmp_path)} | given)
        override.install()
        request.addfinalizer(override.restore)
        return context

    return build


@pytest.fixture
def hashed(monkeypatch):
    """SGLang's own extension for SHA-256 takes a compiler and minutes: the same in Python."""
    utils = load("sglang.srt.mem_cache.utils")

    def native_hash(key, prior, page_size):
        tokens, names = key.raw_token_ids(), []
        for first in range(0, len(tokens), page_size):
            page = tokens[first : first + page_size].tobytes()
            prior = hashlib.sha256((prior or b"") + page).digest()
            names.append(prior.hex())
        return names

    monkeypatch.setattr(utils, "get_native_hash", native_hash)
    return utils


def test_adapters_and_salts_have_pages_of_their_own(hashed):
    from sglang.srt.mem_cache.radix_cache import RadixKey, TreeNode

    tokens = array("q", range(2 * PAGE))

    def names(**namespace):
        node = TreeNode()
        node.key, node.parent = RadixKey(tokens, **namespace), TreeNode()
        node.parent.key = RadixKey(array("q"))
        of_node = hashed.compute_node_hash_values(node, PAGE)
        assert of_node == hashed.get_storage_hash_str(node.key, page_size=PAGE)
        return tuple(of_node)

    apart = [
        names(),
        names(extra_key="adapter-a"),
        names(extra_key="adapter-b"),
        names(cache_salt="adapter-a"),
        names(cache_salt="salt-b"),
        names(extra_key="adapter-a", cache_salt="salt-b"),
    ]
    assert len({name for one in apart for name in one}) == 2 * len(apart)
    assert names(extra_key="adapter-a") == apart[1]


def test_a_request_s_adapter_is_in_its_extra_key():
    import inspect

    request = load("sglang.srt.managers.schedule_batch").Req
    text = inspect.getsource(request.__init__)
    assert "+ lora_id" in text and "self.extra_key = extra_key" in text


def test_adapters_of_the_start_are_named_by_name_and_path_alone():
    """Why Cairn adds what is in their files."""
    reference = load("sglang.srt.lora.lora_registry").LoRARef
    assert reference.deterministic_id("a", "/b") == reference.deterministic_id("a", "/b")
    assert reference(lora_name="a", lora_path="/b").lora_id != reference("a", "/b").lora_id


def test_the_version_is_enough():
    from cairn import _sglang_server

    _sglang_server.check_page_names()


def test_what_sglang_was_told_is_in_the_name(publish):
    from cairn._sglang_server import Server

    def revision(**given):
        publish(**given)
        server = Server()
        server.check_splits()
        return server.revision()

    first = revision()
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    apart = [
        first,
        revision(json_model_override_args=json.dumps(scaled)),
        revision(json_model_override_args=json.dumps({"rope_theta": 1e6})),
        revision(dtype="float16"),
        revision(context_length=2048),
        revision(quantization="fp8"),
        revision(kv_cache_dtype="fp8_e5m2"),
        revision(revision="other"),
        revision(load_format="dummy"),
        revision(speculative_algorithm="EAGLE3", speculative_draft_model_path="/draft"),
        revision(mamba_ssm_dtype="bfloat16"),
    ]
    assert len(set(apart)) == len(apart)
    for same in (
        {},
        {"download_dir": "/elsewhere"},
        {"attention_backend": "fa3"},
        {"page_size": 64},
        {"tp_size": 2},
        {"ep_size": 2, "tp_size": 2},
    ):
        assert revision(**same) == first, same


def test_every_split_of_this_version_is_known_or_refused(publish):
    from cairn import InvalidArgumentError
    from cairn import _sglang_server as server

    publish()
    places = server.Server()._places
    splits = {name for name, place in places.items() if place == "parallel"}
    assert splits - set(server._KNOWN_SPLITS) == {
        "dcp_size",
        "enable_kv_cache_sharding",
        "enable_dsa_cache_layer_split",
        "enable_cp_tp_group_sharing",
    }
    for told in (
        {"dcp_size": 2},
        {"enable_kv_cache_sharding": True},
        {"enable_dsa_cache_layer_split": True},
        {"enable_cp_tp_group_sharing": True},
    ):
        publish(**told)
        with pytest.raises(InvalidArgumentError, match="--" + next(iter(told)).replace("_", "-")):
            server.Server().check_splits()


def test_lists_name_what_this_version_has(publish):
    """A name that is misspelt, or gone from SGLang, leaves out or counts nothing."""
    from cairn import _sglang_server as server

    publish()
    places = server.Server()._places
    assert set(server._COUNTED) <= set(places)
    assert {places.get(name) for name in server._LEFT_OUT} == {"model"}
    assert {places.get(name) for name in server._KNOWN_SPLITS} == {"parallel"}
    assert {places.get(name) for name in (server._ADAPTERS, *server._OF_ADAPTERS)} == {"lora"}


def test_updates_of_weights_are_heard(publish):
    from cairn._sglang_weights import Current, Weights

    context = publish()
    heard = Weights()
    heard.listen()
    kind = load("sglang.srt.model_executor.model_runner_components.weight_updater").WeightUpdater
    assert heard.current() == Current()
    with pytest.raises(AttributeError):  # there is no model, which the change comes to
        kind.update_weights_from_ipc(types.SimpleNamespace(), None)
    assert heard.current() is None
    context.override("test", weight_version="step 2")
    assert heard.current() == Current(version="step 2")
    for name in ("update_weights_from_disk", "load_weights_from_distributed"):
        assert hasattr(getattr(kind, name), "__wrapped__")


def test_a_trainer_names_the_weights_by_sglang_s_own_call(publish, monkeypatch):
    """`Engine.collective_rpc` calls a method of every scheduler."""
    from cairn._sglang_weights import Current, Weights

    publish()
    scheduler = load("sglang.srt.managers.scheduler")
    monkeypatch.setattr(scheduler, "barrier", lambda **_: None)
    heard = Weights()
    heard.listen()
    kind = load("sglang.srt.model_executor.model_runner_components.weight_updater").WeightUpdater
    with pytest.raises(AttributeError):
        kind.update_weights_from_ipc(types.SimpleNamespace(), None)
    assert heard.current() is None

    def call(**parameters):
        rank = scheduler.Scheduler.__new__(scheduler.Scheduler)
        rank.tp_group = types.SimpleNamespace(cpu_group=None)
        request = load("sglang.srt.managers.io_struct").RpcReqInput
        return rank.handle_rpc_request(
            request(method="cairn_weights_are_now", parameters=parameters)
        )

    assert call(revision="run 7, step 1200").success
    assert heard.current() == Current("run 7, step 1200")
    refused = call(revision="")
    assert not refused.success and "expected a name of the weights" in refused.message


def test_storage_is_told_nothing_of_requests_but_their_pages():
    """So there is nothing that could bring a hint: docs/guides/sglang.md says so."""
    import dataclasses
    import inspect

    storage = load("sglang.srt.mem_cache.hicache_storage")
    extra = storage.HiCacheStorageExtraInfo
    assert {one.name for one in dataclasses.fields(extra)} == {"prefix_keys", "extra_info"}
    for name in ("managers.cache_controller", "mem_cache.hybrid_cache.hybrid_cache_controller"):
        source = inspect.getsource(load(f"sglang.srt.{name}"))
        calls = source.split("HiCacheStorageExtraInfo(")[1:]
        assert calls and not any(one.lstrip().startswith("extra_info=") for one in calls)
        assert "extra_info={" not in source and ".extra_info" not in source


def test_sglang_s_factory_makes_a_backend(publish, daemon):
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    config = config_of(daemon, weights_revision="connectors")
    with pytest.raises(Exception, match="configuration.* cannot be read"):
        StorageBackendFactory.create_backend("dynamic", config, None)
    publish()
    StorageBackendFactory.create_backend("dynamic", config, None).close()
