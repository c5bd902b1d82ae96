# SPDX-License-Identifier: Apache-2.0
"""`cairn.aio`: calls that a coroutine awaits, and what becomes of one whose task is cancelled."""

import asyncio
import threading
import time

import cairn
import numpy as np
import pytest
from cairn import aio
from conftest import DIM, HEADS, LAYERS, TOKENS, make_kv, open_space


def empty(tokens):
    return [np.zeros((LAYERS, HEADS, tokens, DIM), np.uint16) for _ in "kv"]


def test_match_get_and_put(client):
    space = open_space(client)
    keys = space.keys(range(3 * TOKENS))
    blocks = [make_kv(seed) for seed in range(3)]

    async def run():
        puts = (aio.call(space.put, key, *kv) for key, kv in zip(keys, blocks, strict=True))
        assert not any(put.is_duplicate for put in await asyncio.gather(*puts))
        match = await aio.call(space.match, keys)
        out = empty(match.token_count)
        assert await aio.call(match.get, *out) == 3 * TOKENS
        await aio.call(match.release)
        return out

    for whole, planes in zip(asyncio.run(run()), zip(*blocks, strict=True), strict=True):
        assert np.array_equal(whole, np.concatenate(planes, 2))


def test_what_a_call_raises(client):
    space = open_space(client)

    async def run():
        with pytest.raises(cairn.InvalidArgumentError, match="a key has 5 bytes"):
            await aio.call(space.match, [b"short"])

    asyncio.run(run())


def test_the_loop_goes_on_meanwhile(client):
    space = open_space(client)
    keys = space.keys(range(2 * TOKENS))

    async def run():
        waiting = asyncio.create_task(aio.call(space.match, keys, wait=5.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        for key in keys:
            await aio.call(space.put, key, *make_kv(4))
        with await waiting as match:
            return len(match)

    assert asyncio.run(run()) == 2


def test_a_cancelled_get_writes_no_more(client):
    """It ends when the call does."""
    over = threading.Event()

    def get():
        time.sleep(0.3)
        over.set()

    async def run():
        task = asyncio.create_task(aio.call(get))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()  # again, while it waits
        with pytest.raises(asyncio.CancelledError):
            await task
        assert over.is_set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aio.call(time.sleep, 0.2), 0.05)

    asyncio.run(run())


def test_a_cancelled_match_keeps_no_lease(client):
    space = open_space(client)
    keys = space.keys(range(2 * TOKENS))
    space.put(keys[0], *make_kv(5))
    begun = client.stats().lease_count

    async def run():
        task = asyncio.create_task(aio.call(space.match, keys, wait=0.3))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert client.stats().lease_count == begun
    with space.match(keys) as match:
        assert match and client.stats().lease_count == begun + 1


def test_a_cancelled_call_that_fails(client):
    def fail():
        time.sleep(0.1)
        raise cairn.UnavailableError("away")

    async def run():
        task = asyncio.create_task(aio.call(fail))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
