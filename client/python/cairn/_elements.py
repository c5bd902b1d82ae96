# SPDX-License-Identifier: Apache-2.0
"""Objects whose elements have a known type, but lie in an order that only their engine knows: rows of
a space, which `exact` codes without loss. A wrong type makes larger images, and never other bytes.

Columns of rows should be channels, as `exact` chooses a table for each of them. A row that is a
multiple of the engine's own (of one token its heads times their channels) makes them so. Such rows are
powers of two times a small odd number: the row is taken that has most of both and divides the object.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from .errors import InvalidArgumentError
from .keys import DTYPE_BYTES, Group, checked_dtype
from .transfer import PutResult

_DIM_MIN, _DIM_MAX = 16, 2048  # channels of a row
_POWER_MAX = 1024  # of two, in a row: tiles of longer rows are of several layers
_TILE_ROWS = (128, 256, 512, 1024, 64, 32, 16)  # rows of a tile: best whole strips, of 128
_TILES_MAX = 1024  # layers of a group


def rows_of(object_bytes: int, dtype: str) -> tuple[Group, int] | None:
    """The group of a space whose blocks are objects of that length, and their tokens. None: the length
    is no whole number of such rows."""
    count, rest = divmod(object_bytes, DTYPE_BYTES[dtype])
    if rest or not count:
        return None
    for rows in _TILE_ROWS:
        for dim in _dims(count // rows if count % rows == 0 else 0):
            tiles = count // rows // dim
            if tiles <= _TILES_MAX:
                return Group("latent", tiles, kv_heads=1, k_dim=dim), rows
    return None


def _dims(count: int) -> list[int]:
    """Lengths of rows that divide `count` elements, the best first."""

    def worth(dim: int) -> tuple[int, int, int]:
        power = dim & -dim
        return min(power, _POWER_MAX), dim // power, -dim

    dims = [dim for dim in range(_DIM_MIN, _DIM_MAX + 1) if count and count % dim == 0]
    return sorted(dims, key=worth, reverse=True)


class Elements:
    """What is kept of objects of one engine, and what it gained. dtype: of their elements; None: they
    are bytes, kept as they are."""

    def __init__(self, where: str, dtype: str | None, log: logging.Logger) -> None:
        """InvalidArgumentError names a dtype that spaces do not know. where: the option it was given in."""
        try:
            self.dtype = None if dtype is None else checked_dtype(dtype)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: {error}") from None
        self.recipe = "raw" if self.dtype is None else "exact"
        self._log = log
        self._lock = threading.Lock()  # guards all below
        self._objects = self._bytes = self._kept = 0
        self._said = 1  # objects after which the next line is logged

    def group_of(self, object_bytes: int, tokens: int) -> tuple[Group, int]:
        """The group of a space of such objects, and its tokens: `tokens` where they are bytes."""
        found = None if self.dtype is None else rows_of(object_bytes, self.dtype)
        if found is not None:
            return found
        if self.dtype is not None:
            self._log.warning(
                "cairn: objects of %d bytes are no whole rows of %s: they are kept as they are",
                object_bytes,
                self.dtype,
            )
        return Group("state", 1, state_bytes=object_bytes), tokens

    def note(self, object_bytes: int, results: Sequence[PutResult]) -> None:
        """Counts what was stored; says what was gained, at the first object and at each doubling."""
        if self.dtype is None:
            return
        kept = [one.image_bytes for one in results if one.error is None and not one.is_duplicate]
        with self._lock:
            self._objects += len(kept)
            self._bytes += object_bytes * len(kept)
            self._kept += sum(kept)
            objects, ratio = self._objects, self._bytes / max(1, self._kept)
            if objects < self._said:
                return
            self._said = 2 * objects
        self._log.info(
            "cairn: %d objects as %s: kept in 1/%.2f of their bytes%s",
            objects,
            self.dtype,
            ratio,
            ", so their elements are of another type" if ratio < _POOR else "",
        )


_POOR = 1.05
