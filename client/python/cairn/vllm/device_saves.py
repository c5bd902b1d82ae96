# SPDX-License-Identifier: Apache-2.0
"""Saves from a CUDA device. The blocks of a step are first copied on the device, in the order of
the engine's stream. The copies are then encoded and put.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import paged
from .._session import Session
from ..errors import Error, UnavailableError, from_code
from ..space import Space
from .group import GroupPart
from .plan import Save, by_key
from .saves import Saves
from .settings import Settings
from .staging import Staging, runs

PUT_KEYS = 16  # keys of one call: the library encodes eight while it sends the previous eight


class DeviceSaves(Saves):
    def __init__(
        self,
        session: Session,
        settings: Settings,
        groups: Sequence[GroupPart],
        log: logging.Logger,
        count: Callable[..., None],
        staging: Staging,
    ) -> None:
        super().__init__(session, settings, groups, log, count)
        self._staging = staging

    def stage(self, saves: Sequence[Save]) -> None:
        """Copies blocks of several saves together. Waits for nothing."""
        staging = self._staging
        is_open = self._session.space is not None and not staging.cuda.is_lost
        taken = [staging.take(len(save.keys) if is_open else 0) for save in saves]
        copies: list[list[tuple[int, list[int]]]] = [[] for _ in self._groups]
        for save, slots in zip(saves, taken, strict=True):
            if len(slots) < len(save.keys):
                self._drop(save, len(slots))
            for of, group, tables in zip(copies, self._groups, _tables(save), strict=True):
                of += [
                    (slot, group.table(table))
                    for slot, table in zip(slots, tables, strict=False)
                    if group.is_put(table)
                ]
        if not any(copies):
            return staging.give_back(sum(map(len, taken)))
        try:
            mark = staging.copy(copies)
        except Exception as error:
            staging.cuda.lose(error)
            mark = None
        for save, slots in zip(saves, taken, strict=True):
            for first in range(0, len(slots), PUT_KEYS):
                self._submit(self._put, save, first, slots[first : first + PUT_KEYS], mark)

    def _put(self, save: Save, first: int, slots: list[int], mark: Any) -> None:
        """Puts some keys of a save, from `first` on. They were copied to slots before the mark."""
        started, saved, wanted, reason = time.perf_counter(), 0, 0, ""
        deadline = time.monotonic() + self._settings.save_timeout
        try:
            for group, tables in enumerate(_tables(save)):
                asked = tables[first:][: len(slots)]
                part = self._groups[group]
                there = [i for i, table in enumerate(asked) if part.is_put(table)]
                ratio = len(save.blocks[group]) // len(save.keys)
                wanted += len(there) * ratio
                for begin, count in runs(there):
                    run = slots[begin : begin + count]
                    good, why = self._put_run(
                        save, group, first + begin, run, mark, deadline, ratio
                    )
                    saved, reason = saved + good * ratio, reason or why
        # An error of the whole call comes from the device, not from the daemon.
        except UnavailableError as error:
            self._staging.cuda.lose(error)
        except Error as error:
            reason = str(error)
        finally:
            self._staging.give_back(len(slots))
            self._count(
                put_seconds=time.perf_counter() - started,
                dropped_blocks=wanted - saved,
            )
        if reason:
            self._say(wanted - saved, reason)

    def _put_run(
        self,
        save: Save,
        group: int,
        first: int,
        slots: list[int],
        mark: Any,
        deadline: float,
        ratio: int,
    ) -> tuple[int, str]:
        """Puts as many keys as there are slots. Returns how many the store has taken, and the
        reason if it has not taken all. The reason is empty if it was already logged."""
        space: Space | None = self._session.space
        left = deadline - time.monotonic()
        if space is None or self._staging.cuda.is_lost:
            return 0, ""
        if left <= 0:
            return 0, "save_timeout was over"
        self._staging.stream.wait(mark)
        moved = self._staging.rooms[group].put(
            space,
            save.keys[first : first + len(slots)],
            slots,
            self._groups[group].part,
            left,
            parent=save.keys[first - 1] if first else save.parent,
            first_position=save.first_position + first * space.spec.tokens_per_block,
            is_derived=save.is_derived,
            names=save.names[first : first + len(slots)],
        )
        good = sum(status == paged.OK for status in moved.statuses)
        self._count(saved_blocks=good * ratio, saved_bytes=moved.wire_bytes)
        bad = [status for status in moved.statuses if status != paged.OK]
        return good, type(from_code(bad[0], "")).__name__ if bad else ""


def _tables(save: Save) -> list[list[list[int]]]:
    """Returns, for each group and key, the engine's blocks."""
    return [by_key(blocks, len(save.keys)) for blocks in save.blocks]
