# SPDX-License-Identifier: Apache-2.0
"""Uses torch for KV caches on a CUDA device: streams, events that order them, and copies of blocks.
Only this module uses torch. It was not run on a device: its tests replace torch.

There are three streams. The host never waits for them in the engine's thread:

    engine   its steps; after a step, copies of the full blocks that it computed
    loads    waits for the engine's work at the time a load was planned, then decodes
    puts     waits for the copies, then encodes them

Loads must wait, because the engine reuses blocks while the step that used them before may still
run. The engine's stream waits for each ended load. A load that timed out may still write to its
blocks, and the engine's next results must come after it. The library does not accept the default
stream, which may be the engine's. The connector's own streams do not wait for the default stream by
themselves.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from ..paged import check_cuda


class Stream:
    """A stream of the connector, or the engine's. Thread-safe. After a failure, the device counts
    as lost."""

    def __init__(self, cuda: Cuda, stream: Any) -> None:
        self._cuda, self._stream = cuda, stream
        self.number: int = stream.cuda_stream  # as `PagedCache` expects it

    def mark(self) -> Any:
        """Marks the work that is on the stream now. None: the device is lost."""
        try:
            return self._stream.record_event()
        except Exception as error:
            return self._cuda.lose(error)

    def wait(self, mark: Any) -> None:
        """Makes later work on this stream wait for the work before the mark."""
        try:
            if mark is not None:
                self._stream.wait_event(mark)
        except Exception as error:
            self._cuda.lose(error)

    def write(self, moves: Sequence[Move], arrays: Sequence[Any]) -> None:
        """Copies blocks from host memory into the arrays of all layers, and waits until they are
        there. Raises UnavailableError if the device failed."""
        if moves:
            with self._cuda.running(self._stream):
                self._cuda.write(moves, arrays)

    def read(self, copies: Sequence[tuple[Any, int, int, Any]]) -> None:
        """Copies blocks to host memory, and waits until they are there. copies: for each layer an
        array, its first block, the number of blocks, and the target. Raises UnavailableError if the
        device failed."""
        with self._cuda.running(self._stream):
            for source, first, count, target in copies:
                part = source.narrow(1, first, count)
                target.view(source.dtype).reshape(part.shape).copy_(part, non_blocking=True)


@dataclass(frozen=True)
class Move:
    """source: blocks of all layers in page-locked host memory, layer by layer, `count` of each. The
    blocks with the numbers `wanted` go to `blocks` of the device's arrays."""

    source: Any
    count: int
    wanted: Sequence[int]
    blocks: Sequence[int]


class Cuda:
    """A device. Thread-safe.

    Raises UnimplementedError if the library has no kernels for it, UnavailableError if there is no
    device.
    """

    def __init__(self, number: int, log: logging.Logger) -> None:
        try:
            check_cuda(number)
        except UnimplementedError:
            raise UnimplementedError(
                f"the KV cache lies on CUDA device {number}, and libcairn.so is built without"
                " kernels for it: build it with the preset `gpu` (-DCAIRN_CUDA=ON) and install the"
                " wheel of that build, as docs/guides/vllm.md says"
            ) from None
        except UnavailableError as error:
            raise UnavailableError(
                f"the KV cache lies on CUDA device {number}, which libcairn.so does not find: {error}"
            ) from None
        import torch

        self._torch, self._number, self._log = torch, number, log
        self._lock = threading.Lock()
        self.is_lost = False  # nothing is moved from now on

    def lose(self, error: Exception) -> None:
        """Marks the device as lost permanently. The engine detects such a failure by itself."""
        with self._lock:
            is_known, self.is_lost = self.is_lost, True
        if not is_known:
            self._log.error("cairn: nothing is cached from now on, the engine goes on: %s", error)

    def open_stream(self) -> Stream:
        return Stream(self, self._torch.cuda.Stream(device=self._number))

    @property
    def engine(self) -> Stream:
        """Returns the current stream of the calling thread, which is the engine's."""
        return Stream(self, self._torch.cuda.current_stream(self._number))

    def together(self, layers: Sequence[Any]) -> Any:
        """Joins arrays of one shape into one array, whose first axis counts them. Returns None if
        they are not at even distances in one allocation. In vLLM 0.32, they are."""
        first = layers[0]
        offsets = [layer.storage_offset() for layer in layers]
        steps = {after - before for before, after in zip(offsets, offsets[1:], strict=False)} or {0}
        pieces = {layer.untyped_storage().data_ptr() for layer in layers}
        if len(pieces) != 1 or len(steps) != 1 or min(steps) < 0:
            return None
        shape, strides = (len(layers), *first.shape), (*steps, *first.stride())
        return self._torch.as_strided(first, shape, strides, offsets[0])

    def allocate(self, like: Any, count: int, layers: int) -> Any:
        """Returns an array for `count` blocks of each array of `like`, one after another. Raises
        ResourceExhaustedError if the device has no room."""
        torch, shape = self._torch, [count, *like.shape[1:]]
        try:
            with torch.inference_mode(False):  # it is used inside and outside inference mode
                return torch.empty([layers, *shape], dtype=like.dtype, device=like.device)
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceExhaustedError(
                f"CUDA device {self._number} has no room for staging_bytes: {error}"
            ) from None

    def numbers(self, values: Sequence[int]) -> Any:
        """Returns an array of the numbers, whose copy to the device has been started."""
        pinned = self._torch.tensor(values, dtype=self._torch.int64, pin_memory=True)
        return pinned.to(f"cuda:{self._number}", non_blocking=True)

    def host(self, count: int) -> Any:
        """Allocates page-locked host memory. Raises UnavailableError if there is none."""
        try:
            return self._torch.empty([count], dtype=self._torch.uint8, pin_memory=True)
        except Exception as error:
            raise UnavailableError(f"CUDA device {self._number}: {error}") from error

    @contextlib.contextmanager
    def running(self, stream: Any) -> Iterator[None]:
        """Work that is put on the current stream inside the context goes to `stream`. The engine's
        arrays may belong to its inference mode."""
        torch = self._torch
        try:
            with torch.inference_mode(True), torch.cuda.stream(stream):
                yield
            stream.synchronize()
        except Exception as error:
            raise UnavailableError(f"CUDA device {self._number}: {error}") from error

    def write(self, moves: Sequence[Move], arrays: Sequence[Any]) -> None:
        """Puts the copies on the current stream."""
        torch, whole, first = self._torch, self.together(arrays), arrays[0]
        for move in moves:
            staged = move.source.to(first.device, non_blocking=True).view(first.dtype)
            values = staged.reshape([len(arrays), move.count, *first.shape[1:]])
            numbers = self.numbers([*move.blocks, *move.wanted])
            blocks = numbers.narrow(0, 0, len(move.blocks))
            if len(move.wanted) < move.count:
                wanted = numbers.narrow(0, len(move.blocks), len(move.wanted))
                shape = [len(arrays), len(move.wanted), *first.shape[1:]]
                some = torch.empty(shape, dtype=first.dtype, device=first.device)
                torch.index_select(values, 1, wanted, out=some)
                values = some
            if whole is not None:
                whole.index_copy_(1, blocks, values)
                continue
            for i, array in enumerate(arrays):
                array.index_copy_(0, blocks, values[i])

    def copy_blocks(self, source: Any, axis: int, blocks: Any, target: Any, first: int) -> None:
        """Copies the blocks, an array of numbers, to the target from `first` on. The copies and the
        numbers are on the current stream. axis: the axis that counts blocks."""
        place = target.narrow(axis, first, blocks.shape[0])
        self._torch.index_select(source, axis, blocks, out=place)
