# SPDX-License-Identifier: Apache-2.0
"""Moves the results of a step into the store. They are copied after the step and put by a thread
during the next steps. Blocks without room are dropped and counted. The engine does not wait.
"""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, perf_counter
from typing import Any

from .. import paged
from .._session import Session
from ..errors import Error
from ..space import Space
from ..transfer import Put
from .group import GroupPart
from .plan import Save, by_key
from .settings import Settings
from .squares import Squares
from .tap import Tap

SAY_SECONDS = 60.0  # between two log lines about blocks that were not saved


class Saves(abc.ABC):
    """Only the engine's thread calls it. count: adds amounts to the metrics."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        groups: Sequence[GroupPart],
        log: logging.Logger,
        count: Callable[..., None],
    ) -> None:
        self._session, self._settings, self._groups = session, settings, groups
        self._log, self._count = log, count
        self._puts = ThreadPoolExecutor(1, "cairn-put")
        self._unsaid = threading.Lock()
        self._unsaid_blocks = 0  # this and the next are guarded by _unsaid
        self._say_from = 0.0

    @abc.abstractmethod
    def stage(self, saves: Sequence[Save]) -> None:
        """Copies the blocks. After that, the engine may reuse its blocks."""

    def drain(self) -> None:
        """Waits until staged blocks are put or dropped. Each put has a deadline."""
        self._puts.submit(lambda: None).result()

    def close(self) -> None:
        """Puts staged blocks for the time that one put may take, then drops the rest."""
        ended = threading.Event()
        try:
            self._puts.submit(ended.set)
        # The interpreter ends: its pools have finished, and accept nothing more.
        except RuntimeError:
            return
        ended.wait(self._settings.save_timeout)
        self._puts.shutdown(cancel_futures=True)

    def _submit(self, put: Callable[..., None], *arguments: Any) -> None:
        self._puts.submit(put, *arguments).add_done_callback(self._settle)

    def _settle(self, put: Future[None]) -> None:
        if not put.cancelled() and put.exception() is not None:
            self._log.error("cairn: a block was not saved", exc_info=put.exception())

    def _say(self, blocks: int, reason: object) -> None:
        """Logs that blocks of the engine were not saved: at once for the first, then every
        SAY_SECONDS, with the number since the last line."""
        with self._unsaid:
            self._unsaid_blocks += blocks
            now = monotonic()
            if now < self._say_from:
                return
            self._say_from = now + SAY_SECONDS
            blocks, self._unsaid_blocks = self._unsaid_blocks, 0
        self._log.warning("cairn: %d blocks were not saved: %s", blocks, reason)

    def _drop(self, save: Save, index: int) -> None:
        """Counts the blocks from that key on as dropped. Blocks after a missing block are not saved
        either, because nobody could find them."""
        tables = (table for of in save.blocks for table in by_key(of, len(save.keys))[index:])
        self._count(dropped_blocks=sum(b != paged.SKIPPED for table in tables for b in table))


class HostSaves(Saves):
    """Saves from host memory, through copies in host memory."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        groups: Sequence[GroupPart],
        log: logging.Logger,
        count: Callable[..., None],
        tap: Tap | None,
        squares: Squares | None,
    ) -> None:
        super().__init__(session, settings, groups, log, count)
        self._tap, self._squares = tap, squares
        self._lock = threading.Lock()
        self._staged_bytes = 0  # this and the next are guarded by _lock
        self._free: dict[int, list[bytearray]] = {}  # by length

    def stage(self, saves: Sequence[Save]) -> None:
        for save in saves:
            self._stage(save)

    def _stage(self, save: Save) -> None:
        for i in range(len(save.keys)):
            found = self._copies(save, i)
            if found is None:
                return self._drop(save, i)
            if found[0]:
                self._submit(self._put, *found)

    def _copies(self, save: Save, index: int) -> tuple[list[Put], list[int]] | None:
        """Returns puts of a block's groups from copies, and the number of engine blocks of each.
        None: there is no room."""
        puts: list[Put] = []
        counts: list[int] = []
        space = self._session.space
        for group, blocks in zip(self._groups, save.blocks, strict=True):
            table = by_key(blocks, len(save.keys))[index]
            if not group.is_put(table):
                continue
            slot = None if space is None else self._gather(space, group, table)
            if space is None or slot is None:
                for put in puts:
                    self._give_slot(put.source)
                return None
            parent = save.keys[index - 1] if index else save.parent
            position = save.first_position + index * space.spec.tokens_per_block
            key, is_derived = save.keys[index], save.is_derived
            put = Put(key, None, None, parent, position, group.part, is_derived, source=slot)
            if save.names:
                put.names = save.names[index]
            if self._squares is not None:
                put.query_squares = self._squares.take(key, group.part.group)
            puts.append(put)
            counts.append(len(table))
        return puts, counts

    def _gather(self, space: Space, group: GroupPart, table: list[int]) -> bytearray | None:
        """Returns a copy of a block. None: it is not saved."""
        slot = self._take_slot(space.source_bytes(group.part))
        if slot is None:
            return None
        try:
            group.gather(space, table, slot)
        except Error as error:
            self._say(len(table), error)
            self._give_slot(slot)
            return None
        return slot

    def _put(self, puts: list[Put], engine_blocks: list[int]) -> None:
        """engine_blocks: the number of engine blocks of each put."""
        errors: list[Error | None] = [None] * len(puts)
        started = perf_counter()
        try:
            space = self._session.space
            if space is not None:
                if self._tap is not None:
                    self._tap.before_puts(space)
                results = space.put_batch(puts, timeout=self._settings.save_timeout)
                if self._tap is not None:
                    self._tap.after_puts(puts[0].key)
                errors = [result.error for result in results]
                good = [result for result in results if result.error is None]
                self._count(
                    saved_blocks=_sum(engine_blocks, (error is None for error in errors)),
                    saved_bytes=sum(x.image_bytes for x in good if not x.is_duplicate),
                )
                if self._squares is not None:
                    told = (put.query_squares is not None for put in puts)
                    self._count(query_squares_blocks=_sum(engine_blocks, told))
        except Error as raised:
            errors = [raised] * len(puts)
        finally:
            for put in puts:
                self._give_slot(put.source)
            self._count(put_seconds=perf_counter() - started)
        failed = [error for error in errors if error is not None]
        if failed:
            dropped = _sum(engine_blocks, (error is not None for error in errors))
            self._count(dropped_blocks=dropped)
            self._say(dropped, failed[0])

    def _take_slot(self, slot_bytes: int) -> bytearray | None:
        """Returns None if the limit for staged bytes is reached. Then the save is dropped."""
        with self._lock:
            if self._staged_bytes + slot_bytes > self._settings.staging_bytes:
                return None
            self._staged_bytes += slot_bytes
            if free := self._free.get(slot_bytes):
                return free.pop()
        return bytearray(slot_bytes)

    def _give_slot(self, slot: bytearray) -> None:
        with self._lock:
            self._staged_bytes -= len(slot)
            self._free.setdefault(len(slot), []).append(slot)


def _sum(counts: Iterable[int], which: Iterable[bool]) -> int:
    return sum(count for count, is_wanted in zip(counts, which, strict=True) if is_wanted)
