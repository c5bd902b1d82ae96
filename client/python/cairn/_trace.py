# SPDX-License-Identifier: Apache-2.0
"""The trace that calls of a thread belong to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ._ffi import check, library

_current = threading.local()


@contextlib.contextmanager
def trace(traceparent: str) -> Iterator[None]:
    """Calls that this thread begins inside belong to a trace of W3C Trace Context.

    `cairnd` names the trace where it logs a slow one, and proxies of the control plane see it. It is the thread's: a coroutine does not
    await inside. InvalidArgumentError: `traceparent` is none.
    """
    before = getattr(_current, "traceparent", None)
    check(library().cairn_set_trace(traceparent.encode()))
    _current.traceparent = traceparent
    try:
        yield
    finally:
        _current.traceparent = before
        check(library().cairn_set_trace(before.encode() if before else None))
