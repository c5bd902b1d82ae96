# SPDX-License-Identifier: Apache-2.0
"""What the connector asks of torch where the KV cache lies on a CUDA device: streams, events that
order them, and copies of blocks. The only module that uses torch. Not run on a device: its tests
have a stand-in in torch's place.

Three streams, none of which the host waits for in the engine's thread:

    the engine's    its steps; and, behind the step that computed them, copies of full blocks
    the loads'      waits for what the engine's had when the load was planned, then decodes
    the puts'       waits for the copies, then encodes out of them

The loads' waits because the engine hands blocks out again while the step that had them before may
still run. The engine's waits for a load that has ended, in case it was given up while the device was
at work on it: what is computed into its blocks then comes later. The engine's may be the default one,
which the library takes no work on: the connector's are its own, and do not wait for that one by
themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from ..errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from ..paged import check_cuda


class Stream:
    """One of the connector's own, or the engine's. Thread-safe. What fails loses the device."""

    def __init__(self, cuda: Cuda, stream: Any) -> None:
        self._cuda, self._stream = cuda, stream
        self.number: int = stream.cuda_stream  # as `PagedCache` wants it

    def mark(self) -> Any:
        """Of what has been put on it so far. None: the device is lost."""
        try:
            return self._stream.record_event()
        except Exception as error:
            return self._cuda.lose(error)

    def wait(self, mark: Any) -> None:
        """What is put on it from now on comes after what was before the mark."""
        try:
            if mark is not None:
                self._stream.wait_event(mark)
        except Exception as error:
            self._cuda.lose(error)


class Cuda:
    """A device. Thread-safe.

    UnimplementedError: the library has no kernels for it. UnavailableError: it finds no device."""

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
        self.is_lost = False  # nothing is moved any more

    def lose(self, error: Exception) -> None:
        """It failed, for good. If that is so, the engine meets it by itself."""
        with self._lock:
            is_known, self.is_lost = self.is_lost, True
        if not is_known:
            self._log.error("cairn: nothing is cached any more, the engine goes on: %s", error)

    def open_stream(self) -> Stream:
        return Stream(self, self._torch.cuda.Stream(device=self._number))

    @property
    def engine(self) -> Stream:
        """The current stream of the calling thread, which is the engine's."""
        return Stream(self, self._torch.cuda.current_stream(self._number))

    def together(self, layers: Sequence[Any]) -> Any:
        """Arrays of one shape as one, whose first axis counts them. None: they do not lie in one
        piece of memory, evenly, as those of vLLM 0.32 do."""
        first = layers[0]
        offsets = [layer.storage_offset() for layer in layers]
        steps = {after - before for before, after in zip(offsets, offsets[1:], strict=False)} or {0}
        pieces = {layer.untyped_storage().data_ptr() for layer in layers}
        if len(pieces) != 1 or len(steps) != 1 or min(steps) < 0:
            return None
        shape, strides = (len(layers), *first.shape), (*steps, *first.stride())
        return self._torch.as_strided(first, shape, strides, offsets[0])

    def allocate(self, like: Any, count: int, layers: int) -> Any:
        """An array of so many as `like`, one behind another, but of `count` blocks.
        ResourceExhaustedError: the device has no room for it."""
        torch, shape = self._torch, [count, *like.shape[1:]]
        try:
            with torch.inference_mode(False):  # it is written to in and out of that mode
                return torch.empty([layers, *shape], dtype=like.dtype, device=like.device)
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceExhaustedError(
                f"CUDA device {self._number} has no room for staging_bytes: {error}"
            ) from None

    def numbers(self, values: Sequence[int]) -> Any:
        """An array of them, on its way to the device."""
        pinned = self._torch.tensor(values, dtype=self._torch.int64, pin_memory=True)
        return pinned.to(f"cuda:{self._number}", non_blocking=True)

    def copy_blocks(self, source: Any, axis: int, blocks: Any, target: Any, first: int) -> None:
        """Those blocks, an array of numbers, to the target's from `first` on: put on the current
        stream, as the numbers are. axis: the one that counts blocks."""
        place = target.narrow(axis, first, blocks.shape[0])
        self._torch.index_select(source, axis, blocks, out=place)
