# SPDX-License-Identifier: Apache-2.0
"""Detects whether SGLang's process still has the weights that its page names refer to.

SGLang can replace weights in a running process (`/update_weights_from_disk`, …). It then drops its
pages in device and host memory, but does not tell the third level: the names of pages stay the
same, while the stored KV belongs to the old weights. So this module listens where SGLang's runner
changes weights. A trainer can also name the weights itself (`Weights.name`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from .errors import FailedPreconditionError, InvalidArgumentError

_PATH = "sglang.srt.model_executor.model_runner_components.weight_updater"
_KIND = "WeightUpdater"
_CHANGES = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)
_BEGINS, _ENDS = "begin_weight_update", "end_weight_update"  # around changes in several steps
_HEARD = "_cairn_listens"
_SCHEDULER, _CALLED = "sglang.srt.managers.scheduler", "cairn_weights_are_now"
_FIRST = "default"  # SGLang's weight_version if the user did not set one


@dataclasses.dataclass(frozen=True)
class Current:
    """What the weights are called now. revision: the name that a trainer gave them, in place of the
    setting `weights_revision`; None: the setting counts. version: of SGLang, and part of the names
    of pages; empty for the first weights, and for those that `revision` names."""

    revision: str | None = None
    version: str = ""


class Weights:
    """Thread-safe: SGLang's scheduler changes weights, and its storage threads read the version."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes, self._is_between = 0, False  # running; in several steps
        self._before: str | None = None  # SGLang's weight_version at the last change
        self._named: tuple[str, str] | None = None  # the last name, and SGLang's version then

    def listen(self) -> None:
        """Call it once per process. Raises FailedPreconditionError if changes of this SGLang's
        weights cannot be detected."""
        try:
            kind = getattr(importlib.import_module(_PATH), _KIND)
            absent = [name for name in (*_CHANGES, _BEGINS, _ENDS) if not hasattr(kind, name)]
        except (ImportError, AttributeError) as error:
            raise _unheard(f"there is no {_PATH}.{_KIND}") from error
        if absent:
            raise _unheard(f"{_PATH}.{_KIND} has no {absent[0]}")
        if getattr(kind, _HEARD, None) is self:
            return
        for name in _CHANGES:
            _wrap(kind, name, self._begin, self._end)
        _wrap(kind, _BEGINS, self._open, None)
        _wrap(kind, _ENDS, None, self._close)
        setattr(kind, _HEARD, self)
        scheduler = getattr(sys.modules.get(_SCHEDULER), "Scheduler", None)
        if scheduler is not None:  # SGLang's calls to all ranks find it there

            def named(_: Any, revision: str) -> None:
                self.name(revision)

            setattr(scheduler, _CALLED, named)

    def name(self, revision: str) -> None:
        """Names the weights that the process has now. The next update, or another `weight_version`,
        ends it."""
        if not revision or not isinstance(revision, str):
            raise InvalidArgumentError(f"revision is {revision!r}, expected a name of the weights")
        now = _version()
        with self._lock:
            self._named, self._before = (revision, now), None

    def current(self) -> Current | None:
        """None: the weights have changed and have no name of their own."""
        now = _version()
        with self._lock:
            if self._changes or self._is_between or now == self._before:
                return None
            if self._named is not None and self._named[1] == now:
                return Current(self._named[0])
            self._named = None
        return Current(version="" if now == _FIRST else now)

    def _begin(self) -> None:
        with self._lock:
            self._named = None
            if not self._is_between:
                self._before = _version()
            self._changes += 1

    def _end(self) -> None:
        with self._lock:
            self._changes -= 1

    def _open(self) -> None:
        with self._lock:
            self._named = None
            if not self._is_between:
                self._before = _version()
            self._is_between = True

    def _close(self) -> None:
        with self._lock:
            self._is_between = False


WEIGHTS = Weights()  # of this process


def _version() -> str:
    from sglang.srt import runtime_context

    return str(runtime_context.get_serving().weight_version)


def _wrap(
    kind: Any, name: str, before: Callable[[], None] | None, after: Callable[[], None] | None
) -> None:
    inner = getattr(kind, name)

    @functools.wraps(inner)
    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before()
        try:
            return inner(*arguments, **named)
        finally:
            if after is not None:
                after()

    setattr(kind, name, call)


def _unheard(why: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        "updates of SGLang's weights cannot be seen, after which pages would be named by others:"
        f" {why}. Cairn was tried with SGLang 0.5.23"
    )
