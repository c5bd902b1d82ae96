# SPDX-License-Identifier: Apache-2.0
"""Identifies the adapter (LoRA) with which a request's KV is computed. Its bytes identify it, not
its name or its folder: the files of a folder, the target of a link and the commit of a hub can
change.

An engine keeps using the adapter that it has in memory. The scheduler therefore names an adapter by
the bytes that are on disk now, and each worker knows the bytes that vLLM has loaded in its process.
If they differ, nothing is loaded and nothing is saved.
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

# Time after which changes are visible, even if files have the times of another clock.
_SETTLED_SECONDS = 2.0


@dataclass(frozen=True)
class Adapter:
    """number: lora_int_id of vLLM. revision: identifies its bytes."""

    number: int
    revision: str


def folder_of(path: str) -> str | None:
    """Returns the folder from which vLLM reads an adapter. Searches like vLLM's
    `get_adapter_absolute_path`, but only in the hub's local cache. None: the adapter is not on this
    host."""
    if _is_local(path):
        folder = os.path.abspath(os.path.expanduser(path))
        return folder if os.path.isdir(folder) else None
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return None
    try:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(path, local_files_only=True))
    except Exception:  # the package, the repository or the snapshot does not exist yet
        return None


def _is_local(path: str) -> bool:
    return os.path.isabs(path) or path.startswith("~") or os.path.exists(path)


class Adapters:
    """The scheduler's part."""

    def __init__(self) -> None:
        # As workers report them; None: unknown, or workers differ.
        self._loaded: dict[int, str | None] = {}
        # The files of a folder, and when they were first seen.
        self._seen: dict[str, tuple[dict[str, Stamp], float]] = {}
        self._said: set[tuple[str, str]] = set()

    def find(self, lora: Any) -> Adapter | None:
        """Returns None if the adapter has no name now. Then its requests are computed, but neither
        looked up nor saved."""
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
            return None, ""  # the files may still change; the adapter has a name soon
        revision = revision_of(folder)
        if self._loaded.get(lora.lora_int_id, revision) != revision:
            return None, (
                f"the engine has other weights of it than {folder} has now: load it again"
                " (load_inplace), or under another name"
            )
        return revision, ""

    def value_of(self, lora: Any, adapter: Adapter) -> bytes:
        """Returns the properties of an adapter that K and V depend on, for the keys.
        base_model_name and lora_int_id are only labels, and load_inplace only affects when it is
        read. The engine's options for adapters are part of the space."""
        fields = [lora.lora_name, adapter.revision]
        fields += ["3d"] if getattr(lora, "is_3d_lora_weight", False) else []
        return "\0".join(fields).encode()

    def take(self, loaded: dict[int, str | None]) -> None:
        """Records the adapters that workers have loaded, by vLLM's numbers."""
        self._loaded.update(loaded)


class LoadedAdapters:
    """The adapters that vLLM has loaded in this process since `watch`. Only the engine's thread
    calls this class."""

    def __init__(self) -> None:
        self._is_watching = False
        # The model's weights; then no adapter's name identifies the KV.
        self.have_other_weights = False
        self._seen_count = 0
        self._told: dict[int, str | None] = {}

    def watch(self) -> None:
        """Wraps vLLM's functions that load adapters, because vLLM does not report loads."""
        try:
            _wrap(importlib.import_module("vllm.lora.worker_manager"))
            self._is_watching = True
        except (ImportError, AttributeError) as error:
            log.warning(
                "cairn: nothing is cached of adapters: how this vLLM loads them is not known (%s)", error
            )

    def may_load(self, adapter: Adapter | None) -> bool:
        """Returns whether KV of the adapter may be loaded. An adapter that vLLM has not loaded yet
        will have the bytes of its name."""
        if adapter is None or self.have_other_weights:
            return not self.have_other_weights
        is_same = not _is_loaded(adapter.number) or _loaded(adapter.number) == adapter.revision
        return self._is_watching and is_same

    def may_save(self, adapter: Adapter | None) -> bool:
        """Returns whether KV that was computed with the adapter matches its name."""
        if adapter is None or self.have_other_weights:
            return not self.have_other_weights
        return self._is_watching and _loaded(adapter.number) == adapter.revision

    def take_news(self) -> dict[int, str | None]:
        """Returns the adapters that were loaded since the last call."""
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
    """The loads of this process, guarded by _lock. of_managers: the adapters that each of vLLM's
    managers has loaded, by number; None: unknown."""

    count = 0
    of_managers: weakref.WeakKeyDictionary[Any, dict[int, str | None]] = weakref.WeakKeyDictionary()


_lock = threading.Lock()
_loads = _Loads()
_resolved = threading.local()  # the last folder that vLLM found for an adapter, by thread


def _is_loaded(number: int) -> bool:
    with _lock:
        return any(number in of for of in _loads.of_managers.values())


def _loaded(number: int) -> str | None:
    """Returns the revision that all managers have that loaded the adapter. None: there is none, or
    they differ."""
    with _lock:
        found = {of[number] for of in _loads.of_managers.values() if number in of}
    return found.pop() if len(found) == 1 else None


def _wrap(managers: Any) -> None:
    """managers: vLLM's module worker_manager."""
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
            revision = None  # it changed during the load
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
    except Exception as error:  # vLLM loads it whatever the error
        log.debug("cairn: what the adapter in %s is is not known: %s", folder, error)
        return None
