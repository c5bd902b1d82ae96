# SPDX-License-Identifier: Apache-2.0
"""Evaluates recipes for a model: codes its KV with each, and reports the loss and the size.

    found = evaluate("/tmp/capture/0", ["exact", "kivi:4"])
    best = recommend(found, Loss("kv_error", 0.05))

`python -m cairn.evaluate --help` describes dumps and judges. Needs numpy: the wheel's extra `evaluate`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import evaluate
    from .choice import Loss, parse_loss, recommend
    from .command import main
    from .dump import Dump, Kv, read_dump
    from .judge import Judge, find_judge
    from .measure import Evaluation

_HOMES = {
    "Dump": "dump",
    "Evaluation": "measure",
    "Judge": "judge",
    "Kv": "dump",
    "Loss": "choice",
    "evaluate": "bench",
    "find_judge": "judge",
    "main": "command",
    "parse_loss": "choice",
    "read_dump": "dump",
    "recommend": "choice",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Imports the names at their first use, because they load numpy, and `__main__` must set its
    environment before that."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
