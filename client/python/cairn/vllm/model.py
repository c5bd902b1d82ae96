# SPDX-License-Identifier: Apache-2.0
"""Derives from vLLM's configuration the space of a model's blocks, and a rank's part of them.

Uses vLLM's objects, but imports nothing of vLLM. Unsupported models are refused by name when the
engine starts.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InvalidArgumentError
from ..keys import Group, KvGroup, Rope, SpaceSpec
from ..transfer import Part
from . import drafts, resolved
from .kinds import Layers, Shape, layers_of
from .layout import coded_order
from .plan import Geometry, GroupTable
from .revision import revision_of
from .settings import Settings

_COMMIT = re.compile("[0-9a-f]{40}")
TOKENS_PER_BLOCK = 128  # default for the store, unless there are states
STORE_TOKENS_MAX = 1024


@dataclass(frozen=True)
class Model:
    """layers: for each group of the space, in order, a worker's layers. bytes_name: names the order
    of the data that is moved as bytes; it is part of the revision in `spec`."""

    spec: SpaceSpec
    geometry: Geometry
    layers: tuple[Layers, ...]
    bytes_name: str = ""
    is_draft_guess: bool = False  # result of `drafts.is_guess`

    def with_revision_of(self, other: Model) -> Model:
        """Returns this model with the revision of `other`, except for bytes_name."""
        revision = other.spec.weights_revision.removesuffix(other.bytes_name) + self.bytes_name
        return replace(self, spec=replace(self.spec, weights_revision=revision))

    @functools.cached_property
    def groups_name(self) -> bytes:
        """Returns a digest of the groups. A scheduler sends it with each step instead of the
        groups."""
        return hashlib.sha256(repr(self.spec.groups).encode()).digest()[:8]

    def of_weights(self, vllm_config: Any, settings: Settings) -> Model:
        """Returns the same model with the weights that the settings name."""
        revision = _revision_of(vllm_config, settings) + self.bytes_name
        return replace(self, spec=replace(self.spec, weights_revision=revision))

    @property
    def is_guess(self) -> bool:
        """Returns whether one shape stands for layers of several shapes. If layers share a table of
        blocks, vLLM tells its scheduler only the first shape. Then two of their names have the same
        number."""
        names = (one.names for one in self.layers)
        is_shared = any(len(set(map(layer_index, of))) < len(of) for of in names)
        return is_shared or self.is_draft_guess

    @property
    def is_all_or_nothing(self) -> bool:
        """Returns whether a partly failed load is useless. A shorter prefix needs other windows and
        states. With several groups, a failed block's number does not tell its group."""
        first = self.layers[0].shape
        return len(self.layers) > 1 or first.window > 0 or first.is_state

    @property
    def has_kv_alone(self) -> bool:
        """Returns whether all groups are K and V of the model itself, not of a draft."""
        return all(one.shape.kind == "kv" and not one.is_draft for one in self.layers)


def model_of(vllm_config: Any, kv_cache_config: Any, settings: Settings) -> Model:
    resolved.check(vllm_config)
    layers = layers_of(kv_cache_config.kv_cache_groups, vllm_config.cache_config.cache_dtype)
    if not layers:
        raise InvalidArgumentError("the model has no KV cache: start vLLM without this connector")
    layers = drafts.apart(vllm_config, layers)
    _check_groups(vllm_config, layers)
    geometry = _geometry_of(layers, settings)
    geometry = replace(geometry, lag=drafts.lag_of(vllm_config, geometry.engine_tokens))
    bytes_name = _bytes_name_of(vllm_config, layers, layout_of(vllm_config, kv_cache_config))
    model = vllm_config.model_config
    spec = SpaceSpec(
        settings.model or _name_of(model.model),
        _revision_of(vllm_config, settings) + bytes_name,
        tuple(_group_of(vllm_config, one, layers) for one in layers),
        next((one.shape.dtype for one in layers if one.shape.dtype), None) or model.dtype,
        geometry.store_tokens,
    )
    is_guess = drafts.is_guess(vllm_config, layers)
    return Model(spec, geometry, tuple(layers), bytes_name, is_guess)


def _geometry_of(layers: Sequence[Layers], settings: Settings) -> Geometry:
    """Store blocks are multiples of all engine blocks. If the model has states, a store block is
    one engine block, because each state belongs to the end of an engine block."""
    engine_tokens = math.lcm(*(one.block_tokens for one in layers))
    has_states = any(one.shape.is_state for one in layers)
    if engine_tokens > STORE_TOKENS_MAX:
        raise InvalidArgumentError(
            f"vLLM's blocks have {engine_tokens} tokens, and a block of the store at most"
            f" {STORE_TOKENS_MAX}: start vLLM with smaller ones if the model's states fit into them,"
            " or without this connector"
        )
    store_tokens = settings.tokens_per_block or (engine_tokens if has_states else TOKENS_PER_BLOCK)
    expected = f"a multiple of the engine's block size {engine_tokens}"
    if has_states:
        expected = f"the engine's block size {engine_tokens}, as it keeps states at their ends"
    is_right = store_tokens == engine_tokens if has_states else store_tokens % engine_tokens == 0
    if not is_right or not 16 <= store_tokens <= STORE_TOKENS_MAX:
        raise InvalidArgumentError(
            f"kv_connector_extra_config: tokens_per_block is {store_tokens}, expected {expected},"
            " from 16 to 1024"
        )
    groups = (GroupTable(one.table, one.block_tokens, one.shape.is_state) for one in layers)
    return Geometry(engine_tokens, store_tokens, tuple(groups))


def _check_groups(vllm_config: Any, layers: Sequence[Layers]) -> None:
    parallel, reason = vllm_config.parallel_config, ""
    dtypes = {one.shape.dtype for one in layers if one.shape.dtype}
    if len(layers) > 1 and getattr(parallel, "pipeline_parallel_size", 1) > 1:
        reason = "a stage of a pipeline does not know the layers of the others"
    if len(dtypes) > 1:
        reason = f"they differ in dtype: {', '.join(sorted(dtypes))}"
    if reason:
        raise InvalidArgumentError(
            f"the model has {len(layers)} groups of KV, and {reason}: start vLLM with"
            " --disable-hybrid-kv-cache-manager, if it can do without, or without this connector"
        )


def _group_of(vllm_config: Any, layers: Layers, every: Sequence[Layers]) -> Group:
    model, shape, is_only = vllm_config.model_config, layers.shape, len(every) == 1
    if layers.is_draft:
        model = vllm_config.speculative_config.draft_model_config
    indices: int | Sequence[int] = sorted({layer_index(name) for name in layers.names})
    if is_only:  # a stage of a pipeline names only its own layers
        indices = model.get_total_num_hidden_layers()
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if shape.kind == "state":
        return Group("state", _of_ranks(indices, shape, ranks), state_bytes=shape.bytes)
    if shape.kind == "opaque_rows":
        own = _of_ranks(indices, shape, ranks)
        return Group("opaque_rows", own, row_bytes=shape.bytes, window_tokens=shape.window)
    if shape.kind == "latent":
        window = shape.window
        return Group("latent", indices, kv_heads=1, k_dim=shape.dim, window_tokens=window)
    return KvGroup(
        layers=indices,
        kv_heads=_heads_of(model, layers, every, ranks),
        dim=shape.dim,
        v_dim=shape.v_dim,
        window_tokens=shape.window,
        rope=rope_of(model.hf_text_config, shape.dim, bool(shape.window)),
    )


def _heads_of(model: Any, layers: Layers, every: Sequence[Layers], ranks: int) -> int:
    """Returns the number of KV heads of a group, all ranks together. If each rank has one head, several
    ranks may have the same one. vLLM tells the number of heads of one kind of layer only. So if the
    model has several numbers, the head of each rank counts as one of its own."""
    heads, total = layers.shape.heads, int(model.get_total_num_kv_heads())
    of_ranks = {one.shape.heads for one in every if one.shape.kind == "kv" and not one.is_draft}
    is_alike = len(of_ranks) <= 1 and len(_head_counts(model.hf_text_config)) <= 1
    if heads == 1 and ranks > 1:
        return min(total, ranks) if is_alike else ranks
    return total if len(every) == 1 else heads * ranks


def _head_counts(config: Any) -> set[int]:
    """Returns all numbers of KV heads in a model's configuration: num_key_value_heads, and those of
    other layers, such as swa_num_key_value_heads and num_global_key_value_heads."""
    to_dict = getattr(config, "to_dict", None)
    fields = to_dict() if callable(to_dict) else vars(config)
    found: set[int] = set()
    for name, value in fields.items():
        if re.search("(key_value|kv)_heads", name):
            values = value if isinstance(value, (list, tuple)) else [value]
            found |= {one for one in values if isinstance(one, int)}
    return found


def _of_ranks(
    indices: int | Sequence[int], shape: Shape, ranks: int
) -> int | Sequence[int]:
    """If each rank has a part of a layer's state or of its coded rows, each part is a layer of the
    group. The parts of the first rank have the layers' numbers, and those of the other ranks follow.
    """
    if shape.is_replicated or ranks == 1:
        return indices
    own = range(indices) if isinstance(indices, int) else indices
    step = own[-1] + 1
    return [rank * step + index for rank in range(ranks) for index in own]


def part_of(
    layer_names: Sequence[str], model: Model, tensor_rank: int, ranks: int, group: int = 0
) -> Part:
    """Returns a worker's layers of a group, in the order of `layer_names`, and its heads."""
    known, shape = model.spec.groups[group].layer_indices, model.layers[group].shape
    before = 0  # layers of the group that belong to earlier ranks
    if shape.is_bytes and not shape.is_replicated:
        known = known[: len(known) // ranks]
        before = tensor_rank * len(known)
    found = [layer_index(name) for name in layer_names]
    layers = [known.index(layer) if layer in known else len(known) for layer in found]
    total, heads = model.spec.groups[group].kv_heads, shape.heads
    if shape.kind != "kv":  # all ranks have the same data, or layers of their own
        total, tensor_rank, ranks = 1, 0, 1
    # If there are fewer heads than ranks, several ranks have the same head.
    first = tensor_rank * heads if total >= ranks else tensor_rank * total // ranks
    part_heads = range(first, first + heads)
    if part_heads.stop > total or len(known) in layers:
        raise InvalidArgumentError(
            f"rank {tensor_rank} has heads {part_heads} and layers {found}; the group has {total}"
            f" heads and layers {list(known)}"
        )
    if layers != list(range(layers[0], layers[0] + len(layers))):
        raise InvalidArgumentError(f"the layers are {found}, expected consecutive ones of {known}")
    return Part(range(before + layers[0], before + layers[-1] + 1), part_heads, group)


def layer_index(name: str) -> int:
    """Returns the only number in a layer's name, for example in model.layers.7.self_attn.attn."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if len(numbers) != 1:
        raise InvalidArgumentError(f"the layer {name} does not say its place in the model")
    return int(numbers[0])


def rope_of(config: Any, dim: int, is_window: bool = False) -> Rope:
    """Returns the RoPE of K in its plain form. Other forms are reported as unknown, which makes
    images of some recipes larger."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    base = getattr(config, "rope_theta", None)
    kind_of_layer = "sliding_attention" if is_window else "full_attention"
    if isinstance(given.get(kind_of_layer), dict):
        given = given[kind_of_layer]
    elif is_window and getattr(config, "rope_local_base_freq", None):  # such windows are not scaled
        given, base = {}, config.rope_local_base_freq
    kind = given.get("rope_type", given.get("type", "default"))
    base = given.get("rope_theta", base)
    share = given.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    if kind != "default" or not base:
        return Rope()
    return Rope("half", int(dim * (share or 1.0)), float(base))


def _name_of(model: str) -> str:
    """Returns the last part of a folder's path, because machines keep models in different places.
    """
    return os.path.basename(os.path.abspath(model)) if os.path.isdir(model) else model


def _revision_of(vllm_config: Any, settings: Settings) -> str:
    """Returns the revision: the weights, and a digest of vLLM's resolved configuration."""
    model = vllm_config.model_config
    weights = settings.weights_revision or _weights_of(model)
    if weights is None:
        raise InvalidArgumentError(
            f"which weights {model.model} has is not known: name their revision as"
            " weights_revision in kv_connector_extra_config"
        )
    quantization = getattr(model, "quantization", None)
    parts = [weights, quantization, f"config {resolved.digest_of(vllm_config)}"]
    if draft := drafts.name_of(vllm_config):
        parts += [draft, None if settings.weights_revision else _draft_weights_of(vllm_config)]
    return ", ".join(part for part in parts if part)


def _draft_weights_of(vllm_config: Any) -> str | None:
    """Returns None if the draft's weights are in the model's files."""
    draft = vllm_config.speculative_config.draft_model_config
    if draft.model == vllm_config.model_config.model:
        return None
    weights = _weights_of(draft)
    if weights is None:
        raise InvalidArgumentError(
            f"which weights the draft {draft.model} has is not known: set weights_revision in"
            " kv_connector_extra_config, which then names the weights of the model and of the draft"
        )
    return weights


def layout_of(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Returns vLLM's name of the order of its KV caches, such as LBNHC, or None."""
    found = getattr(kv_cache_config, "kv_cache_layout", None)
    return found or getattr(vllm_config.cache_config, "kv_cache_layout", None)


def _bytes_name_of(vllm_config: Any, layers: Sequence[Layers], engine_layout: str | None) -> str:
    """Names the order of the data that is moved as bytes, which depends on its kernels, and the
    backend that writes states."""
    layouts = sorted({one.shape.layout for one in layers if one.shape.layout})
    if not layouts:
        return ""
    if any(one.shape.slots for one in layers):
        # Kernels of another version may code rows in another way.
        version = getattr(sys.modules.get("vllm"), "__version__", "")
        layouts.append(f"coded rows of vLLM {version} in the order {coded_order(engine_layout)}")
    mamba = getattr(vllm_config, "mamba_config", None)
    if mamba is not None and any(one.shape.is_state for one in layers):
        layouts.append(f"{mamba.backend}, rounded at random: {mamba.enable_stochastic_rounding}")
    device = getattr(getattr(vllm_config, "device_config", None), "device_type", "")
    digest = hashlib.sha256("; ".join([str(device), *layouts]).encode())
    return f", bytes {digest.hexdigest()[:16]}"


def _weights_of(model: Any) -> str | None:
    """Returns None if the weights are unknown. The files of --hf-config-path have another commit.
    For an object store, the folder has only the configuration."""
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
