# SPDX-License-Identifier: Apache-2.0
"""Describes the pages in SGLang's pools of host memory, and moves them. This module uses SGLang's
objects, but imports nothing of SGLang. It recognizes pools by the name of their type, their shape
and their layout.

Pools of plain K and V, or of a latent, are described in place, so that recipes apply. From the
other pools in `MOVED`, the module takes pages one by one, as bytes. Other classes are refused by
name, because a subclass may store other data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from . import paged
from .errors import InvalidArgumentError
from .keys import Group, KvGroup, SpaceSpec, dtype_of
from .space import Space
from .tensors import describe
from .transfer import Get, Names, Part, Put

# The axes of a page: layer, token, head, dim. If "p" precedes them, a pool has an axis of pages;
# else its axis of tokens covers all pages.
_AXES = {
    "layer_first": "lthd",
    "page_first": "tlhd",
    "page_first_direct": "plthd",
    "page_head": "phtld",
}
_REVISION_BYTES_MAX = 256  # proto/block_key.h
_FP8 = ("fp8_e4m3", "fp8_e5m2")
_STATE_TOKENS = 16  # tokens of a block of the space; a space needs some number
_KV, _LATENT, _STATES = "MHATokenToKVPoolHost", "MLATokenToKVPoolHost", "MambaPoolHost"
_INDEX = "DSAIndexerPoolHost"
MOVED = (
    _KV,
    _LATENT,
    _INDEX,
    _STATES,
    "MHATokenToKOnlyPoolHost",
    "QSAIndexerPoolHost",
    "MiniMaxM3Nvfp4MainKVPoolHost",
    "MiniMaxM3Nvfp4IndexKPoolHost",
)
_REPLICATED = (_LATENT, _INDEX)  # all ranks of a tensor-parallel engine have the same pages

ANCHOR = "kv"  # SGLang's name of the pool for the pages of requests


def pages_of(
    pool: Any, config: Any, revision: str, name: str = ANCHOR, cache_dtype: str = "auto"
) -> KnownPages | OpaquePages:
    """Describes a pool, which SGLang calls `name`. config: a HiCacheStorageConfig. cache_dtype:
    SGLang's setting, which gives the type of the anchor's bytes. Raises InvalidArgumentError, with
    the reason, for an unsupported pool."""
    kind = type(pool).__name__
    if kind not in MOVED:
        raise InvalidArgumentError(
            f"it is {kind}, and Cairn does not know what that keeps, only {', '.join(MOVED)}."
            " Start SGLang without this backend"
        )
    is_of_all_ranks = config.is_mla_model and kind in _REPLICATED
    if config.is_mla_model and config.tp_size > 1 and kind not in (*_REPLICATED, _STATES):
        raise InvalidArgumentError(
            f"it is {kind}, of which each of {config.tp_size} ranks has a part, and beside latents"
            " SGLang stores only the first rank's. Start SGLang with one tensor-parallel rank,"
            " without speculative decoding, or without this backend"
        )
    if name != ANCHOR:
        revision += f", pool {name}"
    if config.attn_cp_size > 1:  # each rank has different tokens of a page
        revision += f", context rank {config.attn_cp_rank} of {config.attn_cp_size}"
    dtype = _dtype_of(pool, cache_dtype if name == ANCHOR else "auto")
    if dtype is not None and _is_known(pool):
        return KnownPages(pool, config, revision, dtype)
    return OpaquePages(pool, config, revision, is_of_all_ranks)


def _dtype_of(pool: Any, cache_dtype: str) -> str | None:
    """Returns the dtype of a pool's elements. SGLang stores 8-bit floats as bytes. On ROCm, they
    have another format with the same name. None: unknown."""
    found = dtype_of(pool.dtype)
    if found is None and str(pool.dtype) == "torch.uint8" and cache_dtype in _FP8:
        import torch

        found = None if getattr(torch.version, "hip", None) else cache_dtype
    return found


def _is_known(pool: Any) -> bool:
    """Returns whether a pool holds only data that this module can describe."""
    kind = type(pool).__name__
    if kind not in (_KV, _LATENT) or pool.layout not in _AXES:
        return False
    if pool.storage_format_tag is not None or pool.dcp_size != 1:
        return False
    if kind == _KV and pool.v_head_dim != pool.head_dim:
        return False
    extents = {"k": 2, "l": pool.layer_num, "h": 1, "p": pool.page_num}
    extents["t"] = pool.page_size if "p" in _axes(pool) else pool.size
    if kind == _KV:
        extents |= {"h": pool.head_num, "d": pool.head_dim}
    else:
        extents["d"] = pool.kv_cache_dim
    wanted = tuple(extents[axis] for axis in _axes(pool))
    return tuple(getattr(pool.kv_buffer, "shape", ())) == wanted


def _axes(pool: Any) -> str:
    """Returns the axes of the whole pool; "k" stands for K and V."""
    return ("k" if type(pool).__name__ == _KV else "") + _AXES[pool.layout]


class KnownPages:
    """Pages of K and V, or of a latent. Ranks of one model share a space; each has its heads."""

    reason = ""  # empty: recipes apply; otherwise the reason why they do not

    def __init__(self, pool: Any, config: Any, revision: str, dtype: str) -> None:
        self._pool = pool
        first, count = pool.start_layer or 0, pool.layer_num
        layers = tuple(range(first, first + count))
        is_latent = type(pool).__name__ == _LATENT
        if is_latent:
            self._part, group = Part(), Group("latent", layers, kv_heads=1, k_dim=pool.kv_cache_dim)
        else:
            heads = pool.head_num
            rank_first = config.tp_rank * heads
            self._part = Part(heads=range(rank_first, rank_first + heads))
            group = KvGroup(layers, heads * config.tp_size, pool.head_dim)
        self.spec = SpaceSpec(
            config.model_name or "", _short(revision), (group,), dtype, pool.page_size
        )
        self._cache = self._describe(is_latent)

    def _describe(self, is_latent: bool) -> paged.PagedCache:
        pool, axes = self._pool, _axes(self._pool)
        strides = dict(zip(axes, describe("the host pool", pool.kv_buffer).strides, strict=True))
        block = strides["p"] if "p" in axes else pool.page_size * strides["t"]
        k = paged.Placement(block, strides["h"], strides["t"], strides["d"])
        v = None
        if not is_latent:
            v = paged.Placement(block, k.head, k.token, k.dim, offset=strides["k"])
        before = (slice(None),) * axes.index("l")
        layers = [pool.kv_buffer[(*before, i)] for i in range(pool.layer_num)]
        return paged.PagedCache(
            layers, tokens_per_block=pool.page_size, block_count=pool.page_num, k=k, v=v
        )

    @property
    def part(self) -> Part:
        return self._part

    def load(
        self, space: Space, keys: Sequence[bytes], pages: Sequence[int], timeout: float
    ) -> list[bool]:
        moved = paged.get(space, self._cache, keys, pages, part=self._part, timeout=timeout)
        return [status == paged.OK for status in moved.statuses]

    def store(
        self,
        space: Space,
        keys: Sequence[bytes],
        pages: Sequence[int],
        timeout: float,
        **chain: Any,
    ) -> list[bool]:
        """chain: the arguments of `paged.put` about the chain."""
        moved = paged.put(
            space, self._cache, keys, pages, part=self._part, timeout=timeout, **chain
        )
        return [status == paged.OK for status in moved.statuses]

    def arrays(self, page: Any) -> dict[str, Any]:
        """Returns the arguments of a put or get for a page outside the pool, flat and in the pool's
        order."""
        pool, axes = self._pool, _axes(self._pool).replace("p", "")
        extents = dict(zip(_axes(pool), pool.kv_buffer.shape, strict=True)) | {"t": pool.page_size}
        shaped = page.reshape([extents[axis] for axis in axes])
        planes = (shaped[0], shaped[1]) if "k" in axes else (shaped, None)
        order = [axes.replace("k", "").index(axis) for axis in "lhtd"]
        k, v = (None if p is None else _in_order(p, order) for p in planes)
        return {"k": k, "v": v}


def engine_names(pages: Sequence[str], before: str) -> list[Names]:
    """Returns SGLang's own names of consecutive pages, which are hashes in hex. `before` is the
    name of the previous page, or empty. Returns an empty list if they are not hashes."""
    made = [
        Names.of_hex(page, parent)
        for page, parent in zip(pages, [before, *pages], strict=False)
    ]
    return [one for one in made if one is not None] if all(made) else []


class OpaquePages:
    """Pages as the pool returns them. Their keys include everything that a page's bytes depend
    on."""

    part = Part()

    def __init__(self, pool: Any, config: Any, revision: str, is_of_all_ranks: bool) -> None:
        self._pool = pool
        kind = type(pool).__name__
        what = f"{kind} ({pool.layout}, {pool.dtype})"
        self.reason = f"pages of {what} are stored as bytes"
        try:
            pages = pool.get_data_page(0, flat=True), pool.get_dummy_flat_data_page()
            count, expected = (describe("a page", _as_bytes(page)).bytes for page in pages)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"it is {what}, and it provides no pages") from error
        if not count == expected == pool.page_size * pool.get_size_per_token():
            raise InvalidArgumentError(f"it is {what}, and its pages are not all that it holds")
        rank = "" if is_of_all_ranks else f", rank {config.tp_rank} of {config.tp_size}"
        rank += f", stage {config.pp_rank} of {config.pp_size}"
        if (first := getattr(pool, "start_layer", None)) is not None:
            # Other engines may cut stages at other layers with the same length.
            rank += f", layers from {first}"
        if (layers := getattr(pool, "layer_num", None)) is not None:
            rank += f", {layers} in all"
        revision += f", {kind} {pool.layout} {pool.dtype}{rank}"
        group = Group("state", 1, state_bytes=count)
        self.spec = SpaceSpec(
            config.model_name or "",
            _short(revision),
            (group,),
            # A page of states has one place, whatever number of tokens it covers.
            tokens_per_block=_STATE_TOKENS if pool.page_size == 1 else pool.page_size,
        )

    def load(
        self, space: Space, keys: Sequence[bytes], pages: Sequence[int], timeout: float
    ) -> list[bool]:
        flat = [self._pool.get_dummy_flat_data_page() for _ in keys]
        gets = [Get(key, **self.arrays(page)) for key, page in zip(keys, flat, strict=True)]
        results = [bool(got) for got in space.get_batch(gets, timeout=timeout)]
        for is_there, index, page in zip(results, pages, flat, strict=True):
            if is_there:
                self._pool.set_from_flat_data_page(index * self._pool.page_size, page)
        return results

    def store(
        self,
        space: Space,
        keys: Sequence[bytes],
        pages: Sequence[int],
        timeout: float,
        *,
        parent: bytes | None = None,
        first_position: int = 0,
        is_derived: bool = False,
        names: Sequence[Names] = (),
    ) -> list[bool]:
        puts = []
        for i, (key, index) in enumerate(zip(keys, pages, strict=True)):
            page = self._pool.get_data_page(index * self._pool.page_size, flat=True)
            position = first_position + i * self.spec.tokens_per_block
            puts.append(
                Put(
                    key,
                    parent=keys[i - 1] if i else parent,
                    first_position=position,
                    is_derived=is_derived,
                    names=names[i] if names else None,
                    **self.arrays(page),
                )
            )
        return [result.error is None for result in space.put_batch(puts, timeout=timeout)]

    def arrays(self, page: Any) -> dict[str, Any]:
        return {"source": _as_bytes(page)}


def _short(revision: str) -> str:
    """Shortens a revision to the limit: the rest is replaced by a digest of the whole."""
    if len(revision.encode()) <= _REVISION_BYTES_MAX:
        return revision
    digest = hashlib.sha256(revision.encode()).hexdigest()[:32]
    begin = revision.encode()[: _REVISION_BYTES_MAX - 1 - len(digest)].decode(errors="ignore")
    return f"{begin} {digest}"


def _as_bytes(page: Any) -> Any:
    """Returns a flat page as bytes, for every element type: numpy lacks some types of torch."""
    if hasattr(page, "__array_interface__"):
        return page
    import torch

    return page.view(torch.uint8)


def _in_order(plane: Any, order: list[int]) -> Any:
    return plane.permute(order) if hasattr(plane, "permute") else plane.transpose(order)
