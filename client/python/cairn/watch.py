# SPDX-License-Identifier: Apache-2.0
"""What blocks come into a daemon's tiers and go, as `Client.events` and `Space.watch` tell it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from . import _abi, _ffi
from ._connection import Connection
from ._handle import Handle
from .errors import DeadlineExceededError, UnavailableError
from .keys import NO_PARENT
from .transfer import TIERS


@dataclass(frozen=True)
class BlockEvent:
    """A block has its first image in a tier (`is_stored`), or its last has gone from there.

    space: the fingerprint. Of one that is stored also its parent's key, None where it is not known,
    the position of its first token, and how many it has.
    """

    is_stored: bool
    tier: str
    space: bytes
    key: bytes
    parent: bytes | None
    first_position: int
    token_count: int


@dataclass(frozen=True)
class Position:
    """Where a watch is, to go on from there. Numbers have no gaps; with an epoch others begin."""

    epoch: int = 0
    next_sequence: int = 0


@dataclass(frozen=True)
class EventBatch:
    """is_reset: what was told before is void, and what there is now is not told: `Space.contains`
    says that. first_sequence: the next_sequence of the batch before, but in a reset."""

    is_reset: bool
    first_sequence: int
    position: Position
    events: list[BlockEvent]


class EventWatch:
    """An iterator of batches that never ends; one thread at a time uses it. The daemon waits for no
    reader: one that is too slow, or away for too long, gets a reset."""

    def __init__(
        self, connection: Connection, space: Handle | None, position: Position
    ) -> None:
        library, address = _ffi.library(), ctypes.c_void_p()
        with ExitStack() as used:
            native = used.enter_context(connection.handle.use())
            native_space = None if space is None else used.enter_context(space.use())
            _ffi.check(
                library.cairn_watch_open(
                    native,
                    native_space,
                    position.epoch,
                    position.next_sequence,
                    ctypes.byref(address),
                )
            )
            if space is not None:
                space.keep()  # it may be closed first

        def close(watch: int) -> None:
            library.cairn_watch_close(watch)
            if space is not None:
                space.let_go()

        self._connection = connection  # closes this before itself
        self._handle = Handle("watch", address.value or 0, close)
        connection.opened.add(self)

    def next(self, timeout: float | None = None) -> EventBatch | None:
        """The next batch; None: nothing came in that time. UnavailableError: the daemon is away;
        the next call goes on. ResourceExhaustedError: too many watch."""
        native = _abi.EventBatch()
        try:
            with self._handle.use() as watch:
                _ffi.check(
                    _ffi.library().cairn_watch_next(
                        watch, _ffi.milliseconds(timeout), ctypes.byref(native)
                    )
                )
                events = [_event(native.events[i]) for i in range(native.event_count)]
        except DeadlineExceededError:
            return None
        position = Position(native.epoch, native.next_sequence)
        return EventBatch(bool(native.reset), native.first_sequence, position, events)

    def __iter__(self) -> Iterator[EventBatch]:
        while True:
            try:
                batch = self.next(1.0)
            except UnavailableError:
                continue  # the client comes back by itself; a reset says what was missed
            if batch is not None:
                yield batch

    def close(self) -> None:
        self._handle.close()

    def __repr__(self) -> str:
        return f"<cairn.EventWatch{', closed' if self._handle.is_closed else ''}>"

    def __enter__(self) -> EventWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()


def _event(native: _abi.Event) -> BlockEvent:
    parent = bytes(native.parent)
    return BlockEvent(
        bool(native.stored),
        TIERS[native.tier],
        bytes(native.space),
        bytes(native.key),
        None if parent == NO_PARENT else parent,
        native.first_position,
        native.token_count,
    )
