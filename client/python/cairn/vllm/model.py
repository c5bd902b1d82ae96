# SPDX-License-Identifier: Apache-2.0
"""What vLLM's configuration says of a model: the space of its blocks, and a rank's part of them.

Takes vLLM's objects, and imports nothing of it. What this connector does not move is refused by
name when the engine starts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from ..keys import KvGroup, Rope, SpaceSpec
from ..transfer import Part
from .plan import Geometry
from .revision import revision_of
from .settings import Settings

_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
_FULL_ATTENTION = "FullAttentionSpec"


@dataclass(frozen=True)
class Model:
    spec: SpaceSpec
    geometry: Geometry
    heads: int  # of K and V that a worker has
    dim: int


def model_of(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> Model:
    attention = _attention_of(kv_cache_config)
    model = vllm_config.model_config
    engine_tokens = attention.block_size
    store_tokens = settings.tokens_per_block
    if store_tokens % engine_tokens or not 16 <= store_tokens <= 1024:
        raise InvalidArgumentError(
            f"kv_connector_extra_config: tokens_per_block is {store_tokens}, expected a multiple of"
            f" the engine's block size {engine_tokens}, from 16 to 1024"
        )
    dim = attention.head_size
    if getattr(attention, "head_size_v", dim) != dim:
        raise InvalidArgumentError(f"K has {dim} channels, V {attention.head_size_v}: not handled")
    group = KvGroup(
        layers=model.get_total_num_hidden_layers(),
        kv_heads=model.get_total_num_kv_heads(),
        dim=dim,
        rope=rope_of(model.hf_text_config, dim),
    )
    spec = SpaceSpec(
        settings.model or _name_of(model.model),
        _revision_of(vllm_config, settings),
        (group,),
        _dtype_of(attention),
        store_tokens,
    )
    return Model(spec, Geometry(engine_tokens, store_tokens), attention.num_kv_heads, dim)


def part_of(layer_names: Sequence[str], model: Model, tensor_rank: int, ranks: int) -> Part:
    """The layers that a worker has, in the order of `layer_names`, and the heads."""
    layers = [layer_index(name) for name in layer_names]
    if layers != list(range(layers[0], layers[0] + len(layers))):
        raise InvalidArgumentError(f"the layers are {layers}, expected consecutive ones")
    total = model.spec.groups[0].kv_heads
    # Where there are fewer heads than ranks, some ranks have the same one.
    first = tensor_rank * model.heads if total >= ranks else tensor_rank * total // ranks
    part_heads = range(first, first + model.heads)
    if part_heads.stop > total or layers[-1] >= len(model.spec.groups[0].layer_indices):
        raise InvalidArgumentError(
            f"rank {tensor_rank} has heads {part_heads} and layers to {layers[-1]}; the model has"
            f" {total} heads and {len(model.spec.groups[0].layer_indices)} layers"
        )
    return Part(range(layers[0], layers[-1] + 1), part_heads)


def layer_index(name: str) -> int:
    """The only number in a layer's name, as in model.layers.7.self_attn.attn."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if len(numbers) != 1:
        raise InvalidArgumentError(f"the layer {name} is of no known place in the model")
    return int(numbers[0])


def rope_of(config: Any, dim: int) -> Rope:
    """How K turns, where that is the plain way; else unknown, which costs some recipes bytes."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = given.get("rope_type", given.get("type", "default"))
    base = given.get("rope_theta", getattr(config, "rope_theta", None))
    share = given.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    if kind != "default" or not base:
        return Rope()
    return Rope("half", int(dim * (share or 1.0)), float(base))


def _attention_of(kv_cache_config: Any) -> Any:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise InvalidArgumentError(
            f"the model has {len(groups)} groups of KV; this connector moves one: start vLLM with"
            " --disable-hybrid-kv-cache-manager"
        )
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != _FULL_ATTENTION:
        raise InvalidArgumentError(
            f"the KV cache is {type(spec).__name__}; this connector moves {_FULL_ATTENTION}"
        )
    return spec


def _dtype_of(attention: Any) -> str:
    dtype = _DTYPES.get(str(attention.dtype))
    if dtype is None:
        raise InvalidArgumentError(
            f"the KV cache has {attention.dtype}; this connector moves bf16, fp16 and fp32: start"
            " vLLM with --kv-cache-dtype auto"
        )
    return dtype


def _name_of(model: str) -> str:
    """Of a folder, its last part: machines keep their models in different places."""
    return os.path.basename(os.path.abspath(model)) if os.path.isdir(model) else model


def _revision_of(vllm_config: Any, settings: Settings) -> str:
    model = vllm_config.model_config
    revision = settings.weights_revision
    if revision is None and os.path.isdir(model.model):
        revision = revision_of(model.model)
    if revision is None:
        commit = getattr(model.hf_config, "_commit_hash", None)
        if commit is None:
            raise InvalidArgumentError(
                f"which weights {model.model} has is not known: name their revision as"
                " weights_revision in kv_connector_extra_config"
            )
        revision = f"commit:{commit}"
    quantization = getattr(model, "quantization", None)
    return f"{revision}, {quantization}" if quantization else revision
