# SPDX-License-Identifier: Apache-2.0
"""Judges coded KV by the model's predictions after it. Needs numpy."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable

import numpy as np

from ..errors import InvalidArgumentError
from . import metrics
from .dump import Kv

# A judge continues after a prefix, given its KV. It returns logits [positions, vocabulary], or
# logits and the tokens that really came next. It must not change the KV, and must return the same
# result for the same KV. It gets 8-bit floats as bf16 that are multiplied by their scales.
Judge = Callable[[Kv], "np.ndarray | tuple[np.ndarray, np.ndarray]"]


def find_judge(named: str) -> Callable[[pathlib.Path], Judge]:
    """`named` is MODULE:FUNCTION or FILE.py:FUNCTION. Calls FUNCTION(folder) with a dump's folder,
    which returns the judge of that dump."""
    where, _, name = named.rpartition(":")
    if not where or not name:
        raise InvalidArgumentError(f"the judge is {named!r}, expected MODULE:FUNCTION")
    try:
        module = _load_file(where) if where.endswith(".py") else importlib.import_module(where)
    except (ImportError, FileNotFoundError) as error:
        raise InvalidArgumentError(f"judge {named}: {error}") from error
    make = getattr(module, name, None)
    if not callable(make):
        raise InvalidArgumentError(f"judge {named}: {where} has no function {name}")

    def judge_of(folder: pathlib.Path) -> Judge:
        judge = make(folder)
        if not callable(judge):
            raise InvalidArgumentError(f"judge {named}: {name}(folder) returned no function")
        return judge

    return judge_of


def fingerprint_of(named: str, *folders: pathlib.Path) -> str:
    """Returns a digest of a judge's name, of its file if it is one, and of the files that it may
    read in the folders, without tensors."""
    found = hashlib.sha256(named.encode())
    where = pathlib.Path(named.rpartition(":")[0])
    paths = [where] if where.suffix == ".py" and where.is_file() else []
    paths += sorted(
        path
        for folder in folders
        for path in folder.iterdir()
        if path.is_file()
        and path.suffix not in (".safetensors", ".npy")
        and not path.name.startswith("evaluate.")  # our own files
    )
    for path in paths:
        found.update(f" {path.name} ".encode() + path.read_bytes())
    return found.hexdigest()


def _load_file(path: str):
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_same(one: Kv, other: Kv) -> bool:
    """Returns whether both are equal bit for bit. The judge's result is then known."""
    for planes in ((one.k, other.k), (one.v, other.v)):
        for layer, array in planes[0].items():
            if not np.array_equal(array.view(np.uint8), planes[1][layer].view(np.uint8)):
                return False
    return True


class Verdict:
    """A judge's predictions after the exact KV, computed once, and scores of coded KV against
    them."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._exact: np.ndarray | None = None
        self._targets: np.ndarray | None = None

    def score(self, exact: Kv, coded: Kv) -> metrics.Scores:
        """Scores coded KV. `exact` is the same in every call."""
        if self._exact is None:
            self._exact, self._targets = self._ask(exact)
        found = self._exact
        if not _is_same(exact, coded):
            found, _ = self._ask(coded)
        if found.shape != self._exact.shape:
            raise InvalidArgumentError(
                f"the judge returned logits {found.shape} after {self._exact.shape}"
            )
        return metrics.score(self._exact, found, self._targets)

    def _ask(self, kv: Kv) -> tuple[np.ndarray, np.ndarray | None]:
        answer = self._judge(kv.as_model_has_it())
        logits, targets = answer if isinstance(answer, tuple) else (answer, None)
        logits = np.asarray(logits)
        if logits.ndim != 2 or len(logits) < 2:
            raise InvalidArgumentError(
                f"the judge returned logits {logits.shape}, expected [2 positions or more, words]"
            )
        if targets is not None and np.shape(targets) != (len(logits),):
            raise InvalidArgumentError(
                f"the judge returned {np.shape(targets)} next tokens for {len(logits)} positions"
            )
        return metrics.log_softmax(logits.astype(np.float32, copy=False)), targets
