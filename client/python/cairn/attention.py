# SPDX-License-Identifier: Apache-2.0
"""Attention on a CUDA device to blocks that stay encoded there.

    images = DeviceImages(space, device=0)
    images.append(keys, stream=stream, lease=match.lease)   # how many are there, without a gap
    plan = AttendPlan(space, [Job(images, layer=3, queries=q, outputs=o, log_sums=l, scale=s,
                                  tail=Tail(cache, blocks, tokens_max=64))], stream=stream)
    plan.launch(stream)          # each step; a graph can be captured of it
    …                            # the stream is over
    plan.check()

Arrays are on the device and are passed by DLPack. Streams are integers; 0 is the default stream, of
which no graph can be captured. docs/internals/kernels.md lists the recipes that support attention.
For other recipes UnimplementedError says that the blocks must be decoded first. It is also raised
without device kernels; without a device UnavailableError is raised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi, _ffi
from ._handle import Handle, handle_within
from .errors import InvalidArgumentError
from .paged import PagedCache
from .space import Space
from .tensors import Tensor, contiguous, stream_address
from .transfer import Part, check_key

LEASE_BYTES = 16


class DeviceImages:
    """A slice of consecutive blocks of one sequence, on a device. A context manager. After `close`,
    the images stay on the device until the plans that use them are closed, too."""

    def __init__(self, space: Space, *, device: int = 0, part: Part | None = None) -> None:
        self.device = device
        self.dtype = space.spec.dtype
        self.group = (part or Part()).group
        address = ctypes.c_void_p()
        wanted = (part or Part()).native()
        with space._handle.use() as open_space:
            _ffi.check(
                _ffi.library().cairn_device_images_open(
                    open_space, device, ctypes.byref(wanted), ctypes.byref(address)
                )
            )
        self._handle = handle_within(
            space._handle,
            self,
            "set of images",
            address.value or 0,
            _ffi.library().cairn_device_images_close,
        )
        geometry = space.spec.groups[self.group]
        self.k_dim, self.v_dim = geometry.k_dim, geometry.v_dim  # latents: v_dim is 0

    def append(
        self,
        wanted: Sequence[bytes],
        *,
        stream: int,
        lease: bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Gets blocks, verifies them, and appends them. Returns the number of blocks up to the
        first miss. The copies run on the stream and are complete when this returns. If it raises,
        blocks before the failure are appended; len() counts them."""
        keys = b"".join(check_key("a key", key) for key in wanted)
        if lease is not None and len(lease) != LEASE_BYTES:
            raise InvalidArgumentError(f"lease has {len(lease)} bytes, expected {LEASE_BYTES}")
        appended = ctypes.c_size_t()
        place, limit = stream_address(stream), _ffi.milliseconds(timeout)
        with self._handle.use() as images:
            _ffi.check(
                _ffi.library().cairn_device_images_append(
                    images, keys, len(wanted), lease, place, limit, ctypes.byref(appended)
                )
            )
        return appended.value

    def __len__(self) -> int:
        count = ctypes.c_size_t()
        with self._handle.use() as images:
            _ffi.check(_ffi.library().cairn_device_images_count(images, ctypes.byref(count)))
        return count.value

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> DeviceImages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Tail:
    """Tokens in an engine's cache on the device that are in no block yet.

    blocks: int32, the engine's blocks in order; a negative block skips its tokens. tokens: int32,
    the number of tokens, read at each launch; None means `tokens_max`. ends_with_queries: the query
    tokens are the last tokens, and each reads only tokens up to itself."""

    cache: PagedCache
    blocks: Any
    tokens_max: int
    tokens: Any | None = None
    first_token: int = 0
    ends_with_queries: bool = False


@dataclass(frozen=True)
class Job:
    """Attention of query tokens of a sequence at a layer of the images' group.

    queries: [tokens, query heads, k_dim] in the space's dtype, after RoPE. outputs: float32
    [tokens, query heads, v_dim]. log_sums: float32 [tokens, query heads], for merging outputs with
    others. heads: KV heads; None means all."""

    images: DeviceImages
    layer: int
    queries: Any
    outputs: Any
    log_sums: Any
    scale: float
    heads: range | None = None
    tail: Tail | None = None


class AttendPlan:
    """A plan for jobs on one device. It stays valid until images are appended or arrays move. It
    keeps arrays alive until it is dropped, and images until it is closed. A context manager."""

    def __init__(self, space: Space, jobs: Sequence[Job], *, stream: int) -> None:
        devices = {job.images.device for job in jobs}
        if len(devices) != 1:
            raise InvalidArgumentError("the jobs are of one device, and there is one at least")
        (self._device,) = devices
        self._held: list[Any] = []
        kept: list[Handle] = []  # of the images
        natives = (_abi.AttendJob * len(jobs))()
        address = ctypes.c_void_p()

        def let_go() -> None:
            for images in kept:
                images.let_go()

        def close(closed: int) -> None:
            _ffi.library().cairn_attend_close(closed)
            let_go()

        try:
            for native, job in zip(natives, jobs, strict=True):
                native.struct_bytes = ctypes.sizeof(_abi.AttendJob)
                with job.images._handle.use() as images:
                    native.images = images
                    job.images._handle.keep()
                    kept.append(job.images._handle)
                self._fill(native, job)
            with space._handle.use() as open_space:
                _ffi.check(
                    _ffi.library().cairn_attend_open(
                        open_space,
                        self._device,
                        natives,
                        len(jobs),
                        stream_address(stream),
                        ctypes.byref(address),
                    )
                )
        except BaseException:
            let_go()
            raise
        self._handle = handle_within(space._handle, self, "plan", address.value or 0, close)

    def launch(self, stream: int) -> None:
        """Puts the kernels on the stream. Neither allocates nor waits."""
        with self._handle.use() as plan:
            _ffi.check(_ffi.library().cairn_attend_launch(plan, stream_address(stream)))

    def check(self) -> None:
        """Raises an error if an image or a tail is invalid; the outputs of its sequence are then
        unspecified. Call it when the stream has completed, else it raises FailedPreconditionError.
        Launches by a captured graph are not tracked: call it after they have completed."""
        with self._handle.use() as plan:
            _ffi.check(_ffi.library().cairn_attend_check(plan))

    def close(self) -> None:
        """Waits for the launches."""
        self._handle.close()

    def __enter__(self) -> AttendPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _array(self, what: str, array: Any, dtype: str, axes: int) -> Tensor:
        tensor = contiguous(what, array, may_be_cuda=True)
        if tensor.cuda_device != self._device:
            raise InvalidArgumentError(f"{what} does not lie on CUDA device {self._device}")
        if len(tensor.shape) != axes:
            raise InvalidArgumentError(f"{what} has {len(tensor.shape)} axes, expected {axes}")
        if dtype in ("float32", "int32"):
            if tensor.dtype != dtype:
                raise InvalidArgumentError(f"{what} has dtype {tensor.dtype}, expected {dtype}")
        else:
            tensor.require(what, dtype, is_target=False)
        self._held.append(tensor)
        return tensor

    def _fill(self, native: _abi.AttendJob, job: Job) -> None:
        queries = self._array("queries", job.queries, job.images.dtype, 3)
        outputs = self._array("outputs", job.outputs, "float32", 3)
        log_sums = self._array("log_sums", job.log_sums, "float32", 2)
        rows = queries.shape[:2]
        if outputs.shape[:2] != rows or log_sums.shape != rows:
            raise InvalidArgumentError(
                f"queries are {rows[0]} tokens of {rows[1]} heads; outputs and log_sums differ"
            )
        for what, array, dim in (
            ("queries", queries, job.images.k_dim),
            ("outputs", outputs, job.images.v_dim),
        ):
            if dim not in (0, array.shape[2]):
                raise InvalidArgumentError(f"{what} have rows of {array.shape[2]}, expected {dim}")
        self._held.append(job)
        native.layer = _ffi.unsigned("layer", job.layer)
        if job.heads is not None:
            part = Part(heads=job.heads).native()
            native.head_first, native.head_count = part.head_first, part.head_count
        native.query_tokens, native.query_heads = rows
        native.v_dim = outputs.shape[2]
        native.scale = job.scale
        native.queries = queries.address
        native.outputs = outputs.address
        native.log_sums = log_sums.address
        if job.tail is not None:
            self._fill_tail(native, job.tail)

    def _fill_tail(self, native: _abi.AttendJob, tail: Tail) -> None:
        blocks = self._array("tail.blocks", tail.blocks, "int32", 1)
        native.tail = ctypes.pointer(tail.cache.native)
        native.tail_blocks = ctypes.cast(blocks.address, ctypes.POINTER(ctypes.c_int32))
        native.tail_block_count = blocks.shape[0]
        native.tail_first_token = _ffi.unsigned("tail.first_token", tail.first_token)
        native.tail_tokens_max = _ffi.unsigned("tail.tokens_max", tail.tokens_max)
        native.tail_ends_with_queries = 1 if tail.ends_with_queries else 0
        if tail.tokens is not None:
            tokens = self._array("tail.tokens", tail.tokens, "int32", 1)
            if tokens.shape != (1,):
                raise InvalidArgumentError(f"tail.tokens has {tokens.shape[0]} numbers, expected 1")
            native.tail_tokens = ctypes.cast(tokens.address, ctypes.POINTER(ctypes.c_int32))
