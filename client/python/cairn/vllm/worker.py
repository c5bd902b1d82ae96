# SPDX-License-Identifier: Apache-2.0
"""A worker's moves: loads into the engine's cache between steps, and saves after them.

Knows nothing of vLLM. The engine's thread calls it. Loads and puts run on other threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .._session import Session
from .. import layerwise, paged
from ..errors import Error, UnavailableError
from ..space import Space
from .adapters import LoadedAdapters
from .cuda import Cuda, Stream
from .device_saves import DeviceSaves
from .group import GroupPart, PagedPart
from .plan import Load, Plan, by_key
from .saves import HostSaves, Saves
from .settings import Settings
from .squares import Squares
from .staging import Staging
from .tap import Tap

# Threads for loads; one if the cache is on a device, which accepts one load at a time.
LOAD_THREADS = 2
SHARE_KEYS = 2  # a load is divided between threads if each gets at least so many of its keys
LAYER_STEPS = 4  # gets of a layer-wise load; the first has the first layers
IDLE_SECONDS = 0.005  # time for a load in a step without work


@dataclass(frozen=True)
class OnDevice:
    """The cache of a worker on `cuda`. stream: the stream of its loads, named by its groups'
    caches. staging: only if the worker saves."""

    cuda: Cuda
    stream: Stream
    staging: Staging | None


@dataclass
class Ended:
    """The loads that have ended, successful or not; the layer-wise ones among them; the engine's
    blocks that failed, and their requests. marks: on a device, marks after the work of these loads.
    """

    requests: set[str] = field(default_factory=set)
    layer_wise: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    failed_requests: set[str] = field(default_factory=set)
    marks: list[Any] = field(default_factory=list)


@dataclass
class _LayerLoad:
    """transfer: None if it could not begin."""

    load: Load
    transfer: layerwise.Transfer | None
    started: float


class Worker:
    """is_layer_wise: loads run while their step computes, and the step waits for each layer. Only
    for one group of layers without windows."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        groups: Sequence[GroupPart],
        log: logging.Logger,
        tap: Tap | None = None,
        is_layer_wise: bool = False,
        device: OnDevice | None = None,
        adapters: LoadedAdapters | None = None,
        squares: Squares | None = None,
    ) -> None:
        self._session, self._settings, self._log = session, settings, log
        self._adapters = LoadedAdapters() if adapters is None else adapters
        self._tap, self._device, self._squares = tap, device, squares
        self._groups = groups
        self._is_layer_wise = is_layer_wise
        self._layer_loads: list[_LayerLoad] = []  # of this step
        threads = LOAD_THREADS if device is None else 1
        self._loads = ThreadPoolExecutor(threads, "cairn-load")
        # Runs all shares of a load but the first. It is separate from `_loads`, whose threads wait
        # for shares. If all threads waited, none could run a share.
        self._shares = ThreadPoolExecutor(threads - 1, "cairn-share") if threads > 1 else None
        self._changed = threading.Condition()
        self._loading = 0  # this and all below are guarded by _changed
        self._ended = Ended()
        self._counts: Counter[str] = Counter()
        self._saves: Saves
        if device is None or device.staging is None:
            self._saves = HostSaves(session, settings, groups, log, self._count, tap, squares)
        else:
            self._saves = DeviceSaves(session, settings, groups, log, self._count, device.staging)

    def step(self, plan: Plan) -> None:
        """Begins the loads of a step. A step without computation gives its time to loads."""
        # Their blocks may be in use until the work is complete that is on the engine's stream now.
        before = self._device.cuda.engine.mark() if plan.loads and self._device else None
        if self._is_layer_wise:
            self._layer_loads += [self._begin_layers(load, before) for load in plan.loads]
            return
        for load in plan.loads:
            with self._changed:
                self._loading += 1
            deadline = time.monotonic() + self._settings.load_timeout
            self._loads.submit(self._load, load, deadline, before)
        if plan.is_idle:
            with self._changed:
                if self._loading:
                    self._changed.wait(IDLE_SECONDS)

    def wait_layer(self, layer: int) -> None:
        """Waits until a layer of all loads of the step is in the cache, or until it is known that
        it will not arrive, at the latest at the deadline."""
        for load in self._layer_loads:
            if load.transfer is not None:
                load.transfer.wait_layer(layer)

    def save(self, plan: Plan) -> None:
        """Copies the blocks that a step has computed. After that, the engine may reuse its blocks.
        """
        self._end_layers()
        saves = [save for save in plan.saves if self._adapters.may_save(save.adapter)]
        if saves:
            started = time.perf_counter()
            self._saves.stage(saves)
            self._count(save_seconds=time.perf_counter() - started)
        if self._squares is not None:
            self._squares.end()

    def take_ended(self) -> Ended:
        """Returns the ended loads. Everything that the engine computes afterwards comes after the
        writes of these loads."""
        with self._changed:
            ended, self._ended = self._ended, Ended()
        if self._device is not None:
            for mark in ended.marks:
                self._device.cuda.engine.wait(mark)
        return ended

    def take_counts(self) -> dict[str, float]:
        with self._changed:
            counts, self._counts = self._counts, Counter()
            return dict(counts)

    def drain(self) -> None:
        """Waits until staged blocks are put or dropped. Each put has a deadline."""
        self._saves.drain()

    def close(self) -> None:
        """Puts staged blocks for the time that one put may take, then drops the rest."""
        self._end_layers()
        self._saves.close()
        self._loads.shutdown()
        if self._shares is not None:
            self._shares.shutdown()
        if self._tap is not None:
            self._tap.close()

    # ------------------------------------------------------------------------------------ loads

    def _begin_layers(self, load: Load, before: Any) -> _LayerLoad:
        started, transfer, space = time.perf_counter(), None, self._session.space
        (group,), (blocks,) = self._groups, load.blocks
        assert isinstance(group, PagedPart)
        try:
            if space is not None and self._adapters.may_load(load.adapter) and self._waits(before):
                transfer = layerwise.get(
                    space,
                    group.cache,
                    load.keys,
                    group.table(blocks),
                    lease=load.lease,
                    part=group.part,
                    timeout=self._settings.load_timeout,
                    layers_per_step=-(-group.cache.layer_count // LAYER_STEPS),
                )
        except Error as error:
            self._log.warning("cairn: a load failed, its blocks are recomputed: %s", error)
        except Exception:  # the engine must continue, whatever the error
            self._log.exception("cairn: a load failed, its blocks are recomputed")
        return _LayerLoad(load, transfer, started)

    def _end_layers(self) -> None:
        """Ends layer-wise loads. When it returns, nothing is written to their blocks any more."""
        loads, self._layer_loads = self._layer_loads, []
        for one in loads:
            good, moved_bytes = 0, 0
            if one.transfer is not None:
                moved = one.transfer.result()
                bad = (i for i, status in enumerate(moved.statuses) if status != paged.OK)
                good, moved_bytes = next(bad, len(moved.statuses)), moved.wire_bytes
            self._ended_load(one.load, good, moved_bytes, one.started)

    def _load(self, load: Load, deadline: float, before: Any) -> None:
        good, moved_bytes, started = 0, 0, time.perf_counter()
        try:
            space = self._session.space
            may_load = load.is_placed and self._adapters.may_load(load.adapter)
            if space is not None and may_load and self._waits(before):
                good = len(load.keys)
                for group, blocks in zip(self._groups, load.blocks, strict=True):
                    count, wire_bytes = self._load_group(space, group, load, blocks, deadline)
                    good, moved_bytes = min(good, count), moved_bytes + wire_bytes
                    if good == 0:
                        break
        except Error as error:
            good = 0
            if self._device is not None and isinstance(error, UnavailableError):
                # An error of the whole call comes from the device, not from the daemon.
                self._device.cuda.lose(error)
            else:
                self._log.warning("cairn: a load failed, its blocks are recomputed: %s", error)
        except Exception:  # the request must not wait forever, whatever the error
            good = 0
            self._log.exception("cairn: a load failed, its blocks are recomputed")
        self._ended_load(load, good, moved_bytes, started)

    def _ended_load(self, load: Load, good: int, moved_bytes: int, started: float) -> None:
        """good: number of keys that arrived, from the first on. Blocks after the first failure do
        not count, because nothing is computed on them. The metrics are updated before the end is
        reported."""
        count = len(load.keys)
        tables = (table for blocks in load.blocks for table in by_key(blocks, count)[good:])
        failed = [block for table in tables for block in table if block != paged.SKIPPED]
        wanted = sum(block != paged.SKIPPED for table in load.blocks for block in table)
        self._count(
            loads=1,
            load_seconds=time.perf_counter() - started,
            loaded_blocks=wanted - len(failed),
            failed_blocks=len(failed),
            loaded_bytes=moved_bytes,
        )
        if failed and not (self._device is not None and self._device.cuda.is_lost):
            self._log.warning(
                "cairn: %d of %d blocks of request %s were not loaded; they are recomputed",
                len(failed),
                wanted,
                load.request_id,
            )
        mark = None if self._device is None else self._device.stream.mark()
        with self._changed:
            self._ended.marks.append(mark)
            self._ended.failed_blocks.update(failed)
            if good < count:
                self._ended.failed_requests.add(load.request_id)
            if self._is_layer_wise:
                self._ended.layer_wise.add(load.request_id)
            else:
                self._ended.requests.add(load.request_id)
                self._loading -= 1
            self._changed.notify_all()

    def _load_group(
        self, space: Space, group: GroupPart, load: Load, blocks: list[int], deadline: float
    ) -> tuple[int, int]:
        """Returns the number of keys before the first failure, and the bytes moved. Blocks outside
        the group's window are not requested."""
        tables = by_key(blocks, len(load.keys))
        asked = [i for i, table in enumerate(tables) if any(x != paged.SKIPPED for x in table)]
        if not asked or deadline <= time.monotonic():  # earlier ones took its time
            return (0 if asked else len(load.keys)), 0

        def get(share: list[int]) -> paged.Moved:
            return group.get(
                space,
                [load.keys[i] for i in share],
                [block for i in share for block in tables[i]],
                load.lease,
                max(0.001, deadline - time.monotonic()),
            )

        moved = self._in_shares(get, asked)
        statuses = [status for one in moved for status in one.statuses]
        bad = (i for i, status in zip(asked, statuses, strict=True) if status != paged.OK)
        return next(bad, len(load.keys)), sum(one.wire_bytes for one in moved)

    def _in_shares(
        self, get: Callable[[list[int]], paged.Moved], asked: list[int]
    ) -> list[paged.Moved]:
        """Calls `get` for all requested blocks. A long list is divided between threads, because
        each thread decodes what it fetches. Results are in the order of the request. When this
        returns or raises, no call writes to the cache any more."""
        if self._shares is None or len(asked) < LOAD_THREADS * SHARE_KEYS:
            return [get(asked)]
        step = -(-len(asked) // LOAD_THREADS)
        first, *rest = (asked[i : i + step] for i in range(0, len(asked), step))
        others = [self._shares.submit(get, share) for share in rest]
        try:
            return [get(first), *(other.result() for other in others)]
        finally:
            futures.wait(others)

    # ------------------------------------------------------------------------------------ the rest

    def _waits(self, mark: Any) -> bool:
        """Makes later work of loads on a device wait for the mark. False: the device is lost."""
        if self._device is None:
            return True
        self._device.stream.wait(mark)
        return not self._device.cuda.is_lost

    def _count(self, **amounts: float) -> None:
        with self._changed:
            self._counts.update(amounts)
