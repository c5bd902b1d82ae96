# SPDX-License-Identifier: Apache-2.0
"""Asks the store what there is, on a thread of its own: the scheduler never waits for an answer."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass

from .._session import Session
from ..errors import Error


@dataclass(frozen=True)
class Found:
    """block_count: of the longest prefix that is there, leased."""

    block_count: int = 0
    lease: bytes | None = None


class Lookup:
    """One question. `found` is None until it is answered, or `Lookups.poll` sees it is late."""

    def __init__(self, keys: list[bytes], deadline: float) -> None:
        self.keys, self.deadline = keys, deadline
        self.found: Found | None = None
        self.is_dropped = False  # nobody wants the answer: its lease goes back


class Lookups:
    def __init__(self, session: Session, timeout: float, log: logging.Logger) -> None:
        self._session, self._timeout, self._log = session, timeout, log
        self._work: queue.SimpleQueue[Lookup | bytes | None] = queue.SimpleQueue()
        self._answered = threading.Condition()
        self.pending_count = 0  # guarded by _answered
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="cairn-lookup", daemon=True)
        self._thread.start()

    @property
    def is_lossless(self) -> bool:
        return self._session.is_lossless

    @property
    def is_open(self) -> bool:
        return self._session.space is not None

    def ask(self, keys: list[bytes]) -> Lookup:
        lookup = Lookup(keys, time.monotonic() + self._timeout)
        if not keys or self._session.space is None:
            lookup.found = Found()
            return lookup
        with self._answered:
            self.pending_count += 1
        self._work.put(lookup)
        return lookup

    def poll(self, lookup: Lookup) -> Found | None:
        """None: not known yet. When it is late it is a miss: the thread may be busy with others."""
        with self._answered:
            if lookup.found is None and time.monotonic() > lookup.deadline:
                lookup.found, lookup.is_dropped = Found(), True
            return lookup.found

    def drop(self, lookup: Lookup) -> None:
        """Nobody wants its answer any more."""
        with self._answered:
            lookup.is_dropped = True
            found = lookup.found
        if found is not None:
            self.release(found.lease)

    def release(self, lease: bytes | None) -> None:
        if lease is not None:
            self._work.put(lease)

    def yield_to(self, seconds: float) -> None:
        """Returns when a question is answered, or none is open, or the time is over: for a step in
        which the engine has nothing to compute, and would only ask again."""
        with self._answered:
            if self.pending_count:
                self._answered.wait(seconds)

    def close(self) -> None:
        """What is still asked is not, and leases end with the session."""
        self._is_closing = True
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._is_closing:
            if isinstance(work, bytes):
                self._release(work)
                continue
            found = self._match(work)
            with self._answered:
                is_dropped = work.is_dropped
                work.found = work.found or found
                self.pending_count -= 1
                self._answered.notify_all()
            if is_dropped and found.lease is not None:
                self._release(found.lease)

    def _match(self, lookup: Lookup) -> Found:
        space, left = self._session.space, lookup.deadline - time.monotonic()
        if space is None or left <= 0:  # those before it took its time
            return Found()
        try:
            match = space.match(lookup.keys, timeout=left)
        except Error as error:
            self._log.debug("cairn: a lookup failed, taken as a miss: %s", error)
            return Found()
        except Exception:  # whatever it is, the thread has to live
            self._log.exception("cairn: a lookup failed, taken as a miss")
            return Found()
        return Found(match.block_count, match.lease)

    def _release(self, lease: bytes) -> None:
        space = self._session.space
        try:
            if space is not None:
                space._release(lease)
        except Error as error:  # it expires, or ends with the session
            self._log.debug("cairn: a lease was not given back: %s", error)
        except Exception:
            self._log.exception("cairn: a lease was not given back")
