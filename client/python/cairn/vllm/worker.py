# SPDX-License-Identifier: Apache-2.0
"""What a worker moves: blocks into the engine's cache between steps, and out of it behind them.

Knows nothing of vLLM. Its calls come from the engine's thread; loads and puts run on others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from .._session import Session
from .. import layerwise, paged
from ..errors import Error
from ..space import Space
from ..transfer import Part, Put
from .plan import Load, Plan, Save
from .settings import Settings
from .tap import Tap

LOAD_THREADS = 2
LAYER_STEPS = 4  # gets that a layer-wise load is made of: the first layers come with the first
IDLE_SECONDS = 0.005  # that a step without work leaves to a load


@dataclass(frozen=True)
class GroupPart:
    """What this worker has of a group of layers. split: how many of the blocks of `cache` one of
    the scheduler's has."""

    cache: paged.PagedCache
    part: Part
    split: int

    def table(self, blocks: list[int]) -> list[int]:
        """In blocks of the cache."""
        if self.split == 1:
            return blocks
        return [
            paged.SKIPPED if block == paged.SKIPPED else block * self.split + i
            for block in blocks
            for i in range(self.split)
        ]


@dataclass
class Ended:
    """Loads that have ended, well or not, those of them that were layer-wise, the engine's blocks
    that failed, and whose they are."""

    requests: set[str] = field(default_factory=set)
    layer_wise: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    failed_requests: set[str] = field(default_factory=set)


@dataclass
class _LayerLoad:
    """transfer: None where none could begin."""

    load: Load
    transfer: layerwise.Transfer | None
    started: float


class Worker:
    """is_layer_wise: loads go on while their step computes, which waits for each layer; of one group
    of layers, without windows."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        groups: Sequence[GroupPart],
        log: logging.Logger,
        tap: Tap | None = None,
        is_layer_wise: bool = False,
    ) -> None:
        self._session, self._settings, self._log = session, settings, log
        self._tap = tap
        self._groups = groups
        self._is_layer_wise = is_layer_wise
        self._layer_loads: list[_LayerLoad] = []  # of this step
        self._loads = ThreadPoolExecutor(LOAD_THREADS, "cairn-load")
        self._puts = ThreadPoolExecutor(1, "cairn-put")
        self._changed = threading.Condition()
        self._loading = 0  # all of these guarded by _changed
        self._ended = Ended()
        self._staged_bytes = 0
        self._free: dict[int, list[bytearray]] = {}  # by their lengths
        self._counts: Counter[str] = Counter()

    def step(self, plan: Plan) -> None:
        """A step's loads begin. Where it computes nothing, loads get its time."""
        if self._is_layer_wise:
            self._layer_loads += [self._begin_layers(load) for load in plan.loads]
            return
        for load in plan.loads:
            with self._changed:
                self._loading += 1
            deadline = time.monotonic() + self._settings.load_timeout
            self._loads.submit(self._load, load, deadline)
        if plan.is_idle:
            with self._changed:
                if self._loading:
                    self._changed.wait(IDLE_SECONDS)

    def wait_layer(self, layer: int) -> None:
        """Until it is in the cache, of all loads of the step, or known not to come: at their deadline
        at the latest."""
        for load in self._layer_loads:
            if load.transfer is not None:
                load.transfer.wait_layer(layer)

    def save(self, plan: Plan) -> None:
        """Copies what a step has computed; from then on the engine may do with it what it wants."""
        self._end_layers()
        started = time.perf_counter()
        for save in plan.saves:
            self._stage(save)
        if plan.saves:
            self._count(save_seconds=time.perf_counter() - started)

    def take_ended(self) -> Ended:
        with self._changed:
            ended, self._ended = self._ended, Ended()
            return ended

    def take_counts(self) -> dict[str, float]:
        with self._changed:
            counts, self._counts = self._counts, Counter()
            return dict(counts)

    def drain(self) -> None:
        """Waits until what is staged is put, or given up; each put has a deadline."""
        self._puts.submit(lambda: None).result()

    def close(self) -> None:
        """Puts what is staged for as long as one put may take; then the rest is given up."""
        self._end_layers()
        ended = threading.Event()
        self._puts.submit(ended.set)
        ended.wait(self._settings.save_timeout)
        self._puts.shutdown(cancel_futures=True)
        self._loads.shutdown()
        if self._tap is not None:
            self._tap.close()

    # ------------------------------------------------------------------------------------ loads

    def _begin_layers(self, load: Load) -> _LayerLoad:
        started, transfer, space = time.perf_counter(), None, self._session.space
        (group,), (blocks,) = self._groups, load.blocks
        try:
            if space is not None:
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
        except Exception:  # whatever it is, the engine goes on
            self._log.exception("cairn: a load failed, its blocks are recomputed")
        return _LayerLoad(load, transfer, started)

    def _end_layers(self) -> None:
        """Nothing is written to their blocks any more when it returns."""
        loads, self._layer_loads = self._layer_loads, []
        for one in loads:
            good, moved_bytes = 0, 0
            if one.transfer is not None:
                moved = one.transfer.result()
                bad = (i for i, status in enumerate(moved.statuses) if status != paged.OK)
                good, moved_bytes = next(bad, len(moved.statuses)), moved.wire_bytes
            self._ended_load(one.load, good, moved_bytes, one.started)

    def _load(self, load: Load, deadline: float) -> None:
        good, moved_bytes, started = 0, 0, time.perf_counter()
        try:
            space = self._session.space
            if space is not None:
                good = len(load.keys)
                for group, blocks in zip(self._groups, load.blocks, strict=True):
                    count, wire_bytes = self._load_group(space, group, load, blocks, deadline)
                    good, moved_bytes = min(good, count), moved_bytes + wire_bytes
                    if good == 0:
                        break
        except Error as error:
            good = 0
            self._log.warning("cairn: a load failed, its blocks are recomputed: %s", error)
        except Exception:  # whatever it is, the request must not wait for ever
            good = 0
            self._log.exception("cairn: a load failed, its blocks are recomputed")
        self._ended_load(load, good, moved_bytes, started)

    def _ended_load(self, load: Load, good: int, moved_bytes: int, started: float) -> None:
        """good: how many of its keys came, from the first on. After the first block that failed
        nothing counts, as nothing is computed on what came before it. Its figures are there when
        its end is."""
        ratio = len(load.blocks[0]) // len(load.keys)
        failed = [block for table in load.blocks for block in table[good * ratio :]]
        failed = [block for block in failed if block != paged.SKIPPED]
        wanted = sum(block != paged.SKIPPED for table in load.blocks for block in table)
        self._count(
            loads=1,
            load_seconds=time.perf_counter() - started,
            loaded_blocks=wanted - len(failed),
            failed_blocks=len(failed),
            loaded_bytes=moved_bytes,
        )
        if failed:
            self._log.warning(
                "cairn: %d of %d blocks of request %s were not loaded; they are recomputed",
                len(failed),
                wanted,
                load.request_id,
            )
        with self._changed:
            self._ended.failed_blocks.update(failed)
            if failed:
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
        """How many of the keys are good before the first that failed, and the bytes that moved.
        What is out of the group's window is not asked for."""
        ratio = len(blocks) // len(load.keys)
        tables = [blocks[i * ratio : (i + 1) * ratio] for i in range(len(load.keys))]
        asked = [i for i, table in enumerate(tables) if any(x != paged.SKIPPED for x in table)]
        left = deadline - time.monotonic()
        if not asked or left <= 0:  # those before it took its time
            return (0 if asked else len(load.keys)), 0
        moved = paged.get(
            space,
            group.cache,
            [load.keys[i] for i in asked],
            group.table([block for i in asked for block in tables[i]]),
            lease=load.lease,
            part=group.part,
            timeout=left,
        )
        bad = (i for i, status in zip(asked, moved.statuses, strict=True) if status != paged.OK)
        return next(bad, len(load.keys)), moved.wire_bytes

    # ------------------------------------------------------------------------------------ saves

    def _stage(self, save: Save) -> None:
        ratio = len(save.blocks[0]) // len(save.keys)
        for i in range(len(save.keys)):
            puts = self._copies(save, i, ratio)
            if puts is None:  # nor are those behind it saved: they would hang on nothing
                rest = [block for table in save.blocks for block in table[i * ratio :]]
                return self._count(dropped_blocks=len(rest) - rest.count(paged.SKIPPED))
            self._puts.submit(self._put, puts, ratio).add_done_callback(self._settle)

    def _copies(self, save: Save, index: int, ratio: int) -> list[Put] | None:
        """Puts of the groups of a block, out of copies. None: there is no room for them."""
        puts: list[Put] = []
        space = self._session.space
        for group, blocks in zip(self._groups, save.blocks, strict=True):
            table = blocks[index * ratio : (index + 1) * ratio]
            if paged.SKIPPED in table:  # the engine has let go of some of it
                continue
            slot = None if space is None else self._gather(space, group, table)
            if space is None or slot is None:
                for put in puts:
                    self._give_slot(put.source)
                return None
            parent = save.keys[index - 1] if index else save.parent
            position = save.first_position + index * space.spec.tokens_per_block
            key, is_derived = save.keys[index], save.is_derived
            puts.append(Put(key, None, None, parent, position, group.part, is_derived, source=slot))
        return puts

    def _gather(self, space: Space, group: GroupPart, table: list[int]) -> bytearray | None:
        """A copy of a block. None: it is not saved."""
        slot = self._take_slot(space.source_bytes(group.part))
        if slot is None:
            return None
        try:
            paged.gather(space, group.cache, group.table(table), slot, part=group.part)
        except Error as error:
            self._log.error("cairn: a block was not saved: %s", error)
            self._give_slot(slot)
            return None
        return slot

    def _put(self, puts: list[Put], engine_blocks: int) -> None:
        """engine_blocks: that each of them has."""
        errors: list[Error | None] = [None] * len(puts)
        started = time.perf_counter()
        try:
            space = self._session.space
            if space is not None:
                if self._tap is not None:
                    self._tap.before_puts(space)
                results = space.put_batch(puts, timeout=self._settings.save_timeout)
                if self._tap is not None:
                    self._tap.after_puts(puts[0].key)
                errors = [result.error for result in results]
                good = [result for result in results if result.error is None]
                self._count(
                    saved_blocks=len(good) * engine_blocks,
                    saved_bytes=sum(x.image_bytes for x in good if not x.is_duplicate),
                )
        except Error as raised:
            errors = [raised] * len(puts)
        finally:
            for put in puts:
                self._give_slot(put.source)
            self._count(put_seconds=time.perf_counter() - started)
        for error in errors:
            if error is not None:
                self._count(dropped_blocks=engine_blocks)
                self._log.debug("cairn: a block was not saved: %s", error)

    def _settle(self, put: Future[None]) -> None:
        if not put.cancelled() and put.exception() is not None:
            self._log.error("cairn: a block was not saved", exc_info=put.exception())

    def _take_slot(self, slot_bytes: int) -> bytearray | None:
        """None: as much is staged as may be. The save is given up; the engine does not wait."""
        with self._changed:
            if self._staged_bytes + slot_bytes > self._settings.staging_bytes:
                return None
            self._staged_bytes += slot_bytes
            if free := self._free.get(slot_bytes):
                return free.pop()
        return bytearray(slot_bytes)

    def _give_slot(self, slot: bytearray) -> None:
        with self._changed:
            self._staged_bytes -= len(slot)
            self._free.setdefault(len(slot), []).append(slot)

    def _count(self, **amounts: float) -> None:
        with self._changed:
            self._counts.update(amounts)
