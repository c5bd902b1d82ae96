# SPDX-License-Identifier: Apache-2.0
"""Room on a CUDA device where blocks of the engine's wait to be put, out of the way of its steps."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import InvalidArgumentError
from ..paged import PagedCache
from .cuda import Cuda
from .group import PagedPart
from .layout import Shape, paged_cache

Copies = Sequence[tuple[int, list[int]]]  # slots, and blocks of an engine's cache, as many as in one


class Room:
    """Of a group: arrays on the device with `blocks` of the engine's for each of the slots."""

    def __init__(self, cuda: Cuda, arrays: Sequence[Any], blocks: int) -> None:
        self._cuda, self._arrays, self._blocks = cuda, arrays, blocks
        slot_elements = blocks * math.prod(arrays[0].shape[1:])
        self.slot_bytes = len(arrays) * slot_elements * arrays[0].element_size()
        self._copies: list[tuple[Any, int, Any]] = []  # from where, by which axis, to where

    def allocate(self, slots: int, shape: Shape, stream: int) -> PagedCache:
        """Described as a cache of the store's, which moves on that stream."""
        arrays = self._arrays
        room = self._cuda.allocate(arrays[0], slots * self._blocks, len(arrays))
        layers = [room[i] for i in range(len(arrays))]
        whole = self._cuda.together(arrays)  # then a step's blocks take one copy
        if whole is not None:
            self._copies = [(whole, 1, room)]
        else:
            self._copies = [(of, 0, to) for of, to in zip(arrays, layers, strict=True)]
        return paged_cache(layers, shape, None, stream)

    def table(self, slots: Sequence[int]) -> list[int]:
        """The blocks of the arrays that are those slots."""
        return [slot * self._blocks + i for slot in slots for i in range(self._blocks)]

    def copy(self, slots: Sequence[int], numbers: Any) -> None:
        """numbers: on the device, of the engine's blocks for those slots."""
        first = 0
        for slot, count in runs(slots):
            blocks = numbers[first : first + count * self._blocks]
            for source, axis, target in self._copies:
                self._cuda.copy_blocks(source, axis, blocks, target, slot * self._blocks)
            first += count * self._blocks


class Staging:
    """A ring of slots, each with room for a block of the store's, of all groups. arrays: of each
    group the engine's, by layer. All of bytes_max is allocated at once, on the engine's device.

    Slots are taken and copied to by the engine's thread, and given back by another, in that order.
    """

    def __init__(
        self,
        cuda: Cuda,
        groups: Sequence[PagedPart],
        arrays: Sequence[Sequence[Any]],
        shapes: Sequence[Shape],
        store_tokens: int,
        bytes_max: int,
    ) -> None:
        self.cuda, self.stream = cuda, cuda.open_stream()
        self.rooms = [
            Room(cuda, of, store_tokens // group.cache.tokens_per_block)
            for group, of in zip(groups, arrays, strict=True)
        ]
        slot_bytes = sum(room.slot_bytes for room in self.rooms)
        self.slot_count = bytes_max // slot_bytes
        if self.slot_count == 0:
            raise InvalidArgumentError(
                f"kv_connector_extra_config: staging_bytes is {bytes_max}, and one block of"
                f" {store_tokens} tokens takes {slot_bytes} on the device"
            )
        self.caches = [
            room.allocate(self.slot_count, shape, self.stream.number)
            for room, shape in zip(self.rooms, shapes, strict=True)
        ]
        self._lock = threading.Lock()
        self._next = self._used = 0  # guarded by _lock

    def take(self, count: int) -> list[int]:
        """As many slots, or fewer: those that are free."""
        with self._lock:
            count = min(count, self.slot_count - self._used)
            slots = [(self._next + i) % self.slot_count for i in range(count)]
            self._next, self._used = (self._next + count) % self.slot_count, self._used + count
        return slots

    def give_back(self, count: int) -> None:
        """Those that were taken first."""
        with self._lock:
            self._used -= count

    def copy(self, copies: Sequence[Copies]) -> Any:
        """Puts copies of each group on the engine's stream, and gives the mark behind them."""
        numbers = self.cuda.numbers([block for of in copies for _, blocks in of for block in blocks])
        first = 0
        for room, of in zip(self.rooms, copies, strict=True):
            end = first + sum(len(blocks) for _, blocks in of)
            room.copy([slot for slot, _ in of], numbers[first:end])
            first = end
        return self.cuda.engine.mark()


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the count of those that follow one another."""
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[begin], i - begin
            begin = i
