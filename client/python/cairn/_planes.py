# SPDX-License-Identifier: Apache-2.0
"""LMCache's objects as K and V, or as latents of MLA, if the configuration states the model's shape.
LMCache's orders are KV_2LTD: [K and V, layers, tokens, heads x channels], and KV_MLA_FMT: [1, layers,
tokens, channels], which is the source form of a group of latents.

A wrong shape makes images larger, but a lossless recipe never changes the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import paged
from .errors import InvalidArgumentError
from .keys import DTYPE_BYTES, Group, KvGroup
from .space import Space
from .transfer import Get, Put

_TOKENS_MIN, _TOKENS_MAX = 16, 1024  # of a block
_FORMATS = {1: "B", 2: "H", 4: "I"}  # of a memoryview, by the bytes of an element


@dataclass(frozen=True)
class Planes:
    """layers, heads, dim: of one object. A rank of a tensor-parallel engine has its own heads, and
    the whole latents: these have one head."""

    layers: int
    heads: int
    dim: int
    dtype: str
    is_latent: bool = False

    @staticmethod
    def of(
        where: str,
        layers: int | None,
        heads: int | None,
        dim: int | None,
        latent_dim: int | None,
        dtype: str | None,
    ) -> Planes | None:
        """Returns None if nothing is stated. Raises InvalidArgumentError, which names what is missing,
        or what does not go with latents. where: the option with these fields."""
        stated = {"kv_layers": layers, "kv_heads": heads, "head_dim": dim}
        if latent_dim is not None:
            extra = [name for name in ("kv_heads", "head_dim") if stated.pop(name) is not None]
            if extra:
                raise InvalidArgumentError(
                    f"{where} has latent_dim and {', '.join(extra)}: an object has latents, or K and V"
                )
            stated["latent_dim"] = latent_dim
        elif all(value is None for value in stated.values()):
            return None
        stated["dtype"] = dtype
        missing = [name for name, value in stated.items() if value is None]
        if missing:
            given = ", ".join(name for name in stated if name not in missing)
            raise InvalidArgumentError(f"{where} has {given}, and no {', '.join(missing)}")
        assert layers is not None and dtype is not None
        if latent_dim is not None:
            return Planes(layers, 1, latent_dim, dtype, is_latent=True)
        assert heads is not None and dim is not None
        return Planes(layers, heads, dim, dtype)

    @property
    def token_bytes(self) -> int:
        """Returns the bytes of K, of V or of the latents of one token in one layer."""
        return self.heads * self.dim * DTYPE_BYTES[self.dtype]

    def group_of(self, object_bytes: int) -> tuple[Group, int] | None:
        """Returns the group of a space for objects of that length, and their tokens. None: the
        objects have another shape."""
        planes = 1 if self.is_latent else 2
        tokens, rest = divmod(object_bytes, planes * self.layers * self.token_bytes)
        if rest or not _TOKENS_MIN <= tokens <= _TOKENS_MAX:
            return None
        if self.is_latent:
            return Group("latent", self.layers, kv_heads=1, k_dim=self.dim), tokens
        return KvGroup(self.layers, self.heads, self.dim), tokens

    def get(self, space: Space, gets: Sequence[Get], timeout: float) -> list[bool]:
        """Gets each object of K and V into the memory that `source` of its get names. Returns which
        were hits."""
        keys = [one.key for one in gets]
        there = space.contains(keys, timeout=timeout)
        found = []
        for one, is_there in zip(gets, there, strict=True):
            status = paged.MISS
            if is_there:
                cache = self._cache(space, one.source)
                (status,) = paged.get(space, cache, [one.key], [0], timeout=timeout).statuses
            found.append(status == paged.OK)
        return found

    def put_of(self, space: Space, put: Put) -> Put:
        """Returns the same put of K and V with its source in source form."""
        target = bytearray(space.source_bytes())
        paged.gather(space, self._cache(space, put.source), [0], target)
        put.source = target
        return put

    def _cache(self, space: Space, view: memoryview) -> paged.PagedCache:
        """Describes an object as a cache of one block."""
        tokens, item = space.spec.tokens_per_block, DTYPE_BYTES[self.dtype]
        step = tokens * self.heads * self.dim  # elements of K in a layer
        elements = view.cast("B").cast(_FORMATS[item])
        half = self.layers * step
        # V of a layer is behind K of all layers. All arrays have the same length.
        arrays = [elements[i * step : i * step + half + step] for i in range(self.layers)]
        head, token = self.dim * item, self.token_bytes
        k = paged.Placement(view.nbytes, head, token, item)
        v = paged.Placement(view.nbytes, head, token, item, offset=half * item)
        return paged.PagedCache(arrays, tokens_per_block=tokens, block_count=1, k=k, v=v)
