# SPDX-License-Identifier: Apache-2.0
"""What vLLM does over an engine's life, by its own classes: adapters that it loads, sessions that go on,
names of media, figures that travel between processes, layouts of its offloading."""

import contextlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import cairn
import pytest
import torch
from cairn.vllm import adapters, revision
from cairn.vllm.adapters import Adapters, LoadedAdapters, folder_of
from cairn.vllm.media import are_media_named, is_named_by_content
from cairn.vllm.plan import Geometry
from cairn.vllm.scheduler import Scheduler
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest

STORE, ENGINE = 128, 32
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Files count from the moment on at which they are made."""
    monkeypatch.setattr(revision, "_SETTLED_NS", 0)
    adapters._loads.of_managers.clear()


# ------------------------------------------------------------------------------------- adapters


def adapter(path, value):
    path.mkdir(parents=True, exist_ok=True)
    config = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "peft_type": "LORA"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    tensors = {KEY.format("A"): torch.full((8, 64), value), KEY.format("B"): torch.zeros(64, 8)}
    save_file(tensors, path / "adapter_model.safetensors")
    return str(path)


class _AdapterManager(types.SimpleNamespace):
    def __len__(self):
        return len(self.list_adapters())


def manager_of():
    """vLLM's, which loads from the disk what a request wants, without a model to put it in."""
    from vllm.config.lora import LoRAConfig
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    manager = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
    manager._lora_model_cls, manager.lora_config = LoRAModel, LoRAConfig(max_lora_rank=8)
    manager.lora_config.lora_dtype = torch.float32
    manager.max_position_embeddings, manager.vocab_size = 4096, 1000
    held = {}
    manager._adapter_manager = _AdapterManager(
        supported_lora_modules=["q_proj"],
        packed_modules_mapping={},
        model=None,
        moe_ep_load_spec=None,
        capacity=8,
        list_adapters=lambda: held,
        remove_adapter=lambda number: held.pop(number, None),
        add_adapter=lambda lora: held.setdefault(lora.id, lora) is not None,
        get_adapter=held.get,
        activate_adapter=lambda number: None,
        **{
            f"_validate_{name}": lambda lora: None
            for name in ("moe_lora_format", "modules_to_save", "token_classification_lora")
        },
    )
    manager.held = held
    return manager


def value_in(manager, number):
    return float(next(iter(manager.held[number].loras.values())).lora_a.flatten()[0])


@pytest.fixture
def loaded():
    made = LoadedAdapters()
    made.watch()
    return made


def test_what_vllm_has_loaded_is_known(loaded, tmp_path):
    path = adapter(tmp_path / "current", 1.0)
    manager, lora, named = manager_of(), LoRARequest("tuned", 1, path), Adapters()
    first = named.find(lora)
    assert loaded.may_load(first) and not loaded.may_save(first)  # it is not loaded yet
    manager.add_adapter(lora)
    assert value_in(manager, 1) == 1.0 and loaded.may_save(first)
    named.take(loaded.take_news())
    assert loaded.take_news() == {}
    adapter(tmp_path / "current", 2.0)
    manager.add_adapter(lora)  # vLLM goes on with what it has
    assert value_in(manager, 1) == 1.0
    assert named.find(lora) is None and loaded.may_save(first)
    again = LoRARequest("tuned", 1, path, load_inplace=True)
    manager.add_adapter(again)
    assert value_in(manager, 1) == 2.0
    assert not loaded.may_save(first) and not loaded.may_load(first)
    named.take(loaded.take_news())
    second = named.find(again)
    assert second.revision != first.revision and loaded.may_save(second)


def test_an_adapter_that_changes_while_it_is_loaded(loaded, tmp_path, monkeypatch):
    from vllm.lora.lora_model import LoRAModel

    path = adapter(tmp_path / "current", 1.0)
    load = LoRAModel.from_local_checkpoint

    def load_and_change(*arguments, **more):
        made = load(*arguments, **more)
        adapter(tmp_path / "current", 2.0)
        return made

    monkeypatch.setattr(LoRAModel, "from_local_checkpoint", load_and_change)
    manager, lora = manager_of(), LoRARequest("tuned", 1, path)
    manager.add_adapter(lora)
    assert value_in(manager, 1) == 1.0 and loaded.take_news() == {1: None}
    assert not loaded.may_save(Adapters().find(lora))


def test_an_adapter_of_the_hub_is_named_by_its_commit(loaded, tmp_path, monkeypatch):
    """vLLM asks the hub at each load; another process may have brought a new commit since."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--adapter"
    for commit, value in (("a" * 40, 1.0), ("b" * 40, 2.0)):
        adapter(repository / "snapshots" / commit, value)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(
        "vllm.lora.utils.hf_api",
        lambda: types.SimpleNamespace(
            snapshot_download=lambda repo_id: folder_of(repo_id)  # as it is offline
        ),
    )
    manager, lora, named = manager_of(), LoRARequest("tuned", 1, "some/adapter"), Adapters()
    first = named.find(lora)
    manager.add_adapter(lora)
    named.take(loaded.take_news())
    assert value_in(manager, 1) == 1.0 and loaded.may_save(first)
    (repository / "refs" / "main").write_text("b" * 40)
    assert named.find(lora) is None
    manager.add_adapter(LoRARequest("tuned", 1, "some/adapter", load_inplace=True))
    named.take(loaded.take_news())
    assert value_in(manager, 1) == 2.0 and loaded.may_save(named.find(lora))
    assert named.find(LoRARequest("none", 2, "no/adapter")) is None


def test_all_fields_of_an_adapter_are_thought_of():
    """A new one of vLLM's belongs into `Adapters.value_of`, or is of no meaning for K and V."""
    known = {"lora_name", "lora_path", "is_3d_lora_weight"}  # in the name, the path by its bytes
    known |= {"lora_int_id", "base_model_name", "load_inplace"}  # labels, and when it is read
    assert set(LoRARequest.__struct_fields__) == known
    named, flat = Adapters(), LoRARequest("a", 1, "/x")
    deep = LoRARequest("a", 1, "/x", is_3d_lora_weight=True)
    found = adapters.Adapter(1, "bytes:1")
    assert named.value_of(flat, found) != named.value_of(deep, found)


# --------------------------------------------------------------------------------------- weights


def test_weights_that_vllm_loads_are_noted(monkeypatch):
    from cairn.vllm.reloads import Reloads
    from vllm.v1.worker import cpu_worker, gpu_worker

    called = []
    for name in ("reload_weights", "_start_weight_update"):
        note = lambda self, *of, name=name, **more: called.append(name)  # noqa: E731
        monkeypatch.setattr(gpu_worker.Worker, name, note)
    reloads = Reloads()
    reloads.watch()
    worker = cpu_worker.CPUWorker.__new__(cpu_worker.CPUWorker)
    worker.vllm_config = None
    monkeypatch.setattr(gpu_worker, "set_current_vllm_config", lambda _: contextlib.nullcontext())
    worker.reload_weights()
    assert reloads.take() == {"files": 1, "others": 0}
    worker.reload_weights(weights_path="/elsewhere")
    worker.start_weight_update()
    assert reloads.take() == {"files": 0, "others": 2} and len(called) == 3


# ------------------------------------------------------------------------------ media and sessions


def scheduler_of():
    """The connector's, of a daemon that has nothing and takes everything."""
    lookups = types.SimpleNamespace(
        ask=lambda keys: types.SimpleNamespace(keys=keys, found=None),
        drop=lambda lookup: None,
        is_open=True,
        is_lossless=True,
    )
    return Scheduler(lookups, bytes(32), Geometry(ENGINE, STORE))


def request_of(tokens, features=()):
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=8)
    return Request("session", list(tokens), params, None, mm_features=list(features), resumable=True)


def feature(digit, offset, length):
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(None, "audio", digit * 64, place)


def go_on(request, tokens, features=()):
    """The next part of a session, by vLLM's own scheduler."""
    from vllm.v1.core.sched.scheduler import Scheduler as Theirs
    from vllm.v1.request import StreamingUpdate

    update = StreamingUpdate.from_request(request_of(tokens, features))
    them = types.SimpleNamespace(hash_block_size=ENGINE, log_stats=False)
    Theirs._update_request_as_session(them, request, update)


def compute(scheduler, request):
    """All of its tokens in a step: the keys that it saves."""
    count = request.num_tokens - request.num_computed_tokens
    table = [list(range(1, request.num_tokens // ENGINE + 2))]
    plan = scheduler.plan({request.request_id: count}, lambda _: table)
    request.num_computed_tokens += count
    return [key for save in plan.saves for key in save.keys]


def test_a_later_audio_of_a_session_is_in_its_keys():
    found = []
    for digit in ("a", "b"):
        scheduler, request = scheduler_of(), request_of(range(STORE))
        scheduler.begin(request)
        first = compute(scheduler, request)
        request.append_output_token_ids(7)  # which vLLM takes back
        go_on(request, [5] * STORE, [feature(digit, 2, 100)])
        assert request.mm_features[0].mm_position.offset == STORE + 2
        found.append((first, compute(scheduler, request)))
    (first, with_one), (same, with_other) = found
    assert first == same and len(with_one) == len(with_other) == 1 and with_one != with_other


def test_a_sampled_token_that_a_session_takes_back():
    scheduler, request = scheduler_of(), request_of(range(STORE - 1))
    scheduler.begin(request)
    assert compute(scheduler, request) == []
    request.append_output_token_ids(7)
    chain = scheduler._chains["session"]
    named = chain.keys(1, bytes(32))
    go_on(request, [8])
    (saved,) = compute(scheduler, request)
    assert list(request.all_token_ids) == [*range(STORE - 1), 8] and [saved] != named


@pytest.mark.parametrize("algorithm", ["blake3", "sha256", "sha512"])
def test_media_are_named_by_their_content_or_not_at_all(algorithm):
    from vllm.multimodal.parse import ImageProcessorItems
    from vllm.multimodal.processing.inputs import ProcessorInputs

    def name(uuid):
        from PIL import Image

        items = {"image": ImageProcessorItems([Image.new("RGB", (4, 4))])}
        given = ProcessorInputs([], items, {"image": [uuid]})
        return given.get_mm_hashes("model", algorithm)["image"][0]

    assert is_named_by_content(name(None)) and is_named_by_content("tuned:" + name(None))
    assert name("mine") == "mine" and not is_named_by_content("mine")


def test_media_of_an_engine_without_caches_are_numbered():
    """The first picture of any such engine has the same name: no connector may believe it."""
    from vllm.renderers.base import BaseRenderer

    media = types.SimpleNamespace(mm_processor_cache_gb=0)
    caches = types.SimpleNamespace(enable_prefix_caching=False)
    model = types.SimpleNamespace(multimodal_config=media)
    config = types.SimpleNamespace(model_config=model, cache_config=caches)
    them = types.SimpleNamespace(
        model_config=model, config=config, _validate_mm_uuids=lambda *of: None
    )
    items = types.SimpleNamespace(get_all_counts=lambda: {"image": 1})
    name = BaseRenderer._process_mm_uuids(them, {}, items, {}, "renderer0-mm-1")["image"][0]
    assert name == "renderer0-mm-1-image-0" and not is_named_by_content(name)
    assert not are_media_named(config)
    caches.enable_prefix_caching = True
    assert are_media_named(config)


# ----------------------------------------------------------------------- beside other connectors


def multi_config():
    from vllm.config import KVTransferConfig

    mine = {"kv_connector": "CairnConnector", "kv_connector_module_path": "cairn.vllm"}
    other = {"kv_connector": "ExampleConnector"}
    children = [one | {"kv_role": "kv_both"} for one in (mine, other)]
    return types.SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="MultiConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"connectors": children},
        )
    )


def test_figures_inside_multiconnector():
    """They come as numbers by the class's name, out of another process."""
    from prometheus_client import Counter, Gauge, Histogram
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    config = multi_config()
    assert MultiConnector.all_children_support_hma(config.kv_transfer_config) is False
    made = MultiConnector.build_kv_connector_stats({"CairnConnector": {"loads": 2}})
    more = MultiConnector.build_kv_connector_stats({"CairnConnector": {"loads": 3}})
    assert made.aggregate(more).reduce() == {"CairnConnector": {"cairn loads": 5}}
    figures = MultiConnector.build_prom_metrics(
        config, {kind: kind for kind in (Counter, Gauge, Histogram)}, ["engine"], {0: ["0"]}
    )
    figures.observe(made.to_dict(), 0)
    counter = figures._prom_metrics["CairnConnector"]._counters["loads"][0]
    assert counter._value.get() == 5


def test_a_connector_that_the_user_has_registered():
    """As was needed before, and is of no harm."""
    import importlib

    from cairn.vllm import connector
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    before = connector.CairnConnector
    try:
        importlib.reload(connector)
    finally:
        connector.CairnConnector = before
    assert KVConnectorFactory.get_connector_class_by_name("CairnConnector") is before


NAMED_BY_THE_PACKAGE = """
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.plugins import load_general_plugins
load_general_plugins()
for name in ("CairnConnector", "CairnOffloadingConnector"):
    print(KVConnectorFactory.get_connector_class_by_name(name).__module__)
"""


def test_the_installed_package_names_the_connectors(tmp_path):
    """vLLM finds them without a module path: the package's entry point is one of its plugins."""
    package = pathlib.Path(cairn.__file__).parents[1]
    about = (package / "pyproject.toml").read_text(encoding="utf-8")
    group, (line,) = "vllm.general_plugins", re.findall(r'^cairn = "(.+?)"', about, re.MULTILINE)
    assert f'[project.entry-points."{group}"]' in about
    installed = tmp_path / "kvcairn-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kvcairn\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text(f"[{group}]\ncairn = {line}\n")
    path = os.pathsep.join([str(tmp_path), str(package)])
    done = subprocess.run(
        [sys.executable, "-c", NAMED_BY_THE_PACKAGE],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split()[-2:] == ["cairn.vllm.connector", "cairn.vllm.tier"], done.stderr


def test_vllm_resets_connectors_when_it_sleeps():
    from vllm.v1.engine.core import EngineCore

    resets = inspect.signature(EngineCore._reset_caches).parameters["reset_connector"]
    assert resets.default is True  # or else docs/guides/vllm.md is wrong


# ------------------------------------------------------------------------------------- offloading


def offloading_config(tensor, extra):
    """Of what a model with four heads has, on so many ranks."""
    parallel = types.SimpleNamespace(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        world_size=tensor,
        rank=0,
        data_parallel_index=0,
        data_parallel_size=1,
        data_parallel_rank_local=None,
        distributed_executor_backend="mp",
        nnodes_within_dp=1,
    )
    model = types.SimpleNamespace(
        model="some/model",
        dtype=torch.bfloat16,
        use_mla=False,
        get_total_num_kv_heads=lambda: 4,
    )
    return types.SimpleNamespace(
        parallel_config=parallel,
        model_config=model,
        use_v2_model_runner=False,
        kv_events_config=None,
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=extra, engine_id="e"),
        cache_config=types.SimpleNamespace(
            cache_dtype="auto",
            kv_cache_layout="LBHNC",
            block_size=16,
            prefix_match_unit=None,
            enable_prefix_caching=True,
        ),
    )


def layout_of(tensor, **extra):
    """Of a chunk, by what vLLM's offloading makes of its configuration."""
    from cairn.vllm.tier import _layout_of
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config,
    )
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheTensor,
    )

    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=4 // tensor, head_size=64, dtype=torch.bfloat16
    )
    tensors = [KVCacheTensor(1 << 20, ["layers.0"], 1 << 20, 1 << 17)]
    cache = KVCacheConfig(8, tensors, [KVCacheGroupSpec(["layers.0"], spec)])
    made = build_offloading_config(offloading_config(tensor, extra), cache)
    assert made.parallel.is_parallelism_agnostic  # says vLLM of either layout
    return _layout_of(made)


def test_chunks_of_other_ranks_are_apart_unless_vllm_lays_them_out_without():
    assert layout_of(1) != layout_of(2)
    assert layout_of(1, canonical_layout=True) == layout_of(2, canonical_layout=True)
    assert layout_of(1) != layout_of(1, canonical_layout=True)
