# SPDX-License-Identifier: Apache-2.0
"""Weights that vLLM loads into a running engine, of which it tells no connector: its workers' methods
that do it are wrapped. What a program of the user's writes into a model by itself is not seen."""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

_METHODS = ("reload_weights", "start_weight_update")  # of vLLM's Worker

_lock = threading.Lock()
_counts = {"files": 0, "others": 0}  # of loads in this process, guarded by _lock


class Reloads:
    """Of this process, from now on. files: of those that the engine began with, read again. others: out
    of another folder, or from a trainer."""

    def __init__(self) -> None:
        self._seen = _now()

    def watch(self) -> None:
        """Whatever this vLLM has of the methods."""
        try:
            worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
        except (ImportError, AttributeError):
            return
        for name in _METHODS:
            if hasattr(worker, name):
                _wrap(worker, name)

    def take(self) -> dict[str, int]:
        """How many there were since the last call."""
        now, before = _now(), self._seen
        self._seen = now
        return {kind: count - before[kind] for kind, count in now.items()}


def _now() -> dict[str, int]:
    with _lock:
        return dict(_counts)


def _wrap(worker: Any, name: str) -> None:
    method = getattr(worker, name)
    if getattr(method, "is_of_cairn", False):
        return

    @functools.wraps(method)
    def note_and_call(self: Any, *arguments: Any, **more: Any) -> Any:
        is_same = name == "reload_weights" and not arguments and not more
        with _lock:
            _counts["files" if is_same else "others"] += 1
        return method(self, *arguments, **more)

    note_and_call.is_of_cairn = True  # type: ignore[attr-defined]
    setattr(worker, name, note_and_call)
