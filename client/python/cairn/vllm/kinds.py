# SPDX-License-Identifier: Apache-2.0
"""Maps vLLM's classes of KV caches to the groups of a space, or gives the reason why a cache is not
supported. Uses vLLM's objects, but imports nothing of vLLM.

A class that is not listed here is refused by name, because a subclass may store other data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from ..keys import DTYPE_BYTES, dtype_of

GROUPS_MAX = 16  # in a space

MOVED = (
    "FullAttentionSpec",
    "SlidingWindowSpec",
    "ChunkedLocalAttentionSpec",
    "MLAAttentionSpec",
    "SlidingWindowMLASpec",
    "MambaSpec",
)
# The dtype in a space for each name of vLLM's 8-bit floats.
_FP8 = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
# vLLM's codings of K and V, and of latents, whose scales are among the rows: a row can be read without
# anything else but the weights. Of K and V the names of modes, of latents those of --kv-cache-dtype.
_CODED = {"FP8_PER_TOKEN_HEAD", "INT8_PER_TOKEN_HEAD", "INT4_PER_TOKEN_HEAD", "NVFP4"}
_CODED_LATENTS = {"fp8_ds_mla", "nvfp4_ds_mla"}
_TOGETHER = "UniformTypeKVCacheSpecs"  # layers of different shapes that share a table of blocks


@dataclass(frozen=True)
class Shape:
    """The cache of a layer. kind: "kv", "latent", "state" or "opaque_rows", as in a space.

    heads: heads of one worker. dim: channels of a head of K, or of a latent. v_dim: channels of a
    head of V if K has another number of them. bytes: size of a state, or of a token's row. dtype:
    type of the elements; none for bytes. window: tokens that a layer sees; 0 means all.
    is_replicated: all ranks of a tensor-parallel engine have the same data. layout: the order of the
    bytes, as far as vLLM describes it. slots: of a coded row, the pieces in which its bytes are; 0:
    no such row.
    """

    kind: str
    heads: int = 1
    dim: int = 0
    bytes: int = 0
    dtype: str | None = None
    window: int = 0
    is_replicated: bool = False
    layout: str = ""
    v_dim: int | None = None
    slots: int = 0

    @property
    def is_latent(self) -> bool:
        """Returns whether there is one plane, not K and V."""
        return self.kind == "latent"

    @property
    def row(self) -> int:
        """Returns the number of elements per head and token."""
        if self.is_latent:
            return self.dim
        return self.dim + (self.dim if self.v_dim is None else self.v_dim)

    @property
    def is_state(self) -> bool:
        """Returns whether a block has one state, for all tokens up to its end. Then a prefix needs
        only the state of its last block."""
        return self.kind == "state"

    @property
    def is_bytes(self) -> bool:
        """Returns whether the data is moved as bytes."""
        return self.kind in ("state", "opaque_rows")


@dataclass(frozen=True)
class Layers:
    """A group of a space: layers of one shape in one of the engine's groups. table: number of the
    engine's group, whose block tables they use. block_tokens: tokens of one of its blocks.
    is_draft: they belong to a draft model."""

    table: int
    names: tuple[str, ...]
    shape: Shape
    block_tokens: int
    is_draft: bool = False


def layers_of(engine_groups: Sequence[Any], cache_dtype: str = "auto") -> list[Layers]:
    """Returns the groups of a space, in the engine's order. cache_dtype: vLLM's option, which gives
    the type of a coded cache's bytes. Raises InvalidArgumentError, which names unsupported data."""
    found: list[Layers] = []
    for table, group in enumerate(engine_groups):
        if getattr(group, "host_resident", False) or not getattr(group, "enable_kv_transfer", True):
            raise _refuse(group.kv_cache_spec, "vLLM keeps it elsewhere, or makes it from another group")
        shapes: dict[Shape, list[str]] = {}
        for name, spec in specs_of(group):
            shapes.setdefault(shape_of(spec, cache_dtype), []).append(name)
        found += [
            Layers(table, tuple(names), shape, group.kv_cache_spec.block_size)
            for shape, names in shapes.items()
        ]
    if len(found) > GROUPS_MAX:
        raise InvalidArgumentError(
            f"the model has {len(found)} groups of KV caches, and a space at most {GROUPS_MAX}"
        )
    return found


def shape_of(spec: Any, cache_dtype: str = "auto") -> Shape:
    """Returns the shape of a layer with that specification. Raises InvalidArgumentError if it is
    not supported."""
    name = type(spec).__name__
    if name not in MOVED:
        raise _refuse(spec, f"Cairn does not know what it keeps, only what these keep: {', '.join(MOVED)}")
    if not getattr(spec, "prefix_cacheable", True):
        raise _refuse(spec, "vLLM itself finds no prefixes in it")
    if name == "MambaSpec":
        return _state_of(spec)
    if getattr(spec, "model_version", None) is not None:
        raise _refuse(spec, f"it is of {spec.model_version}, whose caches only make sense together")
    if getattr(spec, "non_causal", False):
        raise _refuse(spec, "it is not causal: K and V of a token depend on later tokens")
    if getattr(spec, "tokens_per_state", 1) != 1:
        raise _refuse(spec, f"a row is of {spec.tokens_per_state} tokens")
    # With chunked attention, the chunk in which a prefix ends is within the last tokens of this
    # number.
    window = getattr(spec, "attention_chunk_size", 0) if "Chunked" in name else 0
    if name.startswith("SlidingWindow"):
        window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
    coded = _coding_of(spec, cache_dtype)
    if coded is not None:
        return _rows_of(spec, window, coded)
    if getattr(spec, "state_content_bytes", None) is not None:
        mode = _mode_of(spec)
        by = "" if mode == "NONE" else f" of {mode}, a coding that Cairn does not know"
        raise _refuse(spec, f"a row is {spec.state_content_bytes} coded bytes{by}")
    if "MLA" in name:
        return _latent_of(spec, window, cache_dtype)
    return _kv_of(spec, window, cache_dtype)


def _kv_of(spec: Any, window: int, cache_dtype: str) -> Shape:
    heads = spec.num_kv_heads
    if getattr(spec, "num_head_slots", None) not in (None, heads):
        raise _refuse(spec, f"{heads} heads lie in {spec.num_head_slots} places")
    v_dim = getattr(spec, "head_size_v", spec.head_size)
    return Shape(
        "kv",
        heads,
        spec.head_size,
        dtype=_dtype_of(spec, cache_dtype),
        window=window,
        v_dim=None if v_dim == spec.head_size else v_dim,
    )


def _coding_of(spec: Any, cache_dtype: str) -> str | None:
    """Returns the name of the coding if scales are among the rows and rows can be moved as bytes."""
    if "MLA" in type(spec).__name__:
        name, known = getattr(spec, "cache_dtype_str", None) or cache_dtype, _CODED_LATENTS
    else:
        name, known = _mode_of(spec), _CODED
    return name if name in known else None


def _rows_of(spec: Any, window: int, coded: str) -> Shape:
    """Returns the shape of rows whose order in a block only vLLM's kernels know. Each head, or K and V
    of each head, is a slot of a row."""
    content = getattr(spec, "state_content_bytes", None)
    if content is None:
        raise _refuse(spec, f"of rows of {coded} its attention backend does not tell the size")
    slots = getattr(spec, "num_head_slots", None) or spec.num_kv_heads
    return Shape(
        "opaque_rows",
        bytes=slots * content,
        window=window,
        is_replicated="MLA" in type(spec).__name__,
        layout=f"{coded} rows of {slots} times {content} bytes in blocks of {spec.block_size}",
        slots=slots,
    )


def _latent_of(spec: Any, window: int, cache_dtype: str) -> Shape:
    # A row of the indexer is a key and its scale, in an order that only vLLM's kernels know.
    if _role_of(spec) == "indexer" and dtype_of(spec.dtype) is None:
        row = spec.head_size * spec.dtype.itemsize
        layout = f"indexer rows in blocks of {spec.block_size}"
        return Shape("opaque_rows", bytes=row, window=window, is_replicated=True, layout=layout)
    dtype = _dtype_of(spec, getattr(spec, "cache_dtype_str", None) or cache_dtype)
    return Shape("latent", 1, spec.head_size, dtype=dtype, window=window, is_replicated=True)


def _role_of(spec: Any) -> str:
    return str(getattr(getattr(spec, "cache_role", ""), "value", ""))


def _state_of(spec: Any) -> Shape:
    if spec.mamba_cache_mode != "align":
        raise _refuse(
            spec,
            f"with mamba_cache_mode {spec.mamba_cache_mode!r} vLLM keeps no states of prefixes: start"
            " it with --enable-prefix-caching --mamba-cache-mode align",
        )
    if spec.num_speculative_blocks:
        raise _refuse(spec, "speculative decoding moves its states about")
    parts = list(zip(spec.shapes, spec.dtypes, strict=True))
    state_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in parts)
    kind = getattr(spec.mamba_type, "name", spec.mamba_type)
    layout = f"{kind} " + ", ".join(f"{tuple(shape)} {dtype}" for shape, dtype in parts)
    return Shape("state", bytes=state_bytes, is_replicated=spec.tp_replicated, layout=layout)


def _dtype_of(spec: Any, cache_dtype: str) -> str:
    """Returns the dtype of the elements. vLLM stores 8-bit floats as bytes, with a scale for each
    layer that belongs to the weights. The dtype is that of the 8-bit floats."""
    mode = _mode_of(spec)
    dtype = dtype_of(spec.dtype)
    if mode == "FP8_PER_TENSOR":
        dtype = _FP8.get(cache_dtype)
    elif mode != "NONE":
        raise _refuse(
            spec, f"--kv-cache-dtype {cache_dtype} ({mode}) is a coding that Cairn does not know"
        )
    if dtype is None:
        raise InvalidArgumentError(
            f"the KV cache has {spec.dtype} (--kv-cache-dtype {cache_dtype}); this connector moves"
            f" {', '.join(DTYPE_BYTES)}: start vLLM with --kv-cache-dtype auto, or fp8"
        )
    return dtype


def _mode_of(spec: Any) -> str:
    return str(getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE"))


def specs_of(group: Any) -> Iterator[tuple[str, Any]]:
    """Yields each layer of a vLLM group with its specification."""
    spec = group.kv_cache_spec
    for name in group.layer_names:
        yield name, spec.kv_cache_specs[name] if type(spec).__name__ == _TOGETHER else spec


def _refuse(spec: Any, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a group of KV is {type(spec).__name__}: {why}. Start vLLM without this connector"
    )
