# SPDX-License-Identifier: Apache-2.0
"""Calls of this package from a coroutine, each on a thread of the loop's default executor.

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
    """What `function` returns or raises. A task that is cancelled waits for the end of the call, which
    its timeout bounds: nothing is written to the caller's arrays after that, and what a match has
    leased is given back."""
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
    """Until it is over, however often the task is cancelled meanwhile."""
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            continue  # ends: calls have deadlines
