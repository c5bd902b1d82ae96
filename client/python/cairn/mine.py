# SPDX-License-Identifier: Apache-2.0
"""Mines banks and profiles from KV in an engine's paged cache, on the CUDA device that has the
cache.

    texts = [Text(blocks)]                  # the engine's blocks of each, full ones
    space.install_bank(0, mine.bank(space, cache, texts, patterns=32))
    space.install_profile(0, mine.profile(space, cache, texts))

`bank` makes the same bank as `cairn.bank.mine` from the same tokens. `profile` makes the same
profile as a daemon from the same strips. Profiles of `cairn.profile` contain more about a model,
and need more input. Without device kernels UnimplementedError is raised, without a device
UnavailableError.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi, _ffi
from .errors import InvalidArgumentError
from .paged import PagedCache
from .space import Space
from .tensors import contiguous
from .transfer import Part


@dataclass(frozen=True)
class Text:
    """KV of a text: full blocks of the engine, in order; `paged.SKIPPED` skips the tokens of a
    block. first_position: position of the first token of the first block."""

    blocks: Sequence[int]
    first_position: int = 0


def bank(
    space: Space,
    cache: PagedCache,
    texts: Sequence[Text],
    *,
    patterns: int = 32,
    group: int = 0,
    timeout: float | None = None,
) -> bytes:
    """Returns the bank of a group. `cache` has all of its layers and heads. Skips blocks with one
    of the first four tokens of a chain, because patterns made from those tokens do harm."""
    sample = _sample(space, cache, texts, group, timeout)
    count = _ffi.unsigned("patterns", patterns)
    call = _ffi.library().cairn_mine_bank
    return _mined(space, lambda *ends: call(ends[0], ctypes.byref(sample), count, ends[1]))


def profile(
    space: Space,
    cache: PagedCache,
    texts: Sequence[Text],
    *,
    rates: Sequence[float] = (),
    q_squares: Any | None = None,
    group: int = 0,
    timeout: float | None = None,
) -> bytes:
    """Returns the profile of a group. A few thousand tokens suffice; 512 are usable. rates: in
    bits; none means 2.3, 3.0, 4.3 and the rate of the space's recipe. q_squares: float32 [layers,
    heads, dim] on the host, the mean of the squared query for each channel of K, after RoPE."""
    sample = _sample(space, cache, texts, group, timeout)
    tenths = array("H", [round(10 * rate) for rate in rates])
    at = (ctypes.c_uint16 * len(tenths)).from_buffer(tenths) if tenths else None
    squares, square_count = None, 0
    if q_squares is not None:
        tensor = contiguous("q_squares", q_squares)
        if tensor.dtype != "float32":
            raise InvalidArgumentError(f"q_squares has dtype {tensor.dtype}, expected float32")
        squares, square_count = tensor.address, tensor.bytes // tensor.itemsize
    call = _ffi.library().cairn_mine_profile
    return _mined(
        space,
        lambda *ends: call(
            ends[0], ctypes.byref(sample), at, len(tenths), squares, square_count, ends[1]
        ),
    )


def _sample(
    space: Space, cache: PagedCache, texts: Sequence[Text], group: int, timeout: float | None
) -> _abi.Sample:
    """ctypes keeps the memory alive that it points to."""
    cache.require(space, Part(group=group), is_target=False)
    natives = (_abi.SampleText * max(1, len(texts)))()
    for native, text in zip(natives, texts, strict=False):
        blocks = array("q", text.blocks)
        if blocks:
            native.blocks = (ctypes.c_int64 * len(blocks)).from_buffer(blocks)
        native.block_count = len(blocks)
        native.first_position = _ffi.unsigned("first_position", text.first_position, 64)
    return _abi.Sample(
        timeout_ms=_ffi.milliseconds(timeout),
        group=group,
        cache=ctypes.pointer(cache.native),
        texts=natives,
        text_count=len(texts),
    )


def _mined(space: Space, call: Any) -> bytes:
    library = _ffi.library()
    address = ctypes.c_void_p()
    with space._handle.use() as open_space:
        _ffi.check(call(open_space, ctypes.byref(address)))
    try:
        return ctypes.string_at(
            library.cairn_mined_data(address), library.cairn_mined_bytes(address)
        )
    finally:
        library.cairn_mined_free(address)
