# SPDX-License-Identifier: Apache-2.0
"""Weights that vLLM loads into a running engine, of which it tells no connector: its workers' methods
that do it are wrapped. What a program of the user's writes into a model by itself is not seen: the
program tells which weights there are then (`weights_are_now`)."""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

from ..errors import InvalidArgumentError

_METHODS = ("reload_weights", "start_weight_update")  # of vLLM's Worker

_lock = threading.Lock()
_counts = {"files": 0, "others": 0}  # of loads in this process, guarded by _lock, as is _named
# How often weights were named, the last name, and the counts then.
_named: tuple[int, str, dict[str, int]] = (0, "", {})


def weights_are_now(revision: str) -> None:
    """Names the weights that the model in this process has from now on, whatever was loaded before.
    Call it in every worker of an engine, between steps, once the weights are there. `WorkerExtension`
    does it by vLLM's own means. Two engines must give equal weights the same name, and other weights
    another one. Blocks that are still in the engine's own cache are the engine's affair: reset it."""
    global _named
    if not revision or not isinstance(revision, str):
        raise InvalidArgumentError(f"revision is {revision!r}, expected a name of the weights")
    with _lock:
        _named = (_named[0] + 1, revision, dict(_counts))


class WorkerExtension:
    """For vLLM's --worker-extension-cls cairn.vllm.WorkerExtension. Then a trainer calls

    llm.collective_rpc("cairn_weights_are_now", args=(revision,))
    """

    def cairn_weights_are_now(self, revision: str) -> None:
        weights_are_now(revision)


class Reloads:
    """Of this process, from now on. files: of those that the engine began with, read again. others: out
    of another folder, or from a trainer."""

    def __init__(self) -> None:
        self._seen = _now()
        self._named_count = _named[0]

    def watch(self) -> None:
        """Whatever this vLLM has of the methods."""
        try:
            worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
        except (ImportError, AttributeError):
            return
        for name in _METHODS:
            if hasattr(worker, name):
                _wrap(worker, name)

    def take_name(self) -> str | None:
        """What the weights are called since the last call, if they have got a name since. Loads before
        that are not counted any more."""
        with _lock:
            count, revision, loads = _named
        if count == self._named_count:
            return None
        self._named_count, self._seen = count, loads
        return revision

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
