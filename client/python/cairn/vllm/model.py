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
from ..keys import Group, KvGroup, Rope, SpaceSpec, dtype_of
from ..transfer import Part
from . import resolved
from .plan import Geometry
from .revision import revision_of
from .settings import Settings

_COMMIT = re.compile("[0-9a-f]{40}")
_FULL_ATTENTION, _WINDOW = "FullAttentionSpec", "SlidingWindowSpec"


@dataclass(frozen=True)
class Model:
    """Its groups are vLLM's, in vLLM's order: layers that share a table of blocks."""

    spec: SpaceSpec
    geometry: Geometry
    heads: tuple[int, ...]  # of K and V that a worker has, of each group
    dims: tuple[int, ...]

    @property
    def is_all_or_nothing(self) -> bool:
        """Whether a load that failed in part is of no use: a shorter prefix has windows elsewhere,
        and of several groups' blocks a number does not say whose it is."""
        return len(self.spec.groups) > 1 or self.spec.groups[0].window_tokens > 0


def model_of(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> Model:
    resolved.check(vllm_config)
    groups = kv_cache_config.kv_cache_groups
    specs = [_attention_of(group) for group in groups]
    if len(groups) > 1:
        _check_groups(vllm_config, specs)
    attention = specs[0]
    engine_tokens = attention.block_size
    store_tokens = settings.tokens_per_block
    if store_tokens % engine_tokens or not 16 <= store_tokens <= 1024:
        raise InvalidArgumentError(
            f"kv_connector_extra_config: tokens_per_block is {store_tokens}, expected a multiple of"
            f" the engine's block size {engine_tokens}, from 16 to 1024"
        )
    model = vllm_config.model_config
    spec = SpaceSpec(
        settings.model or _name_of(model.model),
        _revision_of(vllm_config, settings),
        tuple(_group_of(vllm_config, group, len(groups) == 1) for group in groups),
        _dtype_of(attention),
        store_tokens,
    )
    return Model(
        spec,
        Geometry(engine_tokens, store_tokens),
        tuple(one.num_kv_heads for one in specs),
        tuple(one.head_size for one in specs),
    )


def _check_groups(vllm_config: Any, specs: Sequence[Any]) -> None:
    parallel, reason = vllm_config.parallel_config, ""
    if getattr(parallel, "pipeline_parallel_size", 1) > 1:
        reason = "a stage of a pipeline does not know the layers of the others"
    for what in ("block_size", "dtype"):
        found = {str(getattr(spec, what)) for spec in specs}
        if len(found) > 1:
            reason = f"they differ in {what}: {', '.join(sorted(found))}"
    heads = {spec.num_kv_heads for spec in specs}
    if len(heads) > 1 and parallel.tensor_parallel_size > 1:
        reason = f"they have {sorted(heads)} heads a rank, of {parallel.tensor_parallel_size} ranks"
    if reason:
        raise InvalidArgumentError(
            f"the model has {len(specs)} groups of KV, and {reason}: start vLLM with"
            " --disable-hybrid-kv-cache-manager"
        )


def _group_of(vllm_config: Any, group: Any, is_only: bool) -> Group:
    model, spec = vllm_config.model_config, group.kv_cache_spec
    window = 0
    if type(spec).__name__ == _WINDOW:
        window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
    layers: int | Sequence[int] = sorted(layer_index(name) for name in group.layer_names)
    heads = model.get_total_num_kv_heads()
    if is_only:  # a stage of a pipeline names its own layers only
        layers = model.get_total_num_hidden_layers()
    elif vllm_config.parallel_config.tensor_parallel_size == 1:
        heads = spec.num_kv_heads
    return KvGroup(
        layers=layers,
        kv_heads=heads,
        dim=spec.head_size,
        window_tokens=window,
        rope=rope_of(model.hf_text_config, spec.head_size, bool(window)),
    )


def part_of(
    layer_names: Sequence[str], model: Model, tensor_rank: int, ranks: int, group: int = 0
) -> Part:
    """The layers of a group that a worker has, in the order of `layer_names`, and the heads."""
    known = model.spec.groups[group].layer_indices
    found = [layer_index(name) for name in layer_names]
    layers = [known.index(layer) if layer in known else len(known) for layer in found]
    total, heads = model.spec.groups[group].kv_heads, model.heads[group]
    # Where there are fewer heads than ranks, some ranks have the same one.
    first = tensor_rank * heads if total >= ranks else tensor_rank * total // ranks
    part_heads = range(first, first + heads)
    if part_heads.stop > total or len(known) in layers:
        raise InvalidArgumentError(
            f"rank {tensor_rank} has heads {part_heads} and layers {found}; the group has {total}"
            f" heads and layers {list(known)}"
        )
    if layers != list(range(layers[0], layers[0] + len(layers))):
        raise InvalidArgumentError(f"the layers are {found}, expected consecutive ones of {known}")
    return Part(range(layers[0], layers[-1] + 1), part_heads, group)


def layer_index(name: str) -> int:
    """The only number in a layer's name, as in model.layers.7.self_attn.attn."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if len(numbers) != 1:
        raise InvalidArgumentError(f"the layer {name} is of no known place in the model")
    return int(numbers[0])


def rope_of(config: Any, dim: int, is_window: bool = False) -> Rope:
    """How K turns, where that is the plain way; else unknown, which costs some recipes bytes."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    base = getattr(config, "rope_theta", None)
    kind_of_layer = "sliding_attention" if is_window else "full_attention"
    if isinstance(given.get(kind_of_layer), dict):
        given = given[kind_of_layer]
    elif is_window and getattr(config, "rope_local_base_freq", None):  # then they are not scaled
        given, base = {}, config.rope_local_base_freq
    kind = given.get("rope_type", given.get("type", "default"))
    base = given.get("rope_theta", base)
    share = given.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    if kind != "default" or not base:
        return Rope()
    return Rope("half", int(dim * (share or 1.0)), float(base))


def _attention_of(group: Any) -> Any:
    spec = group.kv_cache_spec
    if type(spec).__name__ not in (_FULL_ATTENTION, _WINDOW):
        raise InvalidArgumentError(
            f"a group of KV is {type(spec).__name__}; this connector moves {_FULL_ATTENTION} and"
            f" {_WINDOW}"
        )
    if getattr(spec, "head_size_v", spec.head_size) != spec.head_size:
        raise InvalidArgumentError(
            f"K has {spec.head_size} channels, V {spec.head_size_v}: not handled"
        )
    return spec


def _dtype_of(attention: Any) -> str:
    dtype = dtype_of(attention.dtype)
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
    """Which weights, and what vLLM made of their configuration."""
    model = vllm_config.model_config
    weights = settings.weights_revision or _weights_of(model)
    if weights is None:
        raise InvalidArgumentError(
            f"which weights {model.model} has is not known: name their revision as"
            " weights_revision in kv_connector_extra_config"
        )
    quantization = getattr(model, "quantization", None)
    parts = [weights, quantization, f"config {resolved.digest_of(vllm_config)}"]
    return ", ".join(part for part in parts if part)


def _weights_of(model: Any) -> str | None:
    """None: nothing says it. What --hf-config-path names has its own commit, and of an object store
    only the configuration is in a folder."""
    if getattr(model, "model_weights", ""):
        return None
    if os.path.isdir(model.model):
        return revision_of(model.model)
    commit = None
    if not getattr(model, "hf_config_path", None):
        commit = getattr(model.hf_config, "_commit_hash", None)
    if commit is None and _COMMIT.fullmatch(getattr(model, "revision", None) or ""):
        commit = model.revision
    return commit and f"commit:{commit}"
