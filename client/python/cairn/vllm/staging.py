# SPDX-License-Identifier: Apache-2.0
"""Memory on a CUDA device for copies of engine blocks that wait to be put."""

from __future__ import annotations

import abc
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .. import paged
from ..errors import InvalidArgumentError
from ..space import Space
from ..transfer import Names, Part, Put
from .cuda import Cuda, Stream
from .group import GroupPart
from .kinds import Shape
from .layout import paged_cache

Copies = Sequence[tuple[int, list[int]]]  # slots, and engine blocks per slot


class Room(abc.ABC):
    """Memory of a group: arrays on the device, with `blocks` engine blocks in each slot."""

    def __init__(self, cuda: Cuda, arrays: Sequence[Any], blocks: int) -> None:
        self._cuda, self._arrays, self._blocks = cuda, arrays, blocks
        slot_elements = blocks * math.prod(arrays[0].shape[1:])
        self.slot_bytes = len(arrays) * slot_elements * arrays[0].element_size()
        self._room: Any = None  # [layers, blocks, …]
        # Sources, with the axis of blocks, and targets.
        self._copies: list[tuple[Any, int, Any]] = []

    def allocate(self, slots: int, stream: Stream) -> None:
        """stream: the stream of puts."""
        arrays = self._arrays
        self._room = room = self._cuda.allocate(arrays[0], slots * self._blocks, len(arrays))
        whole = self._cuda.together(arrays)  # one copy per step is then enough
        if whole is not None:
            self._copies = [(whole, 1, room)]
        else:
            self._copies = [(of, 0, room[i]) for i, of in enumerate(arrays)]

    def copy(self, slots: Sequence[int], numbers: Any) -> None:
        """numbers: on the device, the engine's blocks for those slots."""
        first = 0
        for slot, count in runs(slots):
            blocks = numbers[first : first + count * self._blocks]
            for source, axis, target in self._copies:
                self._cuda.copy_blocks(source, axis, blocks, target, slot * self._blocks)
            first += count * self._blocks

    @abc.abstractmethod
    def put(
        self,
        space: Space,
        keys: Sequence[bytes],
        slots: Sequence[int],
        part: Part,
        timeout: float,
        *,
        parent: bytes | None,
        first_position: int,
        is_derived: bool,
        names: Sequence[Names] = (),
    ) -> paged.Moved:
        """Puts the content of the slots, one slot per key. Raises UnavailableError if the device
        failed."""


class PagedRoom(Room):
    """Room for K and V, or for latents, which are encoded on the device."""

    def __init__(self, cuda: Cuda, arrays: Sequence[Any], blocks: int, shape: Shape) -> None:
        super().__init__(cuda, arrays, blocks)
        self._shape = shape
        self._cache: paged.PagedCache | None = None

    def allocate(self, slots: int, stream: Stream) -> None:
        super().allocate(slots, stream)
        layers = [self._room[i] for i in range(len(self._arrays))]
        self._cache = paged_cache(layers, self._shape, None, stream.number)

    def put(
        self,
        space: Space,
        keys: Sequence[bytes],
        slots: Sequence[int],
        part: Part,
        timeout: float,
        **chain: Any,
    ) -> paged.Moved:
        assert self._cache is not None
        table = [slot * self._blocks + i for slot in slots for i in range(self._blocks)]
        return paged.put(space, self._cache, keys, table, part=part, timeout=timeout, **chain)


class BytesRoom(Room):
    """Room for states, or for rows of an index, which are put from host memory."""

    def allocate(self, slots: int, stream: Stream) -> None:
        super().allocate(slots, stream)
        self._stream = stream

    def put(
        self,
        space: Space,
        keys: Sequence[bytes],
        slots: Sequence[int],
        part: Part,
        timeout: float,
        *,
        parent: bytes | None,
        first_position: int,
        is_derived: bool,
        names: Sequence[Names] = (),
    ) -> paged.Moved:
        sources = [self._cuda.host(self.slot_bytes) for _ in keys]
        count, step = self._blocks, space.spec.tokens_per_block
        self._stream.read(
            [
                (self._room, slot * count, count, source)
                for slot, source in zip(slots, sources, strict=True)
            ]
        )
        puts = [
            Put(
                key,
                parent=keys[i - 1] if i else parent,
                first_position=first_position + i * step,
                part=part,
                is_derived=is_derived,
                source=sources[i],
                names=names[i] if names else None,
            )
            for i, key in enumerate(keys)
        ]
        results = space.put_batch(puts, timeout=timeout)
        good = [result for result in results if result.error is None]
        return paged.Moved(
            [paged.OK if one.error is None else one.error.code for one in results],
            self.slot_bytes * len(good),
            sum(one.image_bytes for one in good if not one.is_duplicate),
        )


class Staging:
    """A ring of slots, each with room for a store block of all groups. arrays, shapes: for each
    group the engine's arrays by layer, and their shapes. All of bytes_max is allocated at once, on
    the engine's device.

    The engine's thread takes slots and copies to them. Another thread gives them back in the same
    order.
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
        self.rooms: list[Room] = [
            BytesRoom(cuda, of, group.blocks_of(store_tokens))
            if shape.is_bytes
            else PagedRoom(cuda, of, group.blocks_of(store_tokens), shape)
            for group, of, shape in zip(groups, arrays, shapes, strict=True)
        ]
        slot_bytes = sum(room.slot_bytes for room in self.rooms)
        self.slot_count = bytes_max // slot_bytes
        if self.slot_count == 0:
            raise InvalidArgumentError(
                f"kv_connector_extra_config: staging_bytes is {bytes_max}, and one block of"
                f" {store_tokens} tokens takes {slot_bytes} on the device"
            )
        for room in self.rooms:
            room.allocate(self.slot_count, self.stream)
        self._lock = threading.Lock()
        self._next = self._used = 0  # guarded by _lock

    def take(self, count: int) -> list[int]:
        """Takes the given number of slots, or fewer if fewer are free."""
        with self._lock:
            count = min(count, self.slot_count - self._used)
            slots = [(self._next + i) % self.slot_count for i in range(count)]
            self._next, self._used = (self._next + count) % self.slot_count, self._used + count
        return slots

    def give_back(self, count: int) -> None:
        """Gives back the oldest slots."""
        with self._lock:
            self._used -= count

    def copy(self, copies: Sequence[Copies]) -> Any:
        """Puts copies of each group on the engine's stream. Returns a mark after them."""
        numbers = self.cuda.numbers([block for of in copies for _, blocks in of for block in blocks])
        first = 0
        for room, of in zip(self.rooms, copies, strict=True):
            end = first + sum(len(blocks) for _, blocks in of)
            room.copy([slot for slot, _ in of], numbers[first:end])
            first = end
        return self.cuda.engine.mark()


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the count of each run of consecutive numbers."""
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[begin], i - begin
            begin = i
