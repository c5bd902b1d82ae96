# SPDX-License-Identifier: Apache-2.0
"""Objects whose elements have a known type, but an order that only their engine knows. They are
rows of a space, which `exact` codes without loss. A wrong type makes images larger, but never
changes the bytes.

The columns of rows should be channels, because `exact` chooses a table for each column. This is the
case if a row is a multiple of the engine's own row (for one token, heads times channels). Such rows
are a power of two times a small odd number. Among the rows that divide the object, the one with the
largest such factors is chosen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from .errors import InvalidArgumentError
from .keys import DTYPE_BYTES, Group, checked_dtype
from .transfer import PutResult

_DIM_MIN, _DIM_MAX = 16, 2048  # channels of a row
_POWER_MAX = 1024  # largest power of two in a row; longer rows would mix several layers
_TILE_ROWS = (128, 256, 512, 1024, 64, 32, 16)  # rows of a tile; whole strips of 128 are best
_TILES_MAX = 1024  # layers of a group


def rows_of(object_bytes: int, dtype: str) -> tuple[Group, int] | None:
    """Returns the group of a space for objects of that length, and their tokens. None: the length
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
    """Returns the lengths of rows that divide `count` elements, the best first."""

    def worth(dim: int) -> tuple[int, int, int]:
        power = dim & -dim
        return min(power, _POWER_MAX), dim // power, -dim

    dims = [dim for dim in range(_DIM_MIN, _DIM_MAX + 1) if count and count % dim == 0]
    return sorted(dims, key=worth, reverse=True)


class Elements:
    """The kept objects of one engine, and the saved bytes. dtype: the type of their elements; None:
    they are stored as bytes."""

    def __init__(self, where: str, dtype: str | None, log: logging.Logger) -> None:
        """Raises InvalidArgumentError, which names the dtype, if spaces do not support it. where:
        the option with the dtype."""
        try:
            self.dtype = None if dtype is None else checked_dtype(dtype)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: {error}") from None
        self.recipe = "raw" if self.dtype is None else "exact"
        self._log = log
        self._lock = threading.Lock()  # guards all below
        self._objects = self._bytes = self._kept = 0
        self._said = 1  # number of objects after which the next line is logged

    def group_of(self, object_bytes: int, tokens: int) -> tuple[Group, int]:
        """Returns the group of a space for such objects, and its tokens. For bytes, these are
        `tokens`."""
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
        """Counts stored objects. Logs the saved bytes, at the first object and at each doubling."""
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
