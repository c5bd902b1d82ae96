# SPDX-License-Identifier: Apache-2.0
"""What K and V depend on is in the name of a space, or refused when the engine starts: every field
of vLLM's own configuration is changed. A field of a later vLLM that is in no table fails by name.
"""

import dataclasses
import inspect
import pathlib
import re
import shutil
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_args

import cloudpickle
import pytest
import vllm.config
from cairn import InvalidArgumentError, identity
from cairn.vllm import drafts as drafts_of
from cairn.vllm import resolved
from cairn.vllm.model import model_of
from cairn.vllm.settings import Settings
from vllm.config import multimodal, speculative
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader import LoadFormats

WINDOW = {"hf_overrides": {"sliding_window": 64}}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 1024,
}


@dataclass(frozen=True)
class Field:
    """value: what it is set to in vLLM's object. options: how the engine is started, with the
    change and without. changed: options in the place of a value."""

    kind: str
    why: str = ""
    value: Any = None
    options: dict = field(default_factory=dict)
    changed: dict = field(default_factory=dict)
    before: dict = field(default_factory=dict)  # other fields, set with the change and without


def named(value, **more):
    return Field("named", value=value, **more)


def named_by(options=None, **changed):
    return Field("named", changed=changed, options=options or {})


def refused(value, says):
    return Field("refused", says, value)


def same(value, why):
    """It makes no other name, as no K or V depends on it."""
    return Field("same", why, value)


_SAMPLING = "of what is made of the model's output"
_TOKENS = "makes the tokens, which are in the keys"
_SLEEP = "how memory is let go of; the weights are the same"
_MEDIA_ACCESS = "which media a request may name"

MODEL = {
    "model": named_by(model="other"),
    "model_weights": refused("s3://bucket/model", "name their revision as weights_revision"),
    "runner": named_by(runner="pooling"),
    "convert": named_by({"runner": "pooling"}, convert="classify"),
    "tokenizer": same("other", _TOKENS),
    "tokenizer_mode": same("slow", _TOKENS),
    "trust_remote_code": named(True),
    "dtype": named_by(dtype="float16"),
    "seed": same(7, _SAMPLING),
    "hf_config": named_by(hf_overrides={"rms_norm_eps": 1e-5}),
    "hf_text_config": named_by(hf_overrides={"rope_theta": 1e6}),
    "is_submodel_config": same(True, "a view of a part, which no engine is started with"),
    "word_embeddings_untied_by_checkpoint": same(True, "of the layer behind the last K and V"),
    "hf_config_path": named_by(hf_config_path="configuration"),
    "allowed_local_media_path": same("/media", _MEDIA_ACCESS),
    "allowed_media_domains": same(["example.org"], _MEDIA_ACCESS),
    "revision": named(
        "b" * 40,
        before={"model": "some/model", "hf_config_path": "some/other", "revision": "a" * 40},
    ),
    "code_revision": named("main"),
    "tokenizer_revision": same("main", _TOKENS),
    "max_model_len": named(
        4096, options={"hf_overrides": {"rope_parameters": LONG_ROPE}, "max_model_len": 1024}
    ),
    "spec_target_max_model_len": same(512, "of drafts"),
    "quantization": named("fp8"),
    "quantization_config": named({"linear": {"weight": "fp8"}}),
    "allow_deprecated_quantization": same(True, "a warning or an error"),
    "enforce_eager": same(True, "how kernels are launched"),
    "return_sampling_mask": same(True, _SAMPLING),
    "max_logprobs": same(5, _SAMPLING),
    "logprobs_mode": same("raw_logits", _SAMPLING),
    "use_fp64_gumbel": same(True, _SAMPLING),
    "enable_trace_replay": same(True, _SAMPLING),
    "disable_sliding_window": named_by(WINDOW, disable_sliding_window=True),
    "disable_cascade_attn": same(False, "has no effect any more"),
    "skip_tokenizer_init": same(False, _TOKENS),
    "enable_prompt_embeds": same(True, "a prompt without tokens is neither saved nor loaded"),
    "served_model_name": same("other", "what the server's clients call it"),
    "config_format": same("hf", "how the configuration is read, whose fields are in the name"),
    "hf_token": same("t", "who may read the weights"),
    "hf_overrides": named_by(hf_overrides={"num_experts_per_tok": 4}),
    "model_class_overrides": named({"LlamaForCausalLM": "module:Class"}),
    "generation_config": same("vllm", _SAMPLING),  # but for Llama 4, below
    "override_generation_config": same({"temperature": 0.5}, _SAMPLING),
    "enable_sleep_mode": same(True, _SLEEP),
    "sleep_preserve_parameter_names": same(["a"], _SLEEP),
    "sleep_mode_backend": same("criu", _SLEEP),
    "sleep_mode_offload_cudagraph": same(True, _SLEEP),
    "enable_nccl_comm_suspend": same(True, _SLEEP),
    "enable_cumem_allocator": same(True, "where memory comes from"),
    "model_impl": named_by(model_impl="transformers"),
    "logits_processors": same(["a"], _SAMPLING),
    "io_processor_plugin": same("a", "of requests and answers"),
    "renderer_num_workers": same(4, _TOKENS),
    "pooler_config": same(SimpleNamespace(), _SAMPLING),
    "multimodal_config": named(SimpleNamespace(mm_processor_kwargs={"num_crops": 4})),
}

_STATES = "of layers with a state: in what their specification says, or refused"
_MEMORY = "how much memory there is"
_OWN_HITS = "of vLLM's own prefix cache"

CACHE = {
    "block_size": same(64, "blocks of the store are put together from the engine's"),
    "user_specified_block_size": same(False, "whether block_size was given"),
    "kv_cache_layout": same(
        "BLHNC", "where K and V lie: the store has them by their place, and coded rows in their name"
    ),
    "prefix_match_unit": same(16, _OWN_HITS),
    "gpu_memory_utilization": same(0.5, _MEMORY),
    "cache_dtype": named("fp8"),
    "is_attention_free": same(True, "a model without attention has no KV"),
    "num_gpu_blocks_override": same(10, _MEMORY),
    "sliding_window": same(64, "a copy: a group of layers has its window in the name"),
    "enable_prefix_caching": same(False, _OWN_HITS),
    "prefix_caching_hash_algo": same("xxhash", _OWN_HITS),
    "prefix_cache_retention_interval": same(64, _OWN_HITS),
    "kv_cache_dtype_skip_layers": same(["0"], "layers of another shape: groups of their own, or refused"),
    "mamba_page_size_padded": same(1024, _STATES),
    "skip_page_size_padded": same(1024, "of layers whose cache is not coded: refused beside coded ones"),
    "mamba_block_size": same(64, _STATES),
    "mamba_cache_dtype": same("float32", _STATES),
    "mamba_ssm_cache_dtype": same("float16", _STATES),
    "mamba_cache_mode": same("align", _STATES),
    "enable_mamba_shared_prefix_checkpoint": same(True, _STATES),
    "replayssm_buffer_len": same(32, _STATES),
    "use_replayssm": same(True, _STATES),
    "use_kda_recoverssm": same(True, _STATES),
    "num_gpu_blocks": same(10, _MEMORY),
    "num_cpu_blocks": same(10, _MEMORY),
    "effective_attention_block_size": same(64, "derived of block_size and refused splits"),
    "kv_cache_size_tokens": same(1024, _MEMORY),
    "kv_cache_max_concurrency": same(2.0, _MEMORY),
    "hash_block_size": same(64, _OWN_HITS),
    "cache_hit_alignment_tokens": same(64, _OWN_HITS),
    "kv_sharing_fast_prefill": same(True, "skips layers that keep no KV of their own"),
    "swa_bounded_replay": same(False, "of DeepSeek V4, which is refused"),
    "kv_cache_memory_bytes": same(1 << 30, _MEMORY),
    "kv_offloading_size": same(1.0, "another store, beside this one"),
    "kv_offloading_backend": same("lmcache", "another store, beside this one"),
    "_block_size_resolved": same(False, "whether block_size is final"),
}

_REPLICA = "of engines with KV of their own, each with its scheduler"
_EXPERTS = "where an expert's weights lie: each token gets the same experts"
_SPLIT = "of ranks that split tokens, which are refused"
_LAUNCH = "how processes are started and find each other"

PARALLEL = {
    "pipeline_parallel_size": same(2, "ranks name their layers"),
    "tensor_parallel_size": same(2, "ranks name their heads"),
    "prefill_context_parallel_size": refused(2, "prefill_context_parallel_size is 2"),
    "decode_context_parallel_size": refused(2, "decode_context_parallel_size is 2"),
    "data_parallel_size": same(2, _REPLICA),
    "data_parallel_size_local": same(2, _REPLICA),
    "data_parallel_rank": same(1, _REPLICA),
    "data_parallel_rank_local": same(1, _REPLICA),
    "data_parallel_index": same(1, _REPLICA),
    "data_parallel_master_ip": same("127.0.0.2", _LAUNCH),
    "data_parallel_rpc_port": same(1, _LAUNCH),
    "dp_sync_interval": same(1, _REPLICA),
    "data_parallel_master_port": same(1, _LAUNCH),
    "data_parallel_backend": same("ray", _LAUNCH),
    "data_parallel_external_lb": same(True, _REPLICA),
    "data_parallel_hybrid_lb": same(True, _REPLICA),
    "is_moe_model": same(True, "known of the configuration, too"),
    "enable_hc_sp": same(True, "splits what is between layers; attention is not split by it"),
    "enable_expert_parallel": same(True, _EXPERTS),
    "enable_batch_sharded_sampling": same(True, _SAMPLING),
    "enable_ep_weight_filter": same(True, _EXPERTS),
    "enable_eplb": same(True, _EXPERTS),
    "eplb_config": same(SimpleNamespace(), _EXPERTS),
    "expert_placement_strategy": same("round_robin", _EXPERTS),
    "all2all_backend": same("naive", _EXPERTS),
    "max_parallel_loading_workers": same(2, _LAUNCH),
    "disable_custom_all_reduce": same(False, "how ranks add up"),
    "enable_shm_tensor_arena": same(True, "how ranks get what they compute on"),
    "enable_elastic_ep": same(True, _EXPERTS),
    "elastic_ep_max_dp_size": same(4, _EXPERTS),
    "enable_dbo": same(True, "computes a batch in two halves"),
    "ubatch_size": same(2, "computes a batch in parts"),
    "dbo_decode_token_threshold": same(1, "computes a batch in two halves"),
    "dbo_prefill_token_threshold": same(1, "computes a batch in two halves"),
    "disable_nccl_for_dp_synchronization": same(False, _REPLICA),
    "ray_workers_use_nsight": same(True, _LAUNCH),
    "ray_runtime_env": same(SimpleNamespace(), _LAUNCH),
    "placement_group": same(SimpleNamespace(), _LAUNCH),
    "distributed_executor_backend": same("ray", _LAUNCH),
    "worker_cls": same("module.Class", "the operator's own; it computes the model it is given"),
    "worker_extension_cls": same("module.Class", "methods that the operator adds"),
    "master_addr": same("127.0.0.2", _LAUNCH),
    "master_port": same(1, _LAUNCH),
    "node_rank": same(1, _LAUNCH),
    "nnodes": same(2, _LAUNCH),
    "numa_bind": same(True, _LAUNCH),
    "numa_bind_nodes": same([0], _LAUNCH),
    "numa_bind_cpus": same(["0"], _LAUNCH),
    "assigned_physical_gpu_ids": same([1], _LAUNCH),
    "distributed_timeout_seconds": same(1, _LAUNCH),
    "cpu_distributed_timeout_seconds": same(1, _LAUNCH),
    "world_size": same(4, "the product of sizes that stand above"),
    "rank": same(1, "ranks name their heads and layers"),
    "_data_parallel_master_port_list": same([1], _LAUNCH),
    "_coord_store_port": same(1, _LAUNCH),
    "dcp_kv_cache_interleave_size": same(32, _SPLIT),
    "dcp_comm_backend": same("a2a", _SPLIT),
    "dcp_q_replicate": same(True, _SPLIT),
    "cp_kv_cache_interleave_size": same(32, _SPLIT),
    "_allow_auto_resolve_cp_interleave_size": same(False, _SPLIT),
    "_api_process_count": same(2, _LAUNCH),
    "_api_process_rank": same(1, _LAUNCH),
    "enable_fault_tolerance": same(True, _REPLICA),
    "fault_tolerance_config": same(SimpleNamespace(), _REPLICA),
}

_ROOM = "how many adapters there is room for"
WITH_ADAPTERS = {"enable_lora": True}

LORA = {
    "max_lora_rank": same(64, _ROOM),
    "max_loras": same(4, _ROOM),
    "fully_sharded_loras": same(True, "how ranks share their work"),
    "max_cpu_loras": same(8, _ROOM),
    "lora_dtype": named("float16"),
    "target_modules": named(["q_proj"]),
    "default_mm_loras": same({"image": "/a"}, "the adapter is the request's, and in its keys"),
    "enable_tower_connector_lora": named(True),
    "specialize_active_lora": same(True, "how kernels are launched"),
    "enable_mixed_moe_lora_format": same(True, "how weights lie in memory"),
    "enable_moe_shared_loras": named(True),
    "max_lora_cls_labels": same(4, _SAMPLING),
}

TABLES = {"model": MODEL, "cache": CACHE, "parallel": PARALLEL, "lora": LORA}
CLASSES = {
    "model": vllm.config.ModelConfig,
    "cache": vllm.config.CacheConfig,
    "parallel": vllm.config.ParallelConfig,
    "lora": vllm.config.LoRAConfig,
}


def kv_cache_config(vllm_config):
    """As a worker finds it in a model without windows."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        get_kv_quant_mode,
    )

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    spec = FullAttentionSpec(
        block_size=vllm_config.cache_config.block_size,
        num_kv_heads=model.get_num_kv_heads(parallel),
        head_size=model.get_head_size(),
        dtype=model.dtype if vllm_config.cache_config.cache_dtype == "auto" else torch.uint8,
        kv_quant_mode=get_kv_quant_mode(vllm_config.cache_config.cache_dtype),
    )
    names = [f"model.layers.{i}.self_attn.attn" for i in range(model.get_total_num_hidden_layers())]
    return KVCacheConfig(0, [], [KVCacheGroupSpec(names, spec)])


def space_of(vllm_config):
    settings = Settings.of(vllm_config.kv_transfer_config.kv_connector_extra_config)
    return model_of(vllm_config, kv_cache_config(vllm_config), settings).spec


@pytest.fixture(scope="module")
def started(vllm_config, make_model):
    """vllm_config of options in which folders are named by what they are."""
    folders = {"configuration": make_model(rms_norm_eps=1e-5), "other": make_model()}
    (folders["other"] / "model.safetensors").write_bytes(b"of another training")

    def start(**options):
        for name in {"model", "hf_config_path"} & options.keys():
            options[name] = str(folders[options[name]])
        return vllm_config(**options)

    return start


def test_equal_options_make_equal_names(vllm_config, make_model, tmp_path):
    one, llama = space_of(vllm_config()), make_model()
    assert one.weights_revision.startswith("bytes:") and one.groups[0].kv_heads == 2
    assert space_of(vllm_config(model=llama)) == one
    shutil.copytree(llama, tmp_path / "small")
    assert space_of(vllm_config(model=tmp_path / "small")) == one  # in another place
    assert space_of(vllm_config(max_model_len=64, max_num_seqs=1, enforce_eager=True)) == one
    assert space_of(vllm_config(hf_overrides={"eos_token_id": 9, "pad_token_id": 9})) == one
    assert space_of(vllm_config(hf_overrides={"rms_norm_eps": 1e-6})) == one  # as the file says
    assert space_of(vllm_config(**WITH_ADAPTERS)) == one


def test_a_worker_gets_the_same_name(vllm_config):
    """In a process of its own it has a copy of the configuration."""
    for options in ({}, WITH_ADAPTERS, {"quantization": "fp8_per_tensor"}, rope(**LONG_ROPE)):
        config = vllm_config(**options)
        assert space_of(cloudpickle.loads(cloudpickle.dumps(config))) == space_of(config)


def test_ways_to_quantize_have_names_of_their_own(vllm_config):
    ways = [None, "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8"]
    assert len({repr(space_of(vllm_config(quantization=way))) for way in ways}) == len(ways)


@pytest.mark.parametrize("part", TABLES)
def test_the_tables_have_every_field(part):
    fields = {one.name for one in dataclasses.fields(CLASSES[part])}
    assert fields == set(TABLES[part]), f"of {CLASSES[part].__name__}"


@pytest.mark.parametrize(
    "part, name", [(part, name) for part, table in TABLES.items() for name in table]
)
def test_fields_are_named_refused_or_of_no_consequence(started, part, name):
    case = TABLES[part][name]
    options = (WITH_ADAPTERS if part == "lora" else {}) | case.options
    plain, changed = started(**options), started(**options | case.changed)
    for config in (plain, changed):
        for other, value in case.before.items():
            setattr(getattr(config, f"{part}_config"), other, value)
    if not case.changed:
        holder = getattr(changed, f"{part}_config")
        assert getattr(holder, name) != case.value, "the table changes nothing"
        setattr(holder, name, case.value)
    if case.kind == "refused":
        with pytest.raises(InvalidArgumentError, match=case.why):
            space_of(changed)
    elif case.kind == "named":
        assert space_of(changed) != space_of(plain)
    else:
        assert space_of(changed) == space_of(plain), case.why


def rope(**parameters):
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    return {"hf_overrides": {"rope_parameters": plain | parameters}}


def test_rotations_have_names_of_their_own(vllm_config):
    scaled = {"original_max_position_embeddings": 1024}
    llama3 = scaled | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    told = [
        {},
        rope(rope_theta=1e6),
        rope(rope_type="linear", factor=2.0),
        rope(rope_type="linear", factor=4.0),
        rope(rope_type="dynamic", factor=2.0),
        rope(rope_type="dynamic", factor=4.0),
        rope(rope_type="yarn", factor=2.0, **scaled),
        rope(rope_type="yarn", factor=4.0, **scaled),
        rope(rope_type="llama3", factor=8.0, **llama3),
        rope(**LONG_ROPE) | {"max_model_len": 1024},
        rope(**LONG_ROPE) | {"max_model_len": 4096},
        {"hf_overrides": {"num_experts_per_tok": 8}},
        {"hf_overrides": {"num_experts_per_tok": 4}},
        {"hf_overrides": lambda config: config.update({"logit_scale": 2.0}) or config},
    ]
    names = [space_of(vllm_config(**options)) for options in told]
    assert len({repr(name) for name in names}) == len(told)
    for options in told[1:9]:  # K turns alike at whatever length
        short = space_of(vllm_config(**options | {"max_model_len": 512}))
        assert short == names[told.index(options)]


def test_every_rotation_of_vllm_s_is_known():
    source = inspect.getsource(rotary_embedding.get_rope)
    tests = re.findall(r"scaling_type (?:==|in) (\[[^]]*\]|\"\w+\")", source)
    found = {kind for test in tests for kind in re.findall(r"\w+", test)}
    assert found - {"longrope"} <= resolved._ROPES_OF_ANY_LENGTH and "longrope" in found
    folder = pathlib.Path(rotary_embedding.__file__).parent
    reads = [path.stem for path in folder.glob("*.py") if "max_model_len" in path.read_text()]
    assert reads == ["phi3_long_rope_scaled_rope"], "a rotation that depends on the length"


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotations_that_transformers_changes_from_step_to_step_are_refused(vllm_config, rope_type):
    parameters = {"longrope": LONG_ROPE, "dynamic": {"rope_type": "dynamic", "factor": 2.0}}
    config = vllm_config(model_impl="transformers", **rope(**parameters[rope_type]))
    with pytest.raises(InvalidArgumentError, match=f"rope type '{rope_type}'"):
        space_of(config)


def test_llama_4_is_tuned_by_options_of_generation(vllm_config):
    config = vllm_config()
    config.model_config.hf_text_config.model_type = "llama4_text"
    names = []
    for length, options in ((32768, {}), (65536, {}), (32768, {"attn_temperature_tuning": True})):
        config.model_config.max_model_len = length
        config.model_config.override_generation_config = options
        names.append(space_of(config))
    assert names[0] != names[1] == names[2]


def test_weights_that_are_made_up_or_lie_elsewhere_have_another_name(vllm_config):
    plain = space_of(vllm_config())
    known = get_args(LoadFormats)
    for load_format in known:
        config = vllm_config()
        config.load_config.load_format = load_format
        assert (space_of(config) == plain) == (load_format in resolved._FORMATS_OF_THE_FILES)
    other = {"dummy", "ipc_cache", "modelexpress", "runai_streamer_sharded", "sharded_state"}
    assert set(known) - resolved._FORMATS_OF_THE_FILES == other | {"tensorizer"}


def test_what_media_become_is_in_the_name(vllm_config):
    told = {
        "media_io_kwargs": {"video": {"num_frames": 4}},
        "mm_processor_kwargs": {"num_crops": 4},
        "mm_encoder_attn_dtype": "fp8",
        "mm_encoder_fp8_scale_path": "/scales",
        "video_pruning_rate": 0.5,
        "video_pruning_method": "vidcom2",
    }
    fields = {one.name for one in dataclasses.fields(multimodal.MultiModalConfig)}
    assert fields == resolved._MEDIA_LEFT_OUT | set(told)
    config = vllm_config()
    config.model_config.multimodal_config = multimodal.MultiModalConfig()
    names = {repr(space_of(config))}
    for name, value in told.items():
        config.model_config.multimodal_config = media = multimodal.MultiModalConfig()
        setattr(media, name, value)
        names.add(repr(space_of(config)))
    assert len(names) == 1 + len(told)


def test_drafts_that_are_not_known_are_refused(vllm_config):
    config = vllm_config()
    plain = space_of(config)
    for method in get_args(speculative.SpeculativeMethod):
        drafts = object.__new__(speculative.SpeculativeConfig)
        drafts.method = method
        config.speculative_config = drafts
        if method in drafts_of.WITHOUT_KV:
            assert not drafts.uses_draft_kv_cache() and space_of(config) == plain
        else:
            is_moved = method in drafts_of.MOVED
            assert drafts.uses_draft_kv_cache() or not is_moved
            says = "does not find the draft's layers" if is_moved else f"method '{method}' is not supp"
            with pytest.raises(InvalidArgumentError, match=says):
                space_of(config)
    assert drafts_of.MOVED <= set(get_args(speculative.SpeculativeMethod)) | {"mtp"}
    assert drafts_of.WITHOUT_KV <= set(get_args(speculative.SpeculativeMethod))


def test_models_that_compute_with_special_tokens_are_known():
    """Elsewhere their ids are left out of the name."""
    folder = pathlib.Path(vllm.__file__).parent
    files = [*(folder / "models").rglob("*.py"), *(folder / "model_executor").rglob("*.py")]
    reads = re.compile(r"config\.(bos|eos|pad)_token_id|\"(bos|eos|pad)_token_id\"")
    found = {path.relative_to(folder) for path in files if reads.search(path.read_text())}
    readers = {  # by the start of the model's name in vLLM's files
        "longcat_flash_ngram": "longcat_flash",
        "qwen4_exp": "qwen4_exp",
        "moondream3": "moondream3",
        "funaudiochat": "funaudiochat",
        "dots3_note": "dots3_note",
        "roberta": "positions of an encoder, which keeps no KV",
        "whisper": "likewise; its decoder's attention to the encoder is refused",
        "glm4v": "the place of an image, which is in the keys",
        "kanana_v": "likewise",
        "moss_audio": "copies them from one configuration to another",
        "legacy": "positions of encoders, with Transformers' own layers",
    }
    names = {next((name for name in readers if name in str(path)), str(path)) for path in found}
    assert names == set(readers)
    assert set(identity.READS_SPECIAL_TOKENS) <= set(readers.values())


def test_what_states_are_made_of_is_in_the_name(vllm_config):
    import torch
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MambaSpec

    def space(config=None, **changed):
        config = config or vllm_config(extra={"tokens_per_block": 32})
        kv = kv_cache_config(config)
        fields = {"shapes": ((3, 8), (16,)), "dtypes": (torch.bfloat16, torch.float32)}
        fields |= {"mamba_cache_mode": "align", "block_size": 32}
        spec = MambaSpec(**fields | changed)
        kv.kv_cache_groups.append(KVCacheGroupSpec(["model.layers.0.mixer"], spec))
        settings = Settings(**config.kv_transfer_config.kv_connector_extra_config)
        return model_of(config, kv, settings).spec

    assert space() == space(page_size_padded=4096)
    assert space() != space(shapes=((8, 3), (16,)))
    assert space() != space(dtypes=(torch.bfloat16, torch.int32))
    rounded = vllm_config(extra={"tokens_per_block": 32})
    rounded.mamba_config.enable_stochastic_rounding = True
    assert space(rounded) != space()
    with pytest.raises(InvalidArgumentError, match="a group of KV is MambaSpec: with mamba_cache_mode"):
        space(mamba_cache_mode="none")
