# SPDX-License-Identifier: Apache-2.0
"""Puts and gets many blocks from and into an engine's paged KV cache, with one call. There is no
Python loop over blocks, layers or heads, and the GIL is released while bytes move.

    cache = PagedCache(layers, tokens_per_block=16, block_count=4096,
                       k=Placement(head=…, token=…, dim=…), v=Placement(offset=…, …))
    moved = get(space, cache, keys, block_table, lease=match.lease)
    moved.statuses                       # one per key; 0 is OK, 5 a miss

The engine's blocks may be smaller than the store's: `tokens_per_block` of the space is a multiple
of the cache's. A block table lists, for each key, that many of the engine's blocks.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi, _ffi
from .errors import InvalidArgumentError, NotDurableError
from .space import Space
from .tensors import contiguous, describe, stream_address
from .transfer import DURABILITIES, Names, Part, check_key, fill_names

SKIPPED = -1  # in a block table: a get skips the tokens of this block
OK, MISS = _abi.OK, _abi.NOT_FOUND
NOT_DURABLE = NotDurableError.code


@dataclass(frozen=True)
class Placement:
    """The layout of one plane (K, V) in a layer's array. Strides are bytes.

    offset: of the plane's first element. block: from one block to the next. If tokens_per_run
    (dims_per_run) is not 0, tokens (channels) form runs of that many, token_run (dim_run) bytes
    apart, as in tiles of a matrix unit. For a transposed K, the stride `token` is the size of one
    element.
    """

    block: int
    head: int
    token: int
    dim: int
    offset: int = 0
    tokens_per_run: int = 0
    token_run: int = 0
    dims_per_run: int = 0
    dim_run: int = 0

    def native(self, layers: Any, memory_bytes: int) -> _abi.PagedPlane:
        return _abi.PagedPlane(
            layers=layers,
            block_stride=self.block,
            head_stride=self.head,
            token_run_stride=self.token_run,
            token_stride=self.token,
            dim_run_stride=self.dim_run,
            dim_stride=self.dim,
            tokens_per_run=self.tokens_per_run,
            dims_per_run=self.dims_per_run,
            first_byte=-self.offset,
            end_byte=memory_bytes - self.offset,
        )


class PagedCache:
    """An engine's cache: one array per layer, all of the same shape, strides and dtype.

    The arrays are borrowed: they are kept alive, and described once. Nothing is written outside the
    memory that they span. They may be on a CUDA device: then `stream` is its stream, as an integer
    (`torch.cuda.current_stream().cuda_stream`; 0 is the default stream, which waits for all
    others). Images are then encoded and decoded on the device if the library has device kernels.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        *,
        tokens_per_block: int,
        block_count: int,
        k: Placement,
        v: Placement | None = None,
        stream: int | None = None,
    ) -> None:
        self._layers = [
            describe(f"layers[{i}]", layer, may_be_cuda=True) for i, layer in enumerate(layers)
        ]
        if len({(t.shape, t.strides, t.dtype, t.cuda_device) for t in self._layers}) != 1:
            raise InvalidArgumentError("the layers' shapes, strides, dtypes or devices differ")
        first = self._layers[0]
        is_missing = first.cuda_device is not None and stream is None
        if is_missing or (first.cuda_device is None and stream):
            raise InvalidArgumentError(
                "a cache on a CUDA device comes with a stream, and no other does"
            )
        if any(stride < 0 for stride in first.strides):
            raise InvalidArgumentError("the layers have negative strides")
        spans = zip(first.shape, first.strides, strict=True)
        span = sum((extent - 1) * stride for extent, stride in spans) + first.itemsize
        self.tokens_per_block = tokens_per_block
        self.block_count = block_count
        self.dtype = first.dtype
        self._pointers = [self._pointers_of(p) for p in ((k, v) if v is not None else (k,))]
        self.native = _abi.PagedCache(
            tokens_per_block=_ffi.unsigned("tokens_per_block", tokens_per_block),
            block_count=block_count,
            k=k.native(self._pointers[0], span),
        )
        if v is not None:
            self.native.v = v.native(self._pointers[1], span)
        if first.cuda_device is not None:
            self.native.device = _abi.DEVICE_CUDA
            self.native.device_number = first.cuda_device
            self.native.stream = stream_address(stream or 0)

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return (
            f"<cairn.PagedCache: {self.layer_count} layers, {self.block_count} blocks of"
            f" {self.tokens_per_block} tokens, {self.dtype}>"
        )

    def layers(self, first: int, count: int) -> PagedCache:
        """Returns a cache with some of its layers."""
        some = object.__new__(PagedCache)
        some.__dict__.update(self.__dict__)
        some._layers = self._layers[first : first + count]
        some.native = _abi.PagedCache.from_buffer_copy(self.native)
        some._pointers = []
        for plane, pointers in zip((some.native.k, some.native.v), self._pointers, strict=False):
            some._pointers.append((ctypes.c_void_p * count)(*pointers[first : first + count]))
            plane.layers = some._pointers[-1]
        return some

    def _pointers_of(self, placement: Placement) -> Any:
        addresses = [layer.address + placement.offset for layer in self._layers]
        return (ctypes.c_void_p * len(addresses))(*addresses)

    def require(self, space: Space, part: Part, is_target: bool) -> None:
        """Raises unless the arrays have the space's dtype (or its bits), and there is one per layer
        of `part`."""
        self._layers[0].require("the cache", space.spec.dtype, is_target)
        group = space.spec.groups[part.group]
        wanted = len(group.layer_indices if part.layers is None else part.layers)
        if wanted != self.layer_count:
            raise InvalidArgumentError(f"the cache has {self.layer_count} layers, not {wanted}")


@dataclass(frozen=True)
class Moved:
    """The result for each key. `statuses` are numbers of the library: OK, MISS or an error's.
    bytes: size of the KV moved, in source form. wire_bytes: bytes moved by gets, or the size of the
    images that the daemon has after puts. durabilities: for puts that asked to be durable, as in
    `PutResult`; blocks with `NOT_DURABLE` are stored nevertheless."""

    statuses: list[int]
    bytes: int
    wire_bytes: int
    durabilities: Sequence[str] = ()


def get(
    space: Space,
    cache: PagedCache,
    wanted: Sequence[bytes],
    blocks: Sequence[int],
    *,
    lease: bytes | None = None,
    part: Part | None = None,
    timeout: float | None = None,
) -> Moved:
    """Gets blocks into the cache, at `blocks`. If a key is not OK, the content of its blocks is
    unspecified."""
    request, held = _request(cache, wanted, blocks, part)
    cache.require(space, part or Part(), is_target=True)
    request.timeout_ms = _ffi.milliseconds(timeout)
    if lease is not None:
        request.lease[:] = lease
    return _move(_ffi.library().cairn_get_paged, space, cache, request, held)


def put(
    space: Space,
    cache: PagedCache,
    given: Sequence[bytes],
    blocks: Sequence[int],
    *,
    parent: bytes | None = None,
    first_position: int = 0,
    part: Part | None = None,
    is_derived: bool = False,
    is_durable: bool = False,
    names: Sequence[Names] = (),
    timeout: float | None = None,
) -> Moved:
    """Puts consecutive blocks of one chain from the cache. `parent` is the key before the first
    one, `first_position` the position of its first token. is_durable: as in `Space.put`, for each
    key. names: the engine's own names of each block, for events, or none."""
    request, held = _request(cache, given, blocks, part)
    cache.require(space, part or Part(), is_target=False)
    request.timeout_ms = _ffi.milliseconds(timeout)
    if parent is not None:
        request.parent[:] = check_key("parent", parent)
    request.first_position = _ffi.unsigned("first_position", first_position, 64)
    request.derived = 1 if is_derived else 0
    request.durable = 1 if is_durable else 0
    if names:
        if len(names) != len(given):
            raise InvalidArgumentError(f"there are {len(given)} keys and names of {len(names)}")
        natives = (_abi.Names * len(names))()
        request.names = natives
        memory = fill_names(list(zip(natives, names, strict=True)))
        held = (natives, memory, *held)  # the last ones are what the call sets
    return _move(_ffi.library().cairn_put_paged, space, cache, request, held)


def check_cuda(device: int) -> None:
    """Checks that caches on a CUDA device are supported. Raises UnimplementedError if the library
    has no device kernels, UnavailableError if the device does not exist."""
    _ffi.check(_ffi.library().cairn_check_device(_abi.DEVICE_CUDA, device))


def check_table(
    space: Space, cache: PagedCache, wanted: Sequence[bytes], blocks: Sequence[int]
) -> None:
    """Raises unless `blocks` has the number of the cache's blocks that the keys need."""
    ratio = space.spec.tokens_per_block // cache.tokens_per_block
    if not wanted or len(blocks) != ratio * len(wanted):
        raise InvalidArgumentError(
            f"there are {len(wanted)} keys and {len(blocks)} blocks of the engine, expected"
            f" {ratio} for each key"
        )


def gather(
    space: Space, cache: PagedCache, blocks: Sequence[int], target: Any, *, part: Part | None = None
) -> None:
    """Copies blocks of the cache to `target`, contiguous bytes, which puts of `source` accept. The
    engine can then reuse its blocks while those puts run. Does not call the daemon."""
    request, held = _request(cache, (), blocks, part)
    cache.require(space, part or Part(), is_target=False)
    place = contiguous("target", target, is_target=True)
    with space._handle.use() as address:
        _ffi.check(
            _ffi.library().cairn_gather_paged(
                address,
                ctypes.byref(cache.native),
                ctypes.byref(request),
                place.address,
                place.bytes,
            )
        )
    del held


def _request(
    cache: PagedCache, given: Sequence[bytes], blocks: Sequence[int], part: Part | None
) -> tuple[_abi.PagedRequest, tuple[Any, ...]]:
    """Returns the request, and the objects that keep its memory alive."""
    joined = b"".join(check_key("a key", key) for key in given)
    keys = ctypes.create_string_buffer(joined, len(joined) or 1)
    table = array("q", blocks)
    native = (ctypes.c_int64 * len(table)).from_buffer(table)
    statuses, durabilities = ((ctypes.c_int32 * max(1, len(given)))() for _ in range(2))
    request = _abi.PagedRequest(
        slice=(part or Part()).native(),
        keys=ctypes.addressof(keys),
        key_count=len(given),
        blocks=native,
        block_count=len(table),
        statuses=statuses,
        durabilities=durabilities,
    )
    return request, (keys, table, native, statuses, durabilities)


def _move(
    call: Any, space: Space, cache: PagedCache, request: _abi.PagedRequest, held: tuple[Any, ...]
) -> Moved:
    with space._handle.use() as address:
        _ffi.check(call(address, ctypes.byref(cache.native), ctypes.byref(request)))
    count = request.key_count
    durabilities = [DURABILITIES[number] for number in held[-1][:count]]
    return Moved(list(held[-2][:count]), request.bytes, request.wire_bytes, durabilities)
