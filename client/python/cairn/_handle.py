# SPDX-License-Identifier: Apache-2.0
"""A handle of the library that cannot be used after it is closed, or in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from .errors import FailedPreconditionError


class _Call:
    """A call of the library that uses a handle: `with` gives the address."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle._begin()

    def __exit__(self, *exception: object) -> None:
        self._handle._end()


class Handle:
    """Thread-safe. `close` waits for the calls in progress, which all have deadlines."""

    def __init__(self, what: str, address: int, closer: Callable[[int], None]) -> None:
        self._what = what
        self._address = address
        self._closer = closer
        self._pid = os.getpid()
        self._lock = threading.RLock()  # let_go() may interrupt any method
        self._idle = threading.Condition(self._lock)
        self._call_count = 0
        self._keeper_count = 0
        self._is_ending = False  # closed, and no call is running
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def use(self) -> _Call:
        """Gives the address to a `with` block, for one call of the library."""
        return _Call(self)

    def _begin(self) -> int:
        self._refuse_after_fork()
        with self._lock:
            if self._is_closed:
                raise FailedPreconditionError(f"the {self._what} is closed")
            self._call_count += 1
        return self._address

    def _end(self) -> None:
        with self._lock:
            self._call_count -= 1
            if self._is_closed:  # close() waits
                self._idle.notify_all()

    def keep(self) -> None:
        """Makes `close` leave the address open until `let_go` is called."""
        with self._idle:
            self._keeper_count += 1

    def let_go(self) -> None:
        """Ends `keep`. May run in a finalizer, and so inside any other method."""
        with self._idle:
            self._keeper_count -= 1
            is_last = self._is_ending and self._keeper_count == 0
        if is_last:
            self._closer(self._address)

    def close(self) -> None:
        """Closes the handle; later calls do nothing. In a forked child only forgets the address,
        which the parent still owns."""
        if os.getpid() != self._pid:
            return
        with self._idle:
            if self._is_closed:
                return
            self._is_closed = True
            self._idle.wait_for(lambda: self._call_count == 0)
            self._is_ending = True
            is_last = self._keeper_count == 0
        if is_last:
            self._closer(self._address)

    def _refuse_after_fork(self) -> None:
        if os.getpid() != self._pid:
            raise FailedPreconditionError(
                f"this {self._what} belongs to process {self._pid} and cannot be used after fork"
                f" in process {os.getpid()}: start workers with spawn, or connect after the fork"
            )


def handle_within(
    parent: Handle, owner: object, what: str, address: int, closer: Callable[[int], None]
) -> Handle:
    """Returns a handle that keeps `parent` open until it is closed itself, or `owner` is closed."""

    def close(closed: int) -> None:
        closer(closed)
        parent.let_go()

    parent.keep()
    handle = Handle(what, address, close)
    weakref.finalize(owner, handle.close)
    return handle
