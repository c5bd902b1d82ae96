# SPDX-License-Identifier: Apache-2.0
"""Each connector behind one verb, as its engine uses it: `use(seed)` looks a prompt's blocks up,
takes what is there, checks it bit for bit, computes and saves the rest; it says how many came from
the store, of `BLOCKS`. Every call of the connector's has a deadline of its own."""

import functools
import os
import random
import select
import threading
import time

import fake_sglang
import fake_torch
import fake_vllm
import fake_vllm_engine
import fake_vllm_tier
import numpy as np

fake_sglang.install()
fake_vllm.install()
fake_vllm_tier.install()

from cairn.lmcache import CairnL2  # noqa: E402
from cairn.sglang import CairnHiCache  # noqa: E402
from cairn.vllm import CairnConnector  # noqa: E402
from cairn.vllm.tier import CairnTier  # noqa: E402

BLOCKS = 6
# What each connector is told. Kernels that are emulated are slow.
TIMEOUT = 4.0 if fake_torch.is_there() else 0.8
# How many times slower this machine is than one that nobody else uses.
BUSY = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
AT_ONCE = 0.5 * BUSY  # a call that an engine's own thread makes: of no daemon's pace
SLACK = 1.0 * BUSY


class Timed:
    """Whatever is called of `inner` is back within its limit, else the default."""

    def __init__(self, inner, default, **limits):
        self._inner, self._default, self._limits = inner, default, limits
        self.longest = {}

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name.startswith("_") or not callable(found):
            return found

        @functools.wraps(found)
        def call(*arguments, **more):
            began = time.monotonic()
            answer = found(*arguments, **more)
            elapsed = time.monotonic() - began
            self.longest[name] = max(elapsed, self.longest.get(name, 0.0))
            limit = self._limits.get(name, self._default)
            assert elapsed < limit, f"{name} took {elapsed:.2f} s, at most {limit}"
            return answer

        return call


class Vllm:
    USE_SECONDS = 2 * TIMEOUT + SLACK  # a look-up and a load
    BLOCK_TOKENS = 128
    GROUPS = fake_vllm.ALL_LAYERS
    LOADED = BLOCKS * BLOCK_TOKENS // fake_vllm.ENGINE  # vLLM's blocks, when all is a hit
    EXTRA, LIMITS = {"recipe": "raw"}, {}

    def __init__(self, settings):
        names = ("load_timeout", "lookup_timeout", "save_timeout")
        extra = settings | dict.fromkeys(names, TIMEOUT) | self.EXTRA
        self._engine = fake_vllm_engine.Engine(
            CairnConnector, extra, budget=4096, block_count=256, groups=self.GROUPS
        )
        for holder, side in ((self._engine, "scheduler"), (self._engine.ranks[0], "connector")):
            limits = {"shutdown": 2 * TIMEOUT + SLACK, **self.LIMITS}
            setattr(holder, side, Timed(getattr(holder, side), AT_ONCE, **limits))
        self._count = 0

    def begin(self, seed):
        self._count += 1
        rng = random.Random(seed)
        tokens = [rng.randrange(50000) for _ in range(BLOCKS * self.BLOCK_TOKENS + 1)]
        return self._engine.add(fake_vllm.Request(f"{seed}.{self._count}", tokens))

    def use(self, seed):
        return self.use_many([seed])

    def use_many(self, seeds):
        begun = [self.begin(seed) for seed in seeds]
        self._engine.steps = 0
        before = self._engine.counts.get("loaded_blocks", 0)
        self._engine.run()
        for one in begun:
            self._engine.check(one)
            del self._engine.done[one.request_id]
        loaded = self._engine.counts.get("loaded_blocks", 0) - before
        return int(loaded * BLOCKS // self.LOADED)

    def before_loads(self, happens):
        """`happens` before the first block is asked for."""
        worker = self._engine.worker._worker
        load, lock = worker._load, threading.Lock()

        def wrapped(*arguments):
            nonlocal happens
            with lock:
                happens()
                happens = bool
            load(*arguments)

        worker._load = wrapped

    def close(self):
        self._engine.close()


class VllmWindows(Vllm):
    """A model of which two groups of layers of three see a window: a load fails as a whole."""

    WINDOW = 160
    GROUPS = (((0, 3), WINDOW), ((1, 4), WINDOW), ((2, 5), 0))
    LOADED = Vllm.LOADED + 2 * WINDOW // fake_vllm.ENGINE


class VllmLayers(Vllm):
    """A step waits for what its requests load, for as long as that may take."""

    EXTRA = Vllm.EXTRA | {"layer_wise": True}
    LIMITS = dict.fromkeys(["wait_for_layer_load", "wait_for_save"], TIMEOUT + SLACK)


class Lmcache:
    USE_SECONDS = 3 * TIMEOUT + SLACK  # a look-up, a load, a store
    OBJECT = 512 << 10

    def __init__(self, settings):
        client = CairnL2(**settings, connections=2, timeout=TIMEOUT, object_bytes=[self.OBJECT])
        self._client = Timed(client, AT_ONCE, close=TIMEOUT + SLACK)
        self._poller = select.poll()
        self._poller.register(client.event_fd(), select.POLLIN)

    def use(self, seed):
        names = [f"model@00000000@0@{seed:032x}{i:032x}" for i in range(BLOCKS)]
        wanted = [np.random.default_rng((seed, i)).bytes(self.OBJECT) for i in range(BLOCKS)]
        there = self._wait(self._client.submit_batch_exists(names))[3]
        good = (there + [False]).index(False)
        if good:
            targets = [bytearray(self.OBJECT) for _ in range(good)]
            views = [memoryview(target) for target in targets]
            got = self._wait(self._client.submit_batch_get(names[:good], views))[3]
            for i, is_there in enumerate(got):
                assert not is_there or targets[i] == wanted[i]
            good = (got + [False]).index(False)
        if good < BLOCKS:
            views = [memoryview(bytearray(one)) for one in wanted[good:]]
            self._wait(self._client.submit_batch_set(names[good:], views))
        return good

    def _wait(self, task):
        """As LMCache's thread does, which has no deadline of its own."""
        deadline = time.monotonic() + TIMEOUT + SLACK
        while True:
            assert self._poller.poll(max(0, 1000 * (deadline - time.monotonic()))), "it never ends"
            for one in self._client.drain_completions():
                if one[0] == task:
                    return one

    def close(self):
        self._client.close()


class Sglang:
    USE_SECONDS = 3 * (TIMEOUT + SLACK)
    PAGE = {"page_size": 128, "layer_num": 6, "page_num": BLOCKS}

    def __init__(self, settings):
        self._pool = fake_sglang.MHATokenToKVPoolHost("page_first", **self.PAGE)
        config = fake_sglang.config(settings | {"timeout": TIMEOUT, "recipe": "raw"})
        backend = CairnHiCache(config, {})
        limit = TIMEOUT + SLACK  # its callers are threads for storage
        self._backend = Timed(backend, limit, register_mem_pool_host=AT_ONCE, close=3 + SLACK)
        self._backend.register_mem_pool_host(self._pool)

    def use(self, seed):
        pool = self._pool
        names = [f"{seed:032x}{i:032x}" for i in range(BLOCKS)]
        wanted = np.random.default_rng(seed).integers(0, 30000, pool.kv_buffer.shape, np.uint16)
        places = np.arange(pool.size)
        pool.kv_buffer[...] = 7
        good = self._backend.batch_exists(names)
        if good:
            cut = good * pool.page_size
            got = self._backend.batch_get_v1(names[:good], places[:cut])
            for i, is_there in enumerate(got):
                page = pool._page(i * pool.page_size)
                assert not is_there or np.array_equal(pool.kv_buffer[page], wanted[page])
            good = (got + [False]).index(False)
        if good < BLOCKS:
            pool.kv_buffer[...] = wanted
            cut = good * pool.page_size
            self._backend.batch_set_v1(names[good:], places[cut:])
        return good

    def close(self):
        self._backend.close()


class VllmTier:
    USE_SECONDS = 4 * TIMEOUT + SLACK  # a look-up behind another, a load, a store
    CHUNK = 512 << 10

    def __init__(self, settings):
        times = {"timeout": TIMEOUT, "lookup_timeout": TIMEOUT}
        self._primary = fake_vllm_tier.Primary(CairnTier, settings | times, self.CHUNK, BLOCKS)
        self._primary.tier = Timed(self._primary.tier, AT_ONCE, shutdown=3 * TIMEOUT + SLACK)
        self._count = 0

    def use(self, seed):
        primary, chunks = self._primary, range(BLOCKS)
        self._count += 1
        keys = [seed.to_bytes(32, "big") + i.to_bytes(4, "big") for i in chunks]
        wanted = np.random.default_rng(seed).integers(-128, 128, primary.memory.shape, np.int8)
        primary.memory[:] = 7
        primary.begin(f"{self._count}")
        good = primary.look_up(keys, f"{self._count}")
        if good:
            result = primary.load(keys[:good], chunks[:good])
            came = keys[:good] if result.success else result.successful_keys or []
            for i in chunks[:good]:
                assert keys[i] not in came or np.array_equal(primary.memory[i], wanted[i])
            good = ([key in came for key in keys] + [False]).index(False)
        if good < BLOCKS:
            primary.memory[:] = wanted
            primary.store(keys[good:], chunks[good:])
        primary.end(f"{self._count}")
        return good

    def close(self):
        if self._primary.tier._rows is not None:
            self._primary.tier.shutdown()


CONNECTORS = {
    "vllm": Vllm,
    "vllm with windows": VllmWindows,
    "vllm layer by layer": VllmLayers,
    "vllm's tier": VllmTier,
    "lmcache": Lmcache,
    "sglang": Sglang,
}
if fake_torch.is_there():  # the others move host memory
    CONNECTORS = {name: one for name, one in CONNECTORS.items() if issubclass(one, Vllm)}
