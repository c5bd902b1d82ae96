# SPDX-License-Identifier: Apache-2.0
"""The trace of a thread's calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ._ffi import check, library

_current = threading.local()


@contextlib.contextmanager
def trace(traceparent: str) -> Iterator[None]:
    """Calls of this thread inside the `with` block belong to a trace of W3C Trace Context.

    `cairnd` logs the trace id with slow calls, and proxies of the control plane can read it. The
    trace belongs to the thread: a coroutine must not await inside. Raises InvalidArgumentError if
    `traceparent` is not a traceparent.
    """
    before = getattr(_current, "traceparent", None)
    check(library().cairn_set_trace(traceparent.encode()))
    _current.traceparent = traceparent
    try:
        yield
    finally:
        _current.traceparent = before
        check(library().cairn_set_trace(before.encode() if before else None))
