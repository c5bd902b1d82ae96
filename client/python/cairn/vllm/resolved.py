# SPDX-License-Identifier: Apache-2.0
"""Finds the resolved options of vLLM that K and V depend on. They are named in the space, or
refused.

tests/connectors/test_vllm_names.py visits every field of vLLM's configuration. Uses vLLM's objects,
but imports nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import identity
from ..errors import InvalidArgumentError
from . import drafts

# With these, ranks have other layers or heads of the same tokens, or an engine has its own KV.
_KNOWN_SPLITS = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}

# Rotations for which vLLM's layers read only the configuration. longrope takes its factors from
# --max-model-len. Kinds that are not listed here were not examined.
_ROPES_OF_ANY_LENGTH = {
    "default",
    "linear",
    "ntk",
    "dynamic",  # depends on max_position_embeddings
    "llama3",
    "yarn",
    "deepseek_yarn",
    "deepseek_llama_scaling",
    "proportional",
    "mllama4",
    "bailing_mrope",
    "openpangu",
}
# Rotations that Transformers' layers change depending on the longest sequence computed.
_ROPES_OF_A_STEP = {"dynamic", "longrope", "su"}

# Ways to read the same files. Other values read other weights, or generate some.
_FORMATS_OF_THE_FILES = {
    "auto",
    "hf",
    "pt",
    "safetensors",
    "fastsafetensors",
    "instanttensor",
    "npcache",
    "mistral",
    "runai_streamer",
}

# Fields about media that change no embedding, or that are in the tokens.
_MEDIA_LEFT_OUT = {
    "language_model_only",  # the model has no media
    "limit_per_prompt",
    "enable_mm_embeds",  # these media have a hash of their own
    "mm_device_do_normalize",  # the same computation in another place
    "mm_processor_cache_gb",
    "mm_processor_cache_type",
    "mm_hasher_algorithm",  # its hashes are in the keys
    "mm_shm_cache_max_object_size_mb",
    "mm_encoder_only",  # there is no KV in that case
    "mm_encoder_tp_mode",
    "mm_encoder_attn_backend",
    "mm_encoder_fp8_scale_save_path",
    "mm_encoder_fp8_scale_save_margin",
    "interleave_mm_strings",  # changes the tokens
    "skip_mm_profiling",
    "mm_tensor_ipc",
    "allow_missing_mm_embeddings",
    "mm_ipc_gpu_memory_gb",
}
# Fields of adapters that change no value of KV.
_ADAPTERS_LEFT_OUT = {
    "max_lora_rank",
    "max_loras",
    "fully_sharded_loras",
    "max_cpu_loras",
    "default_mm_loras",  # the adapter belongs to the request, and is in its keys
    "specialize_active_lora",
    "enable_mixed_moe_lora_format",
    "max_lora_cls_labels",
}


def check(vllm_config: Any) -> None:
    """Raises InvalidArgumentError, which names the option, if KV is split or computed in an
    unsupported way."""
    parallel = vllm_config.parallel_config
    for name, count in vars(parallel).items():
        is_split = name.endswith("_parallel_size") and name not in _KNOWN_SPLITS
        if is_split and isinstance(count, int) and count > 1:
            raise InvalidArgumentError(
                f"{name} is {count}: such ranks split the tokens of a block between them, and this"
                f" connector takes a rank's blocks as whole: start vLLM with {name} 1, or without"
                " this connector"
            )
    drafts.check(vllm_config)
    model = vllm_config.model_config
    turns = _ropes_of_a_step(model)
    if turns:
        raise InvalidArgumentError(
            f"K turns as rope type {turns!r} says, and vLLM's Transformers backend takes that by"
            " the longest sequence it computes with: blocks have no KV of their own. Start vLLM with"
            " --model-impl vllm, or without this connector"
        )


def digest_of(vllm_config: Any) -> str:
    """Returns a digest of everything that K and V depend on besides the weights, the geometry and
    the content of keys."""
    model = vllm_config.model_config
    configurations = [model.hf_config]
    if model.hf_text_config is not model.hf_config:
        configurations.append(model.hf_text_config)
    return identity.digest(*configurations, **dict(_beside(vllm_config)))


def _beside(vllm_config: Any) -> Iterator[tuple[str, Any]]:
    """Returns vLLM's options that the model's configuration does not contain. Default values are
    omitted, so that a release with a new option still names the same spaces."""
    model = vllm_config.model_config
    yield "dtype", str(model.dtype)
    yield "architecture", getattr(model, "architecture", None)
    for name in (
        "quantization",
        "quantization_config",
        "code_revision",
        "trust_remote_code",
        "model_class_overrides",
        "runner_type",
        "convert_type",
    ):
        value = getattr(model, name, None)
        if value:
            yield name, value
    if _length_matters(model):
        yield "max_model_len", model.max_model_len
    if _is_tuned_by_length(model):
        yield "attn_temperature_tuning", _temperature_tuning(model)
    if getattr(getattr(vllm_config, "attention_config", None), "use_non_causal", False):
        yield "use_non_causal", True
    load = getattr(vllm_config, "load_config", None)
    if load is not None and load.load_format not in _FORMATS_OF_THE_FILES:
        yield "load_format", load.load_format
        yield "model_loader_extra_config", load.model_loader_extra_config
    yield from _told(getattr(model, "multimodal_config", None), "media", _MEDIA_LEFT_OUT)
    yield from _told(
        getattr(vllm_config, "lora_config", None), "adapters", _ADAPTERS_LEFT_OUT, model.dtype
    )


def _told(
    options: Any, name: str, left_out: set[str], plain: Any = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Returns the values in `options` that are neither omitted nor default."""
    told = {
        option: value
        for option, value in ({} if options is None else vars(options)).items()
        if option not in left_out and value and str(value) != str(plain)
    }
    if told:
        yield name, told


def rope_types(configuration: Any) -> set[str]:
    """Returns the kinds of RoPE of all layers, from the fields of a configuration."""
    to_dict = getattr(configuration, "to_dict", None)
    fields = to_dict() if callable(to_dict) else vars(configuration)
    return set(_rope_types(fields, False))


def _rope_types(value: Any, is_rope: bool) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    for name, field in value.items():
        if is_rope and name in ("rope_type", "type") and isinstance(field, str):
            yield field
        yield from _rope_types(field, is_rope or name in ("rope_parameters", "rope_scaling"))


def _ropes_of(model: Any) -> set[str]:
    return rope_types(model.hf_config) | rope_types(model.hf_text_config)


def _length_matters(model: Any) -> bool:
    return not _ropes_of(model) <= _ROPES_OF_ANY_LENGTH


def _ropes_of_a_step(model: Any) -> str:
    """Returns the first of those rotations, if Transformers' own layers compute the model."""
    if not str(getattr(model, "architecture", "")).startswith("Transformers"):
        return ""
    return next(iter(sorted(_ropes_of(model) & _ROPES_OF_A_STEP)), "")


def _is_tuned_by_length(model: Any) -> bool:
    return "llama4" in str(getattr(model.hf_text_config, "model_type", ""))


def _temperature_tuning(model: Any) -> Any:
    """Llama 4 scales queries by position if the generation options say so, or if the length exceeds
    32,768. vLLM writes this only into the configuration of its workers."""
    options = model.try_get_generation_config() | model.override_generation_config
    return bool(options.get("attn_temperature_tuning", model.max_model_len > 32768))
