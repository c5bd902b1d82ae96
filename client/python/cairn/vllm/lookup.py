# SPDX-License-Identifier: Apache-2.0
"""Looks up blocks in the store on its own thread, so that the scheduler never waits for an answer.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass

from .._session import Session
from ..errors import Error
from ..match import Match
from ..space import Space
from .hints import Hint, send


@dataclass(frozen=True)
class Found:
    """block_count: length of the longest stored prefix, which is leased."""

    block_count: int = 0
    lease: bytes | None = None


TOLD_AFTER = 32  # requests without a hit before a hint is logged


class Lookup:
    """One question. `found` is None until it is answered, or until `Lookups.poll` finds that it is
    late."""

    def __init__(self, keys: list[bytes], deadline: float) -> None:
        self.keys, self.deadline = keys, deadline
        self.found: Found | None = None
        self.is_dropped = False  # nobody needs the answer, so its lease is released


@dataclass(frozen=True)
class _Hinted:
    """A hint on the blocks of a prefix."""

    keys: list[bytes]
    hint: Hint


class Lookups:
    def __init__(self, session: Session, timeout: float, log: logging.Logger) -> None:
        self._session, self._timeout, self._log = session, timeout, log
        self._work: queue.SimpleQueue[Lookup | _Hinted | bytes | None] = queue.SimpleQueue()
        self._answered = threading.Condition()
        self.pending_count = 0  # guarded by _answered
        self._is_closing = self._is_hint_told = self._has_hit = False
        self._asked_count = 0
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
        """Returns None while there is no answer. A late answer counts as a miss, because the thread
        may be busy with other questions."""
        with self._answered:
            if lookup.found is None and time.monotonic() > lookup.deadline:
                lookup.found, lookup.is_dropped = Found(), True
            return lookup.found

    def drop(self, lookup: Lookup) -> None:
        """Marks a question whose answer nobody needs."""
        with self._answered:
            lookup.is_dropped = True
            found = lookup.found
        if found is not None:
            self.release(found.lease)

    def release(self, lease: bytes | None) -> None:
        if lease is not None:
            self._work.put(lease)

    def hint(self, keys: list[bytes], hint: Hint) -> None:
        """Tells the daemon how long the blocks are worth keeping. They need not be stored yet."""
        if keys and self._session.space is not None:
            self._work.put(_Hinted(keys, hint))

    def yield_to(self, seconds: float) -> None:
        """Returns when a question is answered, when none is open, or when the time is over. Call it
        in a step without work for the engine, which would otherwise only ask again."""
        with self._answered:
            if self.pending_count:
                self._answered.wait(seconds)

    def close(self) -> None:
        """Drops open questions. Leases end with the session."""
        self._is_closing = True
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._is_closing:
            if isinstance(work, bytes):
                self._release(work)
                continue
            if isinstance(work, _Hinted):
                self._hint(work)
                continue
            found = self._match(work)
            self._tell_of_misses(found)
            with self._answered:
                is_dropped = work.is_dropped
                work.found = work.found or found
                self.pending_count -= 1
                self._answered.notify_all()
            if is_dropped and found.lease is not None:
                self._release(found.lease)

    def _match(self, lookup: Lookup) -> Found:
        space, left = self._session.space, lookup.deadline - time.monotonic()
        if space is None or left <= 0:  # earlier questions took its time
            return Found()
        try:
            match = space.match(lookup.keys, timeout=left)
        except Error as error:
            self._log.debug("cairn: a lookup failed, taken as a miss: %s", error)
            return Found()
        except Exception:  # the thread must survive every error
            self._log.exception("cairn: a lookup failed, taken as a miss")
            return Found()
        self._prefetch(space, match)
        return Found(match.block_count, match.lease)

    def _tell_of_misses(self, found: Found) -> None:
        """Logs once how to find out why there are no hits."""
        self._has_hit = self._has_hit or found.block_count > 0
        self._asked_count += 1
        if self._asked_count == TOLD_AFTER and not self._has_hit:
            fingerprint = getattr(self._session.space, "fingerprint", b"").hex()[:12]
            self._log.warning(
                "cairn: none of the first %d requests found a block; to see why: cairnctl explain"
                " TOKENS_FILE --space %s",
                TOLD_AFTER,
                fingerprint,
            )

    def _prefetch(self, space: Space, match: Match) -> None:
        """Prefetches leased blocks from a drive while their request waits for its turn."""
        try:
            cold = [
                key
                for key, block in zip(match.keys, match.blocks, strict=True)
                if block.tier not in ("host", "gpu")
            ]
            if cold:
                space.prefetch(cold)
        except Error as error:  # the gets read them in any case
            self._log.debug("cairn: a prefetch failed: %s", error)
        except Exception:
            self._log.exception("cairn: a prefetch failed")

    def _hint(self, hinted: _Hinted) -> None:
        space, hint = self._session.space, hinted.hint
        try:
            if space is not None:
                send(space, hinted.keys, hint)
        except Error as error:
            if not self._is_hint_told:
                self._is_hint_told = True
                self._log.warning("cairn: a hint had no effect, nor may later ones: %s", error)
        except Exception:
            self._log.exception("cairn: a hint had no effect")

    def _release(self, lease: bytes) -> None:
        space = self._session.space
        try:
            if space is not None:
                space._release(lease)
        except Error as error:  # the lease expires, or ends with the session
            self._log.debug("cairn: a lease was not given back: %s", error)
        except Exception:
            self._log.exception("cairn: a lease was not given back")
