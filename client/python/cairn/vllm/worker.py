# SPDX-License-Identifier: Apache-2.0
"""What a worker moves: blocks into the engine's cache between steps, and out of it behind them.

Knows nothing of vLLM. Its calls come from the engine's thread; loads and puts run on others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor

from .._session import Session
from .. import paged
from ..errors import Error
from ..transfer import Part, Put
from .plan import Load, Plan, Save
from .settings import Settings

LOAD_THREADS = 2
IDLE_SECONDS = 0.005  # that a step without work leaves to a load


class Worker:
    """split: how many of the blocks of `cache` one of the scheduler's has."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        cache: paged.PagedCache,
        part: Part,
        split: int,
        log: logging.Logger,
    ) -> None:
        self._session, self._settings, self._log = session, settings, log
        self._cache, self._part, self._split = cache, part, split
        self._loads = ThreadPoolExecutor(LOAD_THREADS, "cairn-load")
        self._puts = ThreadPoolExecutor(1, "cairn-put")
        self._changed = threading.Condition()
        self._loading = 0  # all of these guarded by _changed
        self._finished: set[str] = set()
        self._failed: set[int] = set()
        self._staged_bytes = 0
        self._free: deque[bytearray] = deque()
        self._counts: Counter[str] = Counter()

    def step(self, plan: Plan) -> None:
        """A step's loads begin. Where it computes nothing, loads get its time."""
        for load in plan.loads:
            with self._changed:
                self._loading += 1
            deadline = time.monotonic() + self._settings.load_timeout
            self._loads.submit(self._load, load, deadline)
        if plan.is_idle:
            with self._changed:
                if self._loading:
                    self._changed.wait(IDLE_SECONDS)

    def save(self, plan: Plan) -> None:
        """Copies what a step has computed; from then on the engine may do with it what it wants."""
        started = time.perf_counter()
        for save in plan.saves:
            self._stage(save)
        if plan.saves:
            self._count(save_seconds=time.perf_counter() - started)

    def take_finished(self) -> tuple[set[str], set[int]]:
        """Requests whose loads have ended, well or not, and the engine's blocks that failed."""
        with self._changed:
            finished, self._finished = self._finished, set()
            failed, self._failed = self._failed, set()
            return finished, failed

    def take_counts(self) -> dict[str, float]:
        with self._changed:
            counts, self._counts = self._counts, Counter()
            return dict(counts)

    def drain(self) -> None:
        """Waits until what is staged is put, or given up; each put has a deadline."""
        self._puts.submit(lambda: None).result()

    def close(self) -> None:
        """Puts what is staged for as long as one put may take; then the rest is given up."""
        ended = threading.Event()
        self._puts.submit(ended.set)
        ended.wait(self._settings.save_timeout)
        self._puts.shutdown(cancel_futures=True)
        self._loads.shutdown()

    # ------------------------------------------------------------------------------------ loads

    def _load(self, load: Load, deadline: float) -> None:
        statuses: list[int] = []
        moved_bytes, started = 0, time.perf_counter()
        try:
            space, left = self._session.space, deadline - time.monotonic()
            if space is not None and left > 0:  # else the loads before it took its time
                moved = paged.get(
                    space,
                    self._cache,
                    load.keys,
                    self._split_table(load.blocks),
                    lease=load.lease,
                    part=self._part,
                    timeout=left,
                )
                statuses, moved_bytes = moved.statuses, moved.wire_bytes
        except Error as error:
            self._log.warning("cairn: a load failed, its blocks are recomputed: %s", error)
        except Exception:  # whatever it is, the request must not wait for ever
            self._log.exception("cairn: a load failed, its blocks are recomputed")
        failed = self._failed_of(load, statuses)
        with self._changed:
            self._finished.add(load.request_id)
            self._failed |= failed
            self._loading -= 1
            self._changed.notify_all()
        wanted = sum(block != paged.SKIPPED for block in load.blocks)
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

    def _failed_of(self, load: Load, statuses: list[int]) -> set[int]:
        """The engine's blocks that are not as the store has them. After the first block that failed
        nothing counts, as nothing is computed on what came before it."""
        ratio = len(load.blocks) // len(load.keys)
        good = next((i for i, status in enumerate(statuses) if status), len(statuses))
        return {block for block in load.blocks[good * ratio :] if block != paged.SKIPPED}

    def _split_table(self, blocks: list[int]) -> list[int]:
        if self._split == 1:
            return blocks
        return [
            paged.SKIPPED if block == paged.SKIPPED else block * self._split + i
            for block in blocks
            for i in range(self._split)
        ]

    # ------------------------------------------------------------------------------------ saves

    def _stage(self, save: Save) -> None:
        space = self._session.space
        ratio = len(save.blocks) // len(save.keys)
        if space is None:
            return self._count(dropped_blocks=len(save.blocks))
        slot_bytes = space.source_bytes(self._part)
        for i, key in enumerate(save.keys):
            slot = self._take_slot(slot_bytes)
            if slot is None:
                return self._count(dropped_blocks=len(save.blocks) - i * ratio)
            table = self._split_table(save.blocks[i * ratio : (i + 1) * ratio])
            try:
                paged.gather(space, self._cache, table, slot, part=self._part)
            except Error as error:
                self._log.error("cairn: a block was not saved: %s", error)
                self._give_slot(slot)
                return self._count(dropped_blocks=len(save.blocks) - i * ratio)
            parent = save.keys[i - 1] if i else save.parent
            position = save.first_position + i * space.spec.tokens_per_block
            put = Put(key, None, None, parent, position, self._part, save.is_derived, source=slot)
            self._puts.submit(self._put, put, ratio).add_done_callback(self._settle)

    def _put(self, put: Put, engine_blocks: int) -> None:
        error: Error | None = None
        started = time.perf_counter()
        try:
            space = self._session.space
            if space is not None:
                result = space.put_batch([put], timeout=self._settings.save_timeout)[0]
                error = result.error
                if error is None:
                    self._count(
                        saved_blocks=engine_blocks,
                        saved_bytes=0 if result.is_duplicate else result.image_bytes,
                    )
        except Error as raised:
            error = raised
        finally:
            self._give_slot(put.source)
            self._count(put_seconds=time.perf_counter() - started)
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
            if self._free:
                return self._free.popleft()
        return bytearray(slot_bytes)

    def _give_slot(self, slot: bytearray) -> None:
        with self._changed:
            self._staged_bytes -= len(slot)
            self._free.append(slot)

    def _count(self, **amounts: float) -> None:
        with self._changed:
            self._counts.update(amounts)
