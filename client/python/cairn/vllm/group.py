# SPDX-License-Identifier: Apache-2.0
"""A worker's part of a group of layers, and the moves of its blocks."""

from __future__ import annotations

import abc
import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any

from .. import paged
from ..errors import InvalidArgumentError
from ..space import Space
from ..tensors import contiguous, describe, is_contiguous
from ..transfer import Get, Part
from .plan import by_key


class GroupPart(abc.ABC):
    """split: number of the cache's blocks in one of the scheduler's. is_writer: False if another
    rank puts the same blocks."""

    def __init__(self, part: Part, split: int, is_writer: bool = True) -> None:
        self.part, self.split, self.is_writer = part, split, is_writer

    def table(self, blocks: Sequence[int]) -> list[int]:
        """Converts the scheduler's blocks to blocks of the cache."""
        if self.split == 1:
            return list(blocks)
        return [
            paged.SKIPPED if block == paged.SKIPPED else block * self.split + i
            for block in blocks
            for i in range(self.split)
        ]

    def is_put(self, blocks: Sequence[int]) -> bool:
        """Returns whether a store block that consists of these engine blocks is put. It is not put
        if the engine has freed some of them or has no state there, or if another rank puts the same
        block."""
        return self.is_writer and paged.SKIPPED not in blocks

    @abc.abstractmethod
    def blocks_of(self, store_tokens: int) -> int:
        """Returns the number of the cache's blocks in a store block."""

    @abc.abstractmethod
    def get(
        self,
        space: Space,
        keys: Sequence[bytes],
        blocks: Sequence[int],
        lease: bytes | None,
        timeout: float,
    ) -> paged.Moved:
        """Gets store blocks into the scheduler's blocks, the same number for each key."""

    @abc.abstractmethod
    def gather(self, space: Space, blocks: Sequence[int], target: bytearray) -> None:
        """Copies one store block in source form."""


class PagedPart(GroupPart):
    """Part of a group of K and V, or of latents."""

    def __init__(
        self, cache: paged.PagedCache, part: Part, split: int, is_writer: bool = True
    ) -> None:
        super().__init__(part, split, is_writer)
        self.cache = cache

    def blocks_of(self, store_tokens: int) -> int:
        return store_tokens // self.cache.tokens_per_block

    def get(
        self,
        space: Space,
        keys: Sequence[bytes],
        blocks: Sequence[int],
        lease: bytes | None,
        timeout: float,
    ) -> paged.Moved:
        table = self.table(blocks)
        return paged.get(
            space, self.cache, keys, table, lease=lease, part=self.part, timeout=timeout
        )

    def gather(self, space: Space, blocks: Sequence[int], target: bytearray) -> None:
        paged.gather(space, self.cache, self.table(blocks), target, part=self.part)


class BytesPart(GroupPart):
    """Part of a group of states, or of rows whose order only the engine's kernels know. The bytes
    of a block are moved unchanged. arrays: one array per layer in host memory, whose first axis
    counts blocks. tokens: number of tokens of a block; 0: a block has a state. `DeviceBytes` is for
    arrays on a device."""

    def __init__(
        self,
        arrays: Sequence[Any],
        block_bytes: int,
        part: Part,
        split: int,
        is_writer: bool = True,
        tokens: int = 0,
    ) -> None:
        super().__init__(part, split, is_writer)
        self._layers = [describe(f"layers[{i}]", array, True) for i, array in enumerate(arrays)]
        self._bytes, self._tokens = block_bytes, tokens
        for layer in self._layers:
            is_piece = is_contiguous(layer.shape[1:], layer.strides[1:], layer.itemsize)
            found = layer.itemsize * math.prod(layer.shape[1:])
            if found != block_bytes or not is_piece or layer.strides[0] < block_bytes:
                raise InvalidArgumentError(
                    f"the KV cache's layout is not known: a block is not one piece of {block_bytes}"
                    f" bytes; {layer.dtype} {layer.shape}, strides {layer.strides}"
                )

    def blocks_of(self, store_tokens: int) -> int:
        return store_tokens // self._tokens if self._tokens else 1

    def get(
        self,
        space: Space,
        keys: Sequence[bytes],
        blocks: Sequence[int],
        lease: bytes | None,
        timeout: float,
    ) -> paged.Moved:
        tables, count = by_key(self.table(blocks), len(keys)), space.source_bytes(self.part)
        targets = [self._room(count) for _ in keys]
        gets = [
            Get(key, lease=lease, part=self.part, source=target)
            for key, target in zip(keys, targets, strict=True)
        ]
        results = space.get_batch(gets, timeout=timeout)
        statuses = [
            (paged.OK if one.is_hit else paged.MISS) if one.error is None else one.error.code
            for one in results
        ]
        good = [i for i, status in enumerate(statuses) if status == paged.OK]
        self._place([(tables[i], targets[i]) for i in good])
        return paged.Moved(statuses, count * len(good), sum(results[i].wire_bytes for i in good))

    def _room(self, count: int) -> Any:
        """Returns host memory for a store block."""
        return bytearray(count)

    def _place(self, blocks: Sequence[tuple[list[int], Any]]) -> None:
        """Copies store blocks into the blocks of the cache."""
        for table, source in blocks:
            for address, copy, is_wanted in self._places(table, source):
                if is_wanted:
                    ctypes.memmove(address, copy, self._bytes)

    def gather(self, space: Space, blocks: Sequence[int], target: bytearray) -> None:
        for address, copy, _ in self._places(self.table(blocks), target):
            ctypes.memmove(copy, address, self._bytes)

    def _places(
        self, table: Sequence[int], copies: bytearray
    ) -> Iterator[tuple[int, int, bool]]:
        """Yields the address of each block in the engine's memory and in the source form, and
        whether it is wanted."""
        copy = contiguous("copies", copies, is_target=True).address
        for layer in self._layers:
            for block in table:
                if not (block == paged.SKIPPED or 0 <= block < layer.shape[0]):
                    raise InvalidArgumentError(f"there is no block {block} of {layer.shape[0]}")
                yield layer.address + block * layer.strides[0], copy, block != paged.SKIPPED
                copy += self._bytes
