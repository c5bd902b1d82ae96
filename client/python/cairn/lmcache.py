# SPDX-License-Identifier: Apache-2.0
"""LMCache's second level in Cairn: a client for its `native_plugin` adapter (docs/engines/lmcache.md).

    --l2-adapter '{"type": "native_plugin", "module_path": "cairn.lmcache", "class_name": "CairnL2",
                   "adapter_params": {"control": "127.0.0.1:7070", "weights_revision": "…"}}'

LMCache does not say how KV lies in what it stores: its objects are bytes, and kept as they are. Its
keys do not say which weights or which layout they are of: that is what `weights_revision` is for.
Nothing of LMCache is imported here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .client import Client, connect
from .errors import DeadlineExceededError, Error, InvalidArgumentError
from .keys import Group
from .space import Space
from .transfer import Get, Put

_TOKENS = 16  # of a block: of no meaning for bytes

log = logging.getLogger("cairn.lmcache")

Completion = tuple[int, bool, str, "list[bool] | None"]


class CairnL2:
    """What LMCache's adapter calls. Every task ends, with a result per key: what fails is a miss, or
    is not stored. A daemon that is away is asked again at the next task.

    weights_revision: whatever tells models, weights, dtypes and layouts of engines apart that use
    the same names. connections: tasks are cut in so many parts, which move at once. timeout: of a
    task, in seconds from its submission on. object_bytes: lengths of objects that earlier processes
    may have stored; those that this process stores or loads it learns by itself.
    """

    def __init__(
        self,
        control: str,
        weights_revision: str,
        *,
        data: str | None = None,
        tenant: str = "default",
        connections: int = 4,
        region_bytes: int = 0,
        timeout: float = 10.0,
        object_bytes: Sequence[int] = (),
    ) -> None:
        if not weights_revision or not isinstance(weights_revision, str):
            raise InvalidArgumentError("weights_revision is what tells engines' weights apart")
        self._control, self._revision = control, weights_revision
        self._options = {
            "data": data,
            "tenant": tenant,
            "connections": connections,
            "region_bytes": region_bytes,
            "client_name": "lmcache",
        }
        self._timeout = timeout
        self._parts = connections
        self._pool = ThreadPoolExecutor(connections, "cairn-lmcache")
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._opening = threading.Lock()  # held while a session or a space is opened
        self._lock = threading.Lock()  # of all below; never held for a call to the daemon
        self._client: Client | None = None
        self._spaces: dict[int, Space | None] = dict.fromkeys(object_bytes)
        self._done: list[Completion] = []
        self._last_task = 0
        log.warning("cairn: LMCache's objects are kept as they are: recipes do not apply to bytes")

    # ------------------------------------------------------------------------- LMCache's calls

    def event_fd(self) -> int:
        return self._event

    def submit_batch_set(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        return self._submit(self._set, list(zip(keys, views, strict=True)), gives_results=False)

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        return self._submit(self._get, list(zip(keys, views, strict=True)))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._submit(self._exists, list(keys), part_count=1)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self._submit(self._delete, list(keys), part_count=1)

    def drain_completions(self) -> list[Completion]:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        with self._lock:
            done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Ends what runs, each within its timeout."""
        self._pool.shutdown()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    # ---------------------------------------------------------------------------------- a task

    def _submit(
        self,
        run: Callable[[list[Any], float], list[bool]],
        items: list[Any],
        part_count: int = 0,
        gives_results: bool = True,
    ) -> int:
        with self._lock:
            self._last_task += 1
            task = _Task(
                self._last_task, len(items), gives_results, time.monotonic() + self._timeout
            )
        parts = _cut(items, part_count or self._parts)
        task.parts_left = max(1, len(parts))
        for first, part in parts or [(0, [])]:
            self._pool.submit(self._run, task, run, first, part)
        return task.number

    def _run(
        self,
        task: _Task,
        run: Callable[[list[Any], float], list[bool]],
        first: int,
        part: list[Any],
    ) -> None:
        error, results = "", [False] * len(part)
        try:
            if part:
                results = run(part, task.deadline)
        except Error as raised:
            error = str(raised)
        except Exception as raised:  # LMCache waits for its tasks without a deadline
            log.exception("cairn: a task of LMCache failed")
            error = str(raised)
        with self._lock:
            task.results[first : first + len(part)] = results
            task.error = task.error or error
            task.parts_left -= 1
            if task.parts_left:
                return
            self._done.append(task.completion())
        os.eventfd_write(self._event, 1)

    def _set(self, items: list[tuple[str, memoryview]], deadline: float) -> list[bool]:
        results = self._move(items, deadline, Put, Space.put_batch)
        for result in results:
            if result.error is not None:
                raise result.error
        return [True] * len(items)

    def _get(self, items: list[tuple[str, memoryview]], deadline: float) -> list[bool]:
        return [bool(result) for result in self._move(items, deadline, Get, Space.get_batch)]

    def _move(
        self,
        items: list[tuple[str, memoryview]],
        deadline: float,
        request: Any,
        run: Callable[..., list[Any]],
    ) -> list[Any]:
        """What came of each object. Those of one length are in one space."""
        places: dict[int, list[int]] = {}
        for i, (_, view) in enumerate(items):
            places.setdefault(view.nbytes, []).append(i)
        results: list[Any] = [None] * len(items)
        for object_bytes, of in places.items():
            space = self._space(object_bytes, deadline)
            named = [(items[i][0], items[i][1].cast("B")) for i in of]
            requests = [request(_key(space, name), source=view) for name, view in named]
            for i, result in zip(of, run(space, requests, timeout=_left(deadline)), strict=True):
                results[i] = result
        return results

    def _exists(self, keys: list[str], deadline: float) -> list[bool]:
        found = [False] * len(keys)
        for space in self._known_spaces(deadline):
            there = space.contains([_key(space, key) for key in keys], timeout=_left(deadline))
            found = [a or b for a, b in zip(found, there, strict=True)]
        return found

    def _delete(self, keys: list[str], deadline: float) -> list[bool]:
        deleted = [False] * len(keys)
        for space in self._known_spaces(deadline):
            wanted = [_key(space, key) for key in keys]
            there = space.contains(wanted, timeout=_left(deadline))
            space.delete(wanted, timeout=_left(deadline))
            deleted = [a or b for a, b in zip(deleted, there, strict=True)]
        return deleted

    # ------------------------------------------------------------------------------- of spaces

    def _known_spaces(self, deadline: float) -> list[Space]:
        with self._lock:
            counts = list(self._spaces)
        return [self._space(count, deadline) for count in counts]

    def _space(self, object_bytes: int, deadline: float) -> Space:
        with self._lock:
            space = self._spaces.get(object_bytes)
        if space is not None:
            return space
        if not self._opening.acquire(timeout=_left(deadline)):
            raise DeadlineExceededError(f"no session with cairnd at {self._control} in time")
        try:
            return self._open(object_bytes, deadline)
        finally:
            self._opening.release()

    def _open(self, object_bytes: int, deadline: float) -> Space:
        with self._lock:
            client, space = self._client, self._spaces.get(object_bytes)
        if space is not None:
            return space
        if client is None:
            client = connect(self._control, **self._options, timeout=_left(deadline))
            with self._lock:
                self._client = client
        space = client.open_space(
            "lmcache",
            self._revision,
            [Group("state", 1, state_bytes=object_bytes)],
            tokens_per_block=_TOKENS,
            recipe="raw",
            timeout=_left(deadline),
        )
        with self._lock:
            self._spaces[object_bytes] = space
        return space


class _Task:
    def __init__(self, number: int, count: int, gives_results: bool, deadline: float) -> None:
        self.number, self.gives_results, self.deadline = number, gives_results, deadline
        self.parts_left = 0
        self.results = [False] * count
        self.error = ""

    def completion(self) -> Completion:
        results = self.results if self.gives_results else None
        return self.number, not self.error, self.error, results


def _left(deadline: float) -> float:
    """Seconds until then. DeadlineExceededError: none is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceededError("the task's time is over")
    return min(left, 60.0)


def _key(space: Space, name: str) -> bytes:
    return space.opaque_key(name.encode())


def _cut(items: list[Any], parts: int) -> list[tuple[int, list[Any]]]:
    """In parts of nearly equal length, each with the place of its first."""
    size = -(-len(items) // parts) or 1
    return [(i, items[i : i + size]) for i in range(0, len(items), size)]
