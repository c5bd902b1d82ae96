# SPDX-License-Identifier: Apache-2.0
"""Moves states, and rows of an index, to and from a CUDA device. The library has no kernels for
bytes. They are copied between the device and page-locked host memory, on the streams that K and V
use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..paged import SKIPPED
from ..transfer import Part
from .cuda import Cuda, Move, Stream
from .group import BytesPart


class DeviceBytes(BytesPart):
    """stream: the stream of loads. When `get` returns, the load is on the device."""

    def __init__(
        self,
        cuda: Cuda,
        stream: Stream,
        arrays: Sequence[Any],
        block_bytes: int,
        part: Part,
        split: int,
        is_writer: bool = True,
        tokens: int = 0,
    ) -> None:
        super().__init__(arrays, block_bytes, part, split, is_writer, tokens)
        self._cuda, self._stream, self._arrays = cuda, stream, arrays

    def _room(self, count: int) -> Any:
        return self._cuda.host(count)

    def _place(self, blocks: Sequence[tuple[list[int], Any]]) -> None:
        moves = []
        for table, source in blocks:
            wanted = [i for i, block in enumerate(table) if block != SKIPPED]
            if wanted:
                moves.append(Move(source, len(table), wanted, [table[i] for i in wanted]))
        self._stream.write(moves, self._arrays)
