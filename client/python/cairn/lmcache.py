# SPDX-License-Identifier: Apache-2.0
"""LMCache's second level in Cairn: a client for its `native_plugin` adapter
(docs/guides/lmcache.md).

    --l2-adapter '{"type": "native_plugin", "module_path": "cairn.lmcache", "class_name": "CairnL2",
                   "adapter_params": {"control": "127.0.0.1:50151", "weights_revision": "…"}}'

LMCache does not describe the layout of KV in its objects, so they are stored as bytes. If you set
`dtype`, they are coded without loss as elements in any order (`_elements.py`). If you also set the
shape of the model, they are stored as K and V, or as latents, for every recipe (`_planes.py`). LMCache's keys do
not identify the weights or the layout; `weights_revision` does. This module imports nothing of
LMCache.

Objects of one length form a space. A key does not contain a length, and LMCache looks up objects
before it allocates memory for them. The store therefore also keeps the last length of each model,
rank and group.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ._deadline import time_left
from ._elements import Elements
from ._planes import Planes
from ._settings import StoreSettings, settings_of
from .client import Client, connect
from .errors import DeadlineExceededError, Error, InvalidArgumentError
from .space import Space
from .transfer import Get, Names, Put

_TOKENS = 16  # tokens of a block: without meaning for bytes
_OBJECTS, _NOTES = "lmcache", "lmcache lengths"  # models of spaces: objects, and their lengths
# Objects of stated latents. Rows in any order may be a group of the same shape, but never take a loss.
_LATENTS = "lmcache latents"
_NOTE_BYTES = 16
_NOTES_MAX = 64  # lengths that a model, rank and group have had
_NOTE_SECONDS = 60  # after this time, a length in use is stored again

log = logging.getLogger("cairn.lmcache")

Completion = tuple[int, bool, str, "list[bool] | None"]


@dataclasses.dataclass(frozen=True)
class Settings(StoreSettings):
    """weights_revision: distinguishes models, weights, dtypes and layouts of engines that use the
    same names. connections: the number of parts of a task, which move at the same time. timeout:
    for a task, from its submission. object_bytes: lengths to look for if the store does not have
    the length of a model's objects. dtype: type of the objects' elements. kv_layers, kv_heads,
    head_dim: the shape of K and V in an object. kv_layers, latent_dim: the shape of latents in an
    object. recipe: for objects of that shape; None: exact."""

    connections: int = 4
    timeout: float = 10.0  # seconds
    object_bytes: Sequence[int] = ()
    dtype: str | None = None
    kv_layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    recipe: str | None = None


class CairnL2:
    """The calls of LMCache's adapter. Every task ends, with a result per key. A failed load is a
    miss, and a failed save is not stored. After a failure, the next task asks the daemon again."""

    def __init__(self, **adapter_params: Any) -> None:
        """adapter_params: the fields of Settings. Raises InvalidArgumentError, which names the
        wrong field."""
        settings = settings_of(Settings, "adapter_params", adapter_params)
        self._settings = settings
        self._elements = Elements("adapter_params", settings.dtype, log)
        shape = settings.kv_layers, settings.kv_heads, settings.head_dim, settings.latent_dim
        self._planes = Planes.of("adapter_params", *shape, settings.dtype)
        if settings.recipe is not None and self._planes is None:
            raise InvalidArgumentError(
                f"adapter_params: recipe is {settings.recipe!r}, which needs kv_layers, kv_heads,"
                " head_dim and dtype, or kv_layers, latent_dim and dtype"
            )
        self._pool = ThreadPoolExecutor(settings.connections, "cairn-lmcache")
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._opening = threading.Lock()  # held while a session or a space is opened
        self._lock = threading.Lock()  # guards all below; never held during a call to the daemon
        self._client: Client | None = None
        self._spaces: dict[tuple[str, int], Space] = {}
        # Lengths of objects by model, rank and group.
        self._used: dict[str, list[int]] = {}
        self._noted: dict[str, tuple[int, float]] = {}  # the stored length, and the time
        self._done: list[Completion] = []
        self._last_task = 0
        if settings.dtype is None:
            log.warning(
                "cairn: LMCache's objects are kept as they are: recipes do not apply to bytes. If their"
                ' elements are bf16, say so: "dtype": "bf16"'
            )

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
        """Ends running tasks, each within its timeout."""
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
            deadline = time.monotonic() + self._settings.timeout
            task = _Task(self._last_task, len(items), gives_results, deadline)
        parts = _cut(items, part_count or self._settings.connections)
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
        results = self._move(items, deadline, _put_of, Space.put_batch)
        for result in results:
            if result.error is not None:
                raise result.error
        self._note({_kind_of(key): view.nbytes for key, view in items}, deadline)
        return [True] * len(items)

    def _get(self, items: list[tuple[str, memoryview]], deadline: float) -> list[bool]:
        return [bool(result) for result in self._move(items, deadline, _get_of, Space.get_batch)]

    def _move(
        self,
        items: list[tuple[str, memoryview]],
        deadline: float,
        request: Any,
        run: Callable[..., list[Any]],
    ) -> list[Any]:
        """Returns the result of each object. Objects of one length are in one space."""
        places: dict[int, list[int]] = {}
        for i, (key, view) in enumerate(items):
            places.setdefault(view.nbytes, []).append(i)
            self._use(_kind_of(key), view.nbytes)
        results: list[Any] = [None] * len(items)
        for object_bytes, of in places.items():
            space = self._space(object_bytes, deadline)
            named = [(items[i][0], items[i][1].cast("B")) for i in of]
            requests = [request(_key(space, name), name, view) for name, view in named]
            if self._planes is not None and space.spec.groups[0].kind == "kv":
                if request is _put_of:
                    requests = [self._planes.put_of(space, one) for one in requests]
                else:
                    run = self._planes.get
            found = run(space, requests, timeout=time_left(deadline))
            if request is _put_of:
                self._elements.note(object_bytes, found)
            for i, result in zip(of, found, strict=True):
                results[i] = result
        return results

    def _exists(self, keys: list[str], deadline: float) -> list[bool]:
        """Looks for objects of the last length of the keys' model, since LMCache loads no other
        length."""
        found = [False] * len(keys)
        for kind, places in _by_kind(keys).items():
            known = self._used_lengths(kind) or self._noted_lengths(kind, deadline)
            for object_bytes in known[-1:] or self._settings.object_bytes:
                space = self._space(object_bytes, deadline)
                wanted = [_key(space, keys[i]) for i in places]
                there = space.contains(wanted, timeout=time_left(deadline))
                for i, is_there in zip(places, there, strict=True):
                    found[i] = found[i] or is_there
        return found

    def _delete(self, keys: list[str], deadline: float) -> list[bool]:
        deleted = [False] * len(keys)
        for kind, places in _by_kind(keys).items():
            known = (*self._used_lengths(kind), *self._noted_lengths(kind, deadline))
            for object_bytes in {*known, *self._settings.object_bytes}:
                space = self._space(object_bytes, deadline)
                wanted = [_key(space, keys[i]) for i in places]
                there = space.contains(wanted, timeout=time_left(deadline))
                space.delete(wanted, timeout=time_left(deadline))
                for i, is_there in zip(places, there, strict=True):
                    deleted[i] = deleted[i] or is_there
        return deleted

    # ------------------------------------------------------------------------------ of lengths

    def _use(self, kind: str, object_bytes: int) -> None:
        with self._lock:
            used = self._used.setdefault(kind, [])
            if object_bytes in used:
                used.remove(object_bytes)
            used.append(object_bytes)

    def _used_lengths(self, kind: str) -> list[int]:
        """Returns the lengths that this process has used, the latest last."""
        with self._lock:
            return list(self._used.get(kind, ()))

    def _noted_lengths(self, kind: str, deadline: float) -> list[int]:
        """Returns the lengths that any process has stored, in their order."""
        space = self._open(_NOTES, _NOTE_BYTES, deadline)
        keys = _note_keys(space, kind)
        count = space.match(keys, lease=False, timeout=time_left(deadline)).block_count
        notes = [bytearray(_NOTE_BYTES) for _ in range(count)]
        gets = [Get(key, source=note) for key, note in zip(keys, notes, strict=False)]
        results = space.get_batch(gets, timeout=time_left(deadline)) if gets else []
        there = itertools.takewhile(lambda pair: bool(pair[0]), zip(results, notes, strict=True))
        return [int.from_bytes(note, "little") for _, note in there]

    def _note(self, lengths: dict[str, int], deadline: float) -> None:
        """Stores the length of current objects of each kind for later processes. Repeats it from
        time to time, so that a length in use stays in the store."""
        due = {}
        with self._lock:
            for kind, object_bytes in lengths.items():
                noted, at = self._noted.get(kind, (0, 0.0))
                if noted != object_bytes or time.monotonic() - at >= _NOTE_SECONDS:
                    due[kind] = object_bytes
                    self._noted[kind] = object_bytes, time.monotonic()
        if not due:
            return
        try:
            for kind, object_bytes in self._note_first(due, deadline).items():
                self._append_note(kind, object_bytes, deadline)
        except Error as error:  # the objects are stored all the same
            log.warning("cairn: the length of %s's objects is not kept: %s", next(iter(due)), error)

    def _note_first(self, lengths: dict[str, int], deadline: float) -> dict[str, int]:
        """Stores the notes of kinds that have none, all at once. Returns the other kinds."""
        space = self._open(_NOTES, _NOTE_BYTES, deadline)
        firsts = [_note_keys(space, kind)[0] for kind in lengths]
        there = space.contains(firsts, timeout=time_left(deadline))
        puts = [
            Put(key, source=_note_bytes(object_bytes))
            for key, object_bytes, is_there in zip(firsts, lengths.values(), there, strict=True)
            if not is_there
        ]
        for result in space.put_batch(puts, timeout=time_left(deadline)) if puts else []:
            if result.error is not None:
                raise result.error
        return {kind: lengths[kind] for kind, is_there in zip(lengths, there, strict=True) if is_there}

    def _append_note(self, kind: str, object_bytes: int, deadline: float) -> None:
        space = self._open(_NOTES, _NOTE_BYTES, deadline)
        keys = _note_keys(space, kind)
        while True:  # terminates: each retry follows a new note, and there are few
            noted = self._noted_lengths(kind, deadline)
            if noted[-1:] == [object_bytes] or len(noted) == len(keys):
                return
            at = len(noted)
            put = Put(
                keys[at],
                source=_note_bytes(object_bytes),
                parent=keys[at - 1] if at else None,
                first_position=at * _TOKENS,
            )
            result = space.put_batch([put], timeout=time_left(deadline))[0]
            if result.error is not None:
                raise result.error

    # ------------------------------------------------------------------------------- of spaces

    def _space(self, object_bytes: int, deadline: float) -> Space:
        return self._open(_OBJECTS, object_bytes, deadline)

    def _open(self, model: str, object_bytes: int, deadline: float) -> Space:
        with self._lock:
            space = self._spaces.get((model, object_bytes))
        if space is not None:
            return space
        if not self._opening.acquire(timeout=time_left(deadline)):
            control = self._settings.control
            raise DeadlineExceededError(f"no session with cairnd at {control} in time")
        try:
            return self._open_first(model, object_bytes, deadline)
        finally:
            self._opening.release()

    def _open_first(self, model: str, object_bytes: int, deadline: float) -> Space:
        settings = self._settings
        with self._lock:
            client, space = self._client, self._spaces.get((model, object_bytes))
        if space is not None:
            return space
        if client is None:
            client = connect(
                settings.control,
                data=settings.data,
                tenant=settings.tenant,
                connections=settings.connections,
                region_bytes=settings.region_bytes,
                client_name="lmcache",
                timeout=time_left(deadline),
                tls_ca=settings.tls_ca,
                tls_cert=settings.tls_cert,
                tls_key=settings.tls_key,
                tls_server=settings.tls_server,
                transports=settings.transports,
            )
            with self._lock:
                self._client = client
        elements = self._elements if model == _OBJECTS else Elements("", None, log)
        recipe, found = elements.recipe, None
        if self._planes is not None and model == _OBJECTS:
            found = self._planes.group_of(object_bytes)
            if found is None:
                log.warning(
                    "cairn: objects of %d bytes do not have the shape of adapter_params (%s): they are kept"
                    " as %s in any order",
                    object_bytes,
                    self._planes,
                    settings.dtype,
                )
            else:
                recipe = settings.recipe or recipe
        group, tokens = found or elements.group_of(object_bytes, _TOKENS)
        is_latent = found is not None and group.kind == "latent"
        space = client.open_space(
            _LATENTS if is_latent else model,
            settings.weights_revision,
            [group],
            dtype=elements.dtype or "bf16",
            tokens_per_block=tokens,
            recipe=recipe,
            timeout=time_left(deadline),
        )
        with self._lock:
            self._spaces[model, object_bytes] = space
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


def _note_bytes(object_bytes: int) -> bytearray:
    return bytearray(object_bytes.to_bytes(_NOTE_BYTES, "little"))


def _kind_of(key: str) -> str:
    """Returns model, rank and group of `model@rank@group@hash` or `model@rank@group@hash@salt`."""
    return "@".join(key.split("@")[:3])


def _put_of(key: bytes, lmcache_key: str, source: Any) -> Put:
    """Returns the put of an object whose name has LMCache's hash of its tokens (`_kind_of`)."""
    parts = lmcache_key.split("@")
    return Put(key, source=source, names=Names.of_hex(parts[3]) if len(parts) > 3 else None)


def _get_of(key: bytes, _: str, target: Any) -> Get:
    return Get(key, source=target)


def _by_kind(keys: Sequence[str]) -> dict[str, list[int]]:
    """Returns the indices of the keys of each kind."""
    places: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(_kind_of(key), []).append(i)
    return places


def _note_keys(space: Space, kind: str) -> list[bytes]:
    return [_key(space, f"{i} {kind}") for i in range(_NOTES_MAX)]


def _key(space: Space, name: str) -> bytes:
    return space.opaque_key(name.encode())


def _cut(items: list[Any], parts: int) -> list[tuple[int, list[Any]]]:
    """Divides `items` into parts of nearly equal length, each with the index of its first item."""
    size = -(-len(items) // parts) or 1
    return [(i, items[i : i + size]) for i in range(0, len(items), size)]
