# SPDX-License-Identifier: Apache-2.0
"""Detects that vLLM loads weights into a running engine. vLLM does not report this to connectors,
so the methods of its workers that load weights are wrapped. If your program writes into a model by
itself, this is not detected. The program must then name the new weights (`weights_are_now`).
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

from ..errors import InvalidArgumentError

_METHODS = ("reload_weights", "start_weight_update")  # a class of vLLM

_lock = threading.Lock()
_counts = {"files": 0, "others": 0}  # loads in this process, guarded by _lock, like _named
# The number of calls that named weights, the last name, and the counts at that time.
_named: tuple[int, str, dict[str, int]] = (0, "", {})


def weights_are_now(revision: str) -> None:
    """Names the weights that the model in this process has from now on, whatever was loaded before.
    Call it in every worker of an engine, between steps, after the weights were loaded.
    `WorkerExtension` does this by vLLM's own means. Two engines must use the same name for equal
    weights, and different names for different weights. Blocks in the engine's own cache are not
    affected: reset that cache yourself."""
    global _named
    if not revision or not isinstance(revision, str):
        raise InvalidArgumentError(f"revision is {revision!r}, expected a name of the weights")
    with _lock:
        _named = (_named[0] + 1, revision, dict(_counts))


class WorkerExtension:
    """For vLLM's option --worker-extension-cls cairn.vllm.WorkerExtension. A trainer then calls

        llm.collective_rpc("cairn_weights_are_now", args=(revision,))
    """

    def cairn_weights_are_now(self, revision: str) -> None:
        weights_are_now(revision)


class Reloads:
    """Loads of weights in this process from now on. files: loads of the engine's original files.
    others: loads from another folder, or from a trainer."""

    def __init__(self) -> None:
        self._seen = _now()
        self._named_count = _named[0]

    def watch(self) -> None:
        """Wraps those methods that this vLLM has."""
        try:
            worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
        except (ImportError, AttributeError):
            return
        for name in _METHODS:
            if hasattr(worker, name):
                _wrap(worker, name)

    def take_name(self) -> str | None:
        """Returns the name that the weights got since the last call, if any. Loads before that are
        no longer counted."""
        with _lock:
            count, revision, loads = _named
        if count == self._named_count:
            return None
        self._named_count, self._seen = count, loads
        return revision

    def take(self) -> dict[str, int]:
        """Returns the number of loads since the last call."""
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
