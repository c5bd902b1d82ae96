# SPDX-License-Identifier: Apache-2.0
"""Room on a CUDA device where blocks of the engine's wait to be put, out of the way of its steps."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import InvalidArgumentError
from .cuda import Cuda
from .group import GroupPart
from .layout import Shape, block_axis, paged_cache

Copies = Sequence[tuple[int, list[int]]]  # slots, and blocks of an engine's cache, as many as in one


class Room:
    """Of a group: arrays of the device with `slots` times the engine's blocks of a store's block."""

    def __init__(self, group: GroupPart, sources: Sequence[Any], blocks: int) -> None:
        self.group, self.sources, self.blocks = group, sources, blocks
        self.axis = block_axis(sources[0].shape)
        extents = [*sources[0].shape]
        extents[self.axis] = blocks
        self.slot_bytes = len(sources) * math.prod(extents) * sources[0].element_size()
        self.targets: list[Any] = []

    def table(self, slots: Sequence[int]) -> list[int]:
        """The blocks of the arrays that are those slots."""
        return [slot * self.blocks + i for slot in slots for i in range(self.blocks)]


class Staging:
    """A ring of slots, each with room for a block of the store's, of all groups. arrays: of each
    group the engine's, by layer. All of bytes_max is allocated at once, on the engine's device.

    Slots are taken and copied to by the engine's thread, and given back by another, in that order.
    """

    def __init__(
        self,
        cuda: Cuda,
        groups: Sequence[GroupPart],
        arrays: Sequence[Sequence[Any]],
        shapes: Sequence[Shape],
        store_tokens: int,
        bytes_max: int,
    ) -> None:
        self.cuda, self.stream = cuda, cuda.open_stream()
        self.rooms = [
            Room(group, of, store_tokens // group.cache.tokens_per_block)
            for group, of in zip(groups, arrays, strict=True)
        ]
        slot_bytes = sum(room.slot_bytes for room in self.rooms)
        self.slot_count = bytes_max // slot_bytes
        if self.slot_count == 0:
            raise InvalidArgumentError(
                f"kv_connector_extra_config: staging_bytes is {bytes_max}, and one block of"
                f" {store_tokens} tokens takes {slot_bytes} on the device"
            )
        self.caches = []
        for room, shape in zip(self.rooms, shapes, strict=True):
            like, count = room.sources[0], self.slot_count * room.blocks
            room.targets = cuda.allocate(like, room.axis, count, len(room.sources))
            self.caches.append(paged_cache(room.targets, shape, None, self.stream.number))
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
        everything = [block for of in copies for _, blocks in of for block in blocks]
        numbers, first = self.cuda.numbers(everything), 0
        for room, of in zip(self.rooms, copies, strict=True):
            for slot, count in _runs([slot for slot, _ in of]):
                end = first + count * room.blocks
                blocks, place = numbers[first:end], slot * room.blocks
                self.cuda.copy_blocks(room.sources, room.axis, blocks, room.targets, place)
                first = end
        return self.cuda.engine.mark()


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the count of those that follow one another."""
    begin = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[i - 1] + 1:
            yield slots[begin], i - begin
            begin = i
