# SPDX-License-Identifier: Apache-2.0
"""Runs calls of this package for a coroutine, each on a thread of the loop's default executor.

    match = await aio.call(space.match, keys, wait=0.1)
    tokens = await aio.call(match.get, k, v)
    await aio.call(match.release)
    await aio.call(space.put, key, k, v, parent=parent)
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from .match import Match

P = ParamSpec("P")
T = TypeVar("T")


async def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns or raises the result of `function`. If the task is cancelled, it waits until the call
    ends, at most for the call's timeout. After that, nothing is written to the caller's arrays, and
    a lease that a match has taken is released."""
    loop = asyncio.get_running_loop()
    here = contextvars.copy_context()
    running = loop.run_in_executor(None, partial(here.run, partial(function, *args, **kwargs)))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        if not running.cancelled() and running.exception() is None:
            found: Any = running.result()
            if isinstance(found, Match):
                await _ended(loop.run_in_executor(None, found.release))
        raise


async def _ended(running: asyncio.Future[Any]) -> None:
    """Waits until the call has ended, even if the task is cancelled several times."""
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            continue  # terminates, because calls have deadlines
