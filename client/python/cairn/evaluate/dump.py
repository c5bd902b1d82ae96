# SPDX-License-Identifier: Apache-2.0
"""KV of a model as files: safetensors or npy, in one folder. Needs numpy.

The names of tensors identify them: `k` and `v` are [layers, heads, tokens, dim]; `k.7` and `v.7`
are layer 7, [heads, tokens, dim]. K is after RoPE, as in the engine's cache. Optional `q` or `q.7`
are the queries of the last tokens after RoPE, [query heads, some tokens, dim]. Optional `window`
[layers] is the number of tokens that a query of each layer attends to, itself included; 0 or no
`window` means all of them. A safetensors file has any of them, an npy file (`k.npy`, `v.7.npy`) has
one; in an npy file, bf16 is its bits as uint16. model.json describes RoPE (_model.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
import re
from dataclasses import dataclass

import numpy as np

from .._model import ModelAbout, read_model
from .._profile import Rotation
from ..errors import InvalidArgumentError
from ..keys import Group, Rope
from ..tensors import NUMPY_DTYPES

_NAME = re.compile(r"(window)|([kvq])(?:\.(\d+))?")
_SAFETENSORS_DTYPES = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "I32": np.int32,
    "I64": np.int64,
}
_CAIRN_DTYPES = {held: dtype for dtype, held in NUMPY_DTYPES.items() if held != "uint8"}
_HEADER_BYTES_MAX = 1 << 26


@dataclass(frozen=True)
class Kv:
    """One sequence, by layer. k[i] and v[i]: [heads, tokens, dim], bf16 as uint16."""

    dtype: str
    k: dict[int, np.ndarray]
    v: dict[int, np.ndarray]

    @property
    def token_count(self) -> int:
        return next(iter(self.k.values())).shape[1]

    def first_tokens(self, count: int) -> Kv:
        """Returns K and V of the first `count` tokens."""
        k, v = ({i: x[:, :count] for i, x in plane.items()} for plane in (self.k, self.v))
        return Kv(self.dtype, k, v)


@dataclass(frozen=True)
class Dump(Kv):
    """The content of a folder. q and windows lack the layers without an entry."""

    q: dict[int, np.ndarray]
    windows: dict[int, int]
    about: ModelAbout = ModelAbout()

    def fingerprint(self) -> str:
        """Returns a digest of the values: equal for a dump in other files, different for a changed
        dump."""
        ropes = [self.rope_of(layer) for layer in sorted(self.k)]
        found = hashlib.sha256(f"{self.dtype} {sorted(self.windows.items())} {ropes}".encode())
        for name in "kvq":
            for layer, array in sorted(getattr(self, name).items()):
                found.update(f" {name}.{layer} {array.dtype.name} {array.shape} ".encode())
                found.update(np.ascontiguousarray(array).view(np.uint8).data)
        return found.hexdigest()

    def groups(self) -> list[list[int]]:
        """Returns layers of one geometry, one RoPE and one window, as in a space."""
        found: dict[tuple, list[int]] = {}
        for layer in sorted(self.k):
            heads, _, dim = self.k[layer].shape
            window = self.windows.get(layer, 0)
            kind = (heads, dim, self.v[layer].shape[2], self.rope_of(layer), window)
            found.setdefault(kind, []).append(layer)
        return list(found.values())

    def with_rope(self, rope: Rope) -> Dump:
        """Returns the dump with one RoPE for all layers."""
        group = Group("kv", tuple(self.k), rope=rope)
        return dataclasses.replace(self, about=dataclasses.replace(self.about, groups=(group,)))

    def rope_of(self, layer: int) -> Rope | None:
        """Returns the RoPE of a layer; None if it is unknown."""
        group = self.about.group_of(layer)
        return None if group is None else group.rope

    def rotation_of(self, layer: int) -> Rotation:
        """Returns the rotation of K for a profile; none if it is unknown."""
        rope = self.rope_of(layer)
        if rope is None or rope.kind == "none":
            return Rotation()
        dims = rope.rotary_dims or self.k[layer].shape[2]
        frequencies = rope.inverse_frequencies or rope.base ** (-np.arange(0, dims, 2) / dims)
        return Rotation.of(rope.kind, frequencies)


def read_dump(folder: pathlib.Path) -> Dump:
    """Reads every *.safetensors and *.npy of a folder. Raises InvalidArgumentError, which says what
    is wrong."""
    if not folder.is_dir():
        raise InvalidArgumentError(f"{folder} is no folder")
    planes: dict[str, dict[int, np.ndarray]] = {"k": {}, "v": {}, "q": {}}
    windows: dict[int, int] = {}
    paths = sorted([*folder.glob("*.safetensors"), *folder.glob("*.npy")])
    for path in paths:
        try:
            tensors = _tensors_of(path)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidArgumentError(f"{path.name} cannot be read: {error}") from None
        for name, array in tensors:
            match = _NAME.fullmatch(name)
            if match and match[1]:
                windows = _read_windows(array, path.name)
            elif match:
                _add(planes[match[2]], match[3], array, f"{path.name}: {name}")
    k, v = planes["k"], planes["v"]
    if not k:
        raise InvalidArgumentError(f"{folder}: no tensor k or k.0 in {len(paths)} files")
    if k.keys() != v.keys() or not planes["q"].keys() <= k.keys():
        raise InvalidArgumentError(f"{folder}: K, V and Q are of different layers")
    dtypes = {array.dtype.name for array in [*k.values(), *v.values()]}
    if len(dtypes) != 1 or not dtypes <= _CAIRN_DTYPES.keys():
        raise InvalidArgumentError(f"{folder}: elements are {sorted(dtypes)}, expected one type")
    about = read_model(folder)
    if not windows:
        found = {layer: about.group_of(layer) for layer in k}
        windows = {i: g.window_tokens for i, g in found.items() if g and g.window_tokens}
    dump = Dump(_CAIRN_DTYPES[dtypes.pop()], k, v, planes["q"], windows, about)
    _check(dump, folder)
    return dump


def as_float(array: np.ndarray) -> np.ndarray:
    """Converts to float32; uint16 means the bits of bf16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def as_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Converts float32 values, none of them NaN, to a dump's dtype: bf16 as bits, rounded to
    nearest, ties to even."""
    if dtype != "bf16":
        return values.astype(NUMPY_DTYPES[dtype])
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)


def _check(dump: Dump, folder: pathlib.Path) -> None:
    for layer, k in dump.k.items():
        if k.shape[:2] != dump.v[layer].shape[:2] or k.shape[1] != dump.token_count:
            raise InvalidArgumentError(f"{folder}: layer {layer} has other heads or tokens")
        q = dump.q.get(layer)
        if q is not None and (q.shape[2] != k.shape[2] or len(q) % len(k) or not q.shape[1]):
            raise InvalidArgumentError(f"{folder}: layer {layer} has queries that do not fit")
        if q is not None and q.shape[1] > dump.token_count:
            raise InvalidArgumentError(f"{folder}: layer {layer} has more queries than tokens")
        if dump.rotation_of(layer).dims > k.shape[2]:
            raise InvalidArgumentError(f"{folder}: more channels turn than layer {layer} has")


def _read_windows(array: np.ndarray, where: str) -> dict[int, int]:
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        raise InvalidArgumentError(f"{where}: window is no list of token counts")
    return {layer: int(window) for layer, window in enumerate(array) if window}


def _add(plane: dict[int, np.ndarray], layer: str | None, array: np.ndarray, where: str) -> None:
    if array.ndim != (4 if layer is None else 3):
        raise InvalidArgumentError(f"{where} has {array.ndim} dimensions")
    layers = enumerate(array) if layer is None else [(int(layer), array)]
    for index, one in layers:
        if index in plane:
            raise InvalidArgumentError(f"{where}: layer {index} is there twice")
        plane[index] = one


def _tensors_of(path: pathlib.Path) -> list[tuple[str, np.ndarray]]:
    if path.suffix == ".npy":
        return [(path.stem, np.load(path, mmap_mode="r", allow_pickle=False))]
    file_bytes = path.stat().st_size
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 0 < header_bytes <= min(_HEADER_BYTES_MAX, file_bytes - 8):
            raise ValueError("it is no safetensors file")
        header = json.loads(file.read(header_bytes))
    found = []
    for name, about in header.items():
        dtype = _SAFETENSORS_DTYPES.get(about.get("dtype", ""))
        if dtype is None or not _NAME.fullmatch(name):
            continue
        first, last = (int(offset) for offset in about["data_offsets"])
        shape = tuple(about["shape"])
        if first < 0 or math.prod(shape) * np.dtype(dtype).itemsize != last - first:
            raise ValueError(f"{name} has another length than its shape")
        offset = 8 + header_bytes + first
        found.append((name, np.memmap(path, dtype, "r", offset, shape)))
    return found
