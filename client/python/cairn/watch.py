# SPDX-License-Identifier: Apache-2.0
"""Events: blocks that enter or leave a daemon's tiers, from `Client.events` and `Space.watch`."""

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

SNAPSHOTS = ("none", "follows", "page", "last_page")


@dataclass(frozen=True)
class BlockEvent:
    """A block that got its first image in a tier (`is_stored`), or lost its last image there.

    space: the fingerprint. engine_hash: the engine's own hash of the block (empty: unknown). If
    is_stored, the event also has the parent's key (None: unknown), the position of the block's
    first token, and its number of tokens; and, if writers sent them, the engine's hash of the
    block before it, and the ids of the block's tokens.
    """

    is_stored: bool
    tier: str
    space: bytes
    key: bytes
    parent: bytes | None
    first_position: int
    token_count: int
    engine_hash: bytes = b""
    engine_parent: bytes = b""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Position:
    """The position of a watch, from which another can continue. Numbers have no gaps; each epoch
    starts anew."""

    epoch: int = 0
    next_sequence: int = 0


@dataclass(frozen=True)
class EventBatch:
    """is_reset: discard everything known from earlier batches. first_sequence: next_sequence of the
    previous batch, except after a reset.

    snapshot: "follows" in a reset after which the daemon reports what is stored, in batches with
    "page" and, at the end, "last_page". A page shows a block as it was at the reset or later.
    After the last page and the events that follow, the reader knows exactly what is stored. In all
    other batches it is "none"; the contents are then unknown after a reset, but `Space.contains`
    tells them."""

    is_reset: bool
    first_sequence: int
    position: Position
    events: list[BlockEvent]
    snapshot: str = "none"


class EventWatch:
    """An endless iterator of batches. Only one thread may use it at a time. The daemon does not
    wait for readers: a reader that is too slow, or away for too long, gets a reset."""

    def __init__(
        self,
        connection: Connection,
        space: Handle | None,
        position: Position,
        snapshots: bool = False,
    ) -> None:
        library, address = _ffi.library(), ctypes.c_void_p()
        options = _abi.WatchOptions(
            snapshots=int(snapshots), epoch=position.epoch, next_sequence=position.next_sequence
        )
        with ExitStack() as used:
            native = used.enter_context(connection.handle.use())
            native_space = None if space is None else used.enter_context(space.use())
            _ffi.check(
                library.cairn_watch_open_with(
                    native, native_space, ctypes.byref(options), ctypes.byref(address)
                )
            )
            if space is not None:
                space.keep()  # the space may be closed before the watch

        def close(watch: int) -> None:
            library.cairn_watch_close(watch)
            if space is not None:
                space.let_go()

        self._connection = connection  # closes this watch before itself
        self._handle = Handle("watch", address.value or 0, close)
        connection.opened.add(self)

    def next(self, timeout: float | None = None) -> EventBatch | None:
        """Returns the next batch, or None if nothing arrived in time. Raises UnavailableError if
        the daemon is unreachable (the next call continues), ResourceExhaustedError if there are too
        many watchers."""
        native = _abi.EventBatch()
        try:
            with self._handle.use() as watch:
                _ffi.check(
                    _ffi.library().cairn_watch_next(
                        watch, _ffi.milliseconds(timeout), ctypes.byref(native)
                    )
                )
                count = native.event_count
                events = [_event(native.events[i], native.names[i]) for i in range(count)]
        except DeadlineExceededError:
            return None
        position = Position(native.epoch, native.next_sequence)
        snapshot = SNAPSHOTS[native.snapshot]
        return EventBatch(bool(native.reset), native.first_sequence, position, events, snapshot)

    def __iter__(self) -> Iterator[EventBatch]:
        while True:
            try:
                batch = self.next(1.0)
            except UnavailableError:
                continue  # the client reconnects by itself; a reset covers lost events
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


def _event(native: _abi.Event, names: _abi.Names) -> BlockEvent:
    parent = bytes(native.parent)
    return BlockEvent(
        bool(native.stored),
        TIERS[native.tier],
        bytes(native.space),
        bytes(native.key),
        None if parent == NO_PARENT else parent,
        native.first_position,
        native.token_count,
        ctypes.string_at(names.hash, names.hash_bytes) if names.hash_bytes else b"",
        ctypes.string_at(names.parent, names.parent_bytes) if names.parent_bytes else b"",
        tuple(names.tokens[: names.token_count]) if names.token_count else (),
    )
