# SPDX-License-Identifier: Apache-2.0
"""Which adapter (LoRA) a request's KV is computed with. Its bytes say it, not its name or its folder:
a folder may be overwritten, a link be turned, a hub have a new commit.

An engine goes on with what it has in memory, though. So the scheduler names an adapter by the bytes
that lie there now, and each worker knows the bytes that vLLM has loaded in its process: where they are
not the same ones, nothing is loaded and nothing is saved.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from ..errors import Error
from .revision import Stamp, is_settled, revision_of, stamps_of

log = logging.getLogger("vllm.cairn")

_SETTLED_SECONDS = 2.0  # that files are seen as they are, where their times are of another clock


@dataclass(frozen=True)
class Adapter:
    """number: vLLM's, lora_int_id. revision: of its bytes."""

    number: int
    revision: str


def folder_of(path: str) -> str | None:
    """The folder that vLLM reads an adapter from, as its `get_adapter_absolute_path` finds it, but out
    of what the hub's cache has. None: it is not on this host."""
    if _is_local(path):
        folder = os.path.abspath(os.path.expanduser(path))
        return folder if os.path.isdir(folder) else None
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return None
    try:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(path, local_files_only=True))
    except Exception:  # there is no such package, repository, or snapshot yet
        return None


def _is_local(path: str) -> bool:
    return os.path.isabs(path) or path.startswith("~") or os.path.exists(path)


class Adapters:
    """The scheduler's side."""

    def __init__(self) -> None:
        self._loaded: dict[int, str | None] = {}  # as the workers say; None: not known, or not one
        self._seen: dict[str, tuple[dict[str, Stamp], float]] = {}  # when a folder became as it is
        self._said: set[tuple[str, str]] = set()

    def find(self, lora: Any) -> Adapter | None:
        """None: it has no name now. Requests of it are computed, and neither looked up nor saved."""
        try:
            revision, reason = self._revision_of(lora)
        except (Error, OSError) as error:
            revision, reason = None, str(error)
        if revision is not None:
            return Adapter(lora.lora_int_id, revision)
        if reason and (lora.lora_path, reason) not in self._said:
            self._said.add((lora.lora_path, reason))
            log.warning(
                "cairn: nothing is cached of the adapter %s: %s", lora.lora_name, reason
            )
        return None

    def _revision_of(self, lora: Any) -> tuple[str | None, str]:
        folder = folder_of(lora.lora_path)
        if folder is None:
            return None, f"{lora.lora_path} is no folder here, nor in the hub's cache"
        stamps, now = stamps_of(folder), time.monotonic()
        if self._seen.get(folder, ({}, 0.0))[0] != stamps:
            self._seen[folder] = (stamps, now)
        if not is_settled(stamps.values()) and now - self._seen[folder][1] < _SETTLED_SECONDS:
            return None, ""  # they may be about to change: soon there will be a name
        revision = revision_of(folder)
        if self._loaded.get(lora.lora_int_id, revision) != revision:
            return None, (
                f"the engine has other weights of it than {folder} has now: load it again"
                " (load_inplace), or under another name"
            )
        return revision, ""

    def value_of(self, lora: Any, adapter: Adapter) -> bytes:
        """All that K and V depend on of an adapter, for the keys. base_model_name and lora_int_id are
        labels; load_inplace says when it is read. The engine's options for adapters are in the space."""
        fields = [lora.lora_name, adapter.revision]
        fields += ["3d"] if getattr(lora, "is_3d_lora_weight", False) else []
        return "\0".join(fields).encode()

    def take(self, loaded: dict[int, str | None]) -> None:
        """What workers have loaded, by vLLM's numbers."""
        self._loaded.update(loaded)


class LoadedAdapters:
    """What vLLM has loaded in this process, from the moment of `watch` on. Calls come from the engine's
    thread."""

    def __init__(self) -> None:
        self._is_watching = False
        self.have_other_weights = False  # below them: then nothing is what its name says
        self._seen_count = 0
        self._told: dict[int, str | None] = {}

    def watch(self) -> None:
        """vLLM tells nobody when it loads an adapter: what does it is wrapped."""
        try:
            _wrap(importlib.import_module("vllm.lora.worker_manager"))
            self._is_watching = True
        except (ImportError, AttributeError) as error:
            log.warning(
                "cairn: nothing is cached of adapters: how this vLLM loads them is not known (%s)", error
            )

    def may_load(self, adapter: Adapter | None) -> bool:
        """Whether KV of it may be brought in. One that is not loaded yet will be, as it is named."""
        if adapter is None or self.have_other_weights:
            return not self.have_other_weights
        is_same = not _is_loaded(adapter.number) or _loaded(adapter.number) == adapter.revision
        return self._is_watching and is_same

    def may_save(self, adapter: Adapter | None) -> bool:
        """Whether what was computed with it is what its name says."""
        if adapter is None or self.have_other_weights:
            return not self.have_other_weights
        return self._is_watching and _loaded(adapter.number) == adapter.revision

    def take_news(self) -> dict[int, str | None]:
        """What was loaded since the last call."""
        with _lock:
            if self._seen_count == _loads.count:
                return {}
            self._seen_count = _loads.count
            numbers = {number for of in _loads.of_managers.values() for number in of}
        now = {number: _loaded(number) for number in numbers}
        news = {number: found for number, found in now.items() if self._told.get(number, "") != found}
        self._told.update(news)
        return news


class _Loads:
    """Of this process, guarded by _lock. of_managers: what each of vLLM's managers of adapters has
    loaded, by number; None: it is not known what."""

    count = 0
    of_managers: weakref.WeakKeyDictionary[Any, dict[int, str | None]] = weakref.WeakKeyDictionary()


_lock = threading.Lock()
_loads = _Loads()
_resolved = threading.local()  # folder: the last one that vLLM found for an adapter, in a thread


def _is_loaded(number: int) -> bool:
    with _lock:
        return any(number in of for of in _loads.of_managers.values())


def _loaded(number: int) -> str | None:
    """The revision that all managers have which have loaded it. None: there is no such one."""
    with _lock:
        found = {of[number] for of in _loads.of_managers.values() if number in of}
    return found.pop() if len(found) == 1 else None


def _wrap(managers: Any) -> None:
    """managers: vLLM's module of that name."""
    load, resolve = managers.WorkerLoRAManager._load_adapter, managers.get_adapter_absolute_path
    if getattr(load, "is_of_cairn", False):
        return

    @functools.wraps(resolve)
    def resolve_and_note(path: str) -> str:
        _resolved.folder = resolve(path)
        return str(_resolved.folder)

    @functools.wraps(load)
    def load_and_note(manager: Any, lora: Any) -> Any:
        before, _resolved.folder = folder_of(lora.lora_path), None
        earlier = _try_revision(before)
        made = load(manager, lora)
        revision = _try_revision(_resolved.folder)
        is_same_folder = _is_local(lora.lora_path) or _resolved.folder == before
        if is_same_folder and revision != earlier:
            revision = None  # it changed meanwhile
        with _lock:
            _loads.count += 1
            _loads.of_managers.setdefault(manager, {})[lora.lora_int_id] = revision
        return made

    load_and_note.is_of_cairn = True  # type: ignore[attr-defined]
    managers.get_adapter_absolute_path = resolve_and_note
    managers.WorkerLoRAManager._load_adapter = load_and_note


def _try_revision(folder: str | None) -> str | None:
    try:
        return None if folder is None else revision_of(folder)
    except Exception as error:  # whatever it is, vLLM loads it all the same
        log.debug("cairn: what the adapter in %s is is not known: %s", folder, error)
        return None
