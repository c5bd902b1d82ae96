# SPDX-License-Identifier: Apache-2.0
"""Gets blocks into an engine's paged cache layer by layer: an engine computes with the first layers
while later ones are being transferred.

    transfer = layerwise.get(space, cache, keys, block_table, lease=match.lease)
    for layer in range(cache.layer_count):
        good = transfer.wait_layer(layer, 1.0)  # how many of the keys, from the first on, are there
        …
    moved = transfer.result()                   # or: await transfer

Blocks that the daemon stores as images of all layers are sent in steps of several layers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

from . import paged
from .errors import DeadlineExceededError, Error
from .space import Space
from .transfer import Part

CANCELLED, DEADLINE_EXCEEDED = 1, 4
TIMEOUT_SECONDS = 2.0  # as for a get

log = logging.getLogger("cairn.layerwise")


def get(
    space: Space,
    cache: paged.PagedCache,
    wanted: Sequence[bytes],
    blocks: Sequence[int],
    *,
    lease: bytes | None = None,
    part: Part | None = None,
    timeout: float = TIMEOUT_SECONDS,
    layers_per_step: int = 1,
) -> Transfer:
    """Like `paged.get`, but returns at once. timeout: for the whole transfer. The transfer may
    write to the cache's blocks until it has ended."""
    whole = part or Part()
    cache.require(space, whole, is_target=True)
    paged.check_table(space, cache, wanted, blocks)
    return Transfer(space, cache, list(wanted), list(blocks), lease, whole, timeout, layers_per_step)


class Transfer:
    """Thread-safe. `fileno` is an eventfd: it is readable once more layers are there or the
    transfer has ended."""

    def __init__(
        self,
        space: Space,
        cache: paged.PagedCache,
        wanted: list[bytes],
        blocks: list[int],
        lease: bytes | None,
        part: Part,
        timeout: float,
        layers_per_step: int,
    ) -> None:
        self._space, self._cache, self._lease, self._part = space, cache, lease, part
        self._wanted, self._blocks = wanted, blocks
        self._deadline = time.monotonic() + timeout
        self._step = max(1, layers_per_step)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._statuses = [paged.OK] * len(wanted)  # this and all below: guarded by _changed
        self._bytes = self._wire_bytes = 0
        self._layers = 0  # layers that are complete
        self._is_cancelled = False
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="cairn-layers", daemon=True)
        self._thread.start()

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            os.close(self._event)

    def __repr__(self) -> str:
        return f"<cairn.layerwise.Transfer: {self._over} of {self._cache.layer_count} layers>"

    def fileno(self) -> int:
        return self._event

    def poll(self) -> int:
        """Returns the number of complete layers. For these, `wait_layer` returns at once."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        return self._over

    @property
    def _over(self) -> int:
        with self._changed:
            return self._cache.layer_count if self._is_over else self._layers

    @property
    def is_over(self) -> bool:
        with self._changed:
            return self._is_over

    def wait_layer(self, layer: int, timeout: float | None = None) -> int:
        """Returns the number of keys, from the first on, that have this layer and all earlier ones
        in the cache. Raises DeadlineExceededError if that is unknown after `timeout`."""
        with self._changed:
            known = self._changed.wait_for(lambda: self._is_over or self._layers > layer, timeout)
            if not known:
                raise DeadlineExceededError(f"layer {layer} did not come in {timeout} s")
            bad = (i for i, status in enumerate(self._statuses) if status != paged.OK)
            return next(bad, len(self._statuses))

    def cancel(self) -> None:
        """Starts no more transfers. Running transfers still write to their blocks: `result` waits
        for them."""
        with self._changed:
            self._is_cancelled = True

    def result(self) -> paged.Moved:
        """Waits until nothing writes to the blocks any more, at most until the timeout."""
        self._thread.join()
        with self._changed:
            return paged.Moved(list(self._statuses), self._bytes, self._wire_bytes)

    def __await__(self) -> Generator[Any, None, paged.Moved]:
        """Awaits the result in the running loop. Only one task at a time may wait."""
        return self._wait_over().__await__()

    async def _wait_over(self) -> paged.Moved:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        loop.add_reader(self._event, woken.set)
        try:
            while not self.is_over:
                await woken.wait()
                woken.clear()
                self.poll()  # drains the eventfd
        finally:
            loop.remove_reader(self._event)
        return self.result()

    # --------------------------------------------------------------------------- on its thread

    def _run(self) -> None:
        count, failure = self._cache.layer_count, 0
        try:
            for first in range(0, count, self._step):
                failure = self._move(first, min(self._step, count - first))
                if failure:
                    break
        except Error as error:
            failure = error.code
            log.warning("cairn: layers from %d on did not come: %s", self._layers, error)
        except Exception:  # waiting callers must not hang
            failure = 2
            log.exception("cairn: layers from %d on did not come", self._layers)
        with self._changed:
            if failure:
                self._statuses = [status or failure for status in self._statuses]
            self._is_over = True
            self._changed.notify_all()
        os.eventfd_write(self._event, 1)

    def _move(self, first: int, count: int) -> int:
        """Moves some layers of the keys that have not failed. Returns a status other than OK if no
        more must be moved."""
        left = self._deadline - time.monotonic()
        with self._changed:
            good = [i for i, status in enumerate(self._statuses) if status == paged.OK]
            if self._is_cancelled:
                return CANCELLED
        if left <= 0:
            return DEADLINE_EXCEEDED
        if good:
            ratio = len(self._blocks) // len(self._wanted)
            base = self._part.layers.start if self._part.layers is not None else 0
            moved = paged.get(
                self._space,
                self._cache.layers(first, count),
                [self._wanted[i] for i in good],
                [block for i in good for block in self._blocks[i * ratio : (i + 1) * ratio]],
                lease=self._lease,
                part=Part(
                    range(base + first, base + first + count), self._part.heads, self._part.group
                ),
                timeout=min(60.0, left),
            )
        with self._changed:
            if good:
                for i, status in zip(good, moved.statuses, strict=True):
                    self._statuses[i] = status
                self._bytes += moved.bytes
                self._wire_bytes += moved.wire_bytes
            self._layers = first + count
            self._changed.notify_all()
        os.eventfd_write(self._event, 1)
        return 0
