# SPDX-License-Identifier: Apache-2.0
"""KV of a model as files: safetensors or npy, in one folder. Needs numpy.

The names of tensors identify them: `k` and `v` are [layers, heads, tokens, dim]; `k.7` and `v.7`
are layer 7, [heads, tokens, dim]. K is after RoPE, as in the engine's cache. Optional `q` or `q.7`
are the queries of the last tokens after RoPE, [query heads, some tokens, dim]. Optional `window`
[layers] is the number of tokens that a query of each layer attends to, itself included; 0 or no
`window` means all of them. A safetensors file has any of them, an npy file (`k.npy`, `v.7.npy`) has
one; in an npy file, bf16 is its bits as uint16, and 8-bit floats are theirs, fp8_e4m3 as uint8 and
fp8_e5m2 as int8. model.json describes RoPE, and the scales of 8-bit floats (_model.py).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import re
from dataclasses import dataclass

import numpy as np

from .._model import ModelAbout, Scales, read_model
from .._profile import Rotation
from ..capture import DUMP_DTYPES
from ..errors import InvalidArgumentError
from ..keys import DTYPE_BYTES, Group, Rope

_NAME = re.compile(r"(window)|([kvq])(?:\.(\d+))?")
_SAFETENSORS_DTYPES = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "F8_E4M3": np.uint8,
    "F8_E5M2": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}
_CAIRN_DTYPES = {held: dtype for dtype, held in DUMP_DTYPES.items()}
_HEADER_BYTES_MAX = 1 << 26


@dataclass(frozen=True)
class Kv:
    """One sequence, by layer. k[i] and v[i]: [heads, tokens, dim], bf16 as uint16. scales: of 8-bit
    floats. Recipes code the elements as they are, without their scales, as a daemon does."""

    dtype: str
    k: dict[int, np.ndarray]
    v: dict[int, np.ndarray]
    scales: Scales = dataclasses.field(default=Scales(), kw_only=True)

    @property
    def is_fp8(self) -> bool:
        return DTYPE_BYTES[self.dtype] == 1

    def values_of(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns K and V of a layer as float32, multiplied by their scales."""
        scales = self.scales.k.get(layer, 1.0), self.scales.v.get(layer, 1.0)
        k, v = as_float(self.k[layer]), as_float(self.v[layer])
        if scales != (1.0, 1.0):
            k, v = k * np.float32(scales[0]), v * np.float32(scales[1])
        return k, v

    def as_model_has_it(self) -> Kv:
        """Returns 8-bit floats as bf16 that are multiplied by their scales; all else as it is."""
        if not self.is_fp8:
            return self
        values = {layer: self.values_of(layer) for layer in self.k}
        k, v = ({i: as_stored(of[n], "bf16") for i, of in values.items()} for n in range(2))
        return Kv("bf16", k, v)

    @property
    def token_count(self) -> int:
        return next(iter(self.k.values())).shape[1]

    def first_tokens(self, count: int) -> Kv:
        """Returns K and V of the first `count` tokens."""
        k, v = ({i: x[:, :count] for i, x in plane.items()} for plane in (self.k, self.v))
        return Kv(self.dtype, k, v, scales=self.scales)


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
        if self.scales:
            planes = (self.scales.k, self.scales.v)
            found.update(" ".join(str(sorted(plane.items())) for plane in planes).encode())
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
    dtype = _CAIRN_DTYPES[dtypes.pop()]
    dump = Dump(dtype, k, v, planes["q"], windows, about, scales=about.scales)
    _check(dump, folder)
    return dump


def as_float(array: np.ndarray) -> np.ndarray:
    """Converts to float32; uint16 means the bits of bf16, uint8 those of fp8_e4m3 and int8 those of
    fp8_e5m2."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype.itemsize == 1:
        return _fp8_values(_CAIRN_DTYPES[array.dtype.name])[array.view(np.uint8)]
    return array.astype(np.float32)


@functools.cache
def _fp8_values(dtype: str) -> np.ndarray:
    """Returns the float32 of each of the 256 codes."""
    codes = np.arange(256, dtype=np.int32)
    if dtype == "fp8_e5m2":  # the upper half of an fp16
        return (codes << 8).astype(np.uint16).view(np.float16).astype(np.float32)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, np.ldexp(8 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
    size = np.where(codes & 0x7F == 0x7F, np.nan, size)
    return np.where(codes & 0x80, -size, size).astype(np.float32)


def _as_fp8(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds to the nearest, ties to the even code. Larger values become the largest."""
    known = _fp8_values(dtype)[:128]
    known = known[np.isfinite(known)]  # those of the codes 0, 1, 2, …
    size = np.minimum(np.abs(values), known[-1])
    above = np.clip(np.searchsorted(known, size), 1, len(known) - 1)
    below_by, above_by = size - known[above - 1], known[above] - size
    is_above = (above_by < below_by) | ((above_by == below_by) & (above % 2 == 0))
    codes = np.where(is_above, above, above - 1) | np.where(np.signbit(values), 0x80, 0)
    return codes.astype(np.uint8).view(DUMP_DTYPES[dtype])


def as_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Converts float32 values, none of them NaN, to a dump's dtype: bf16 as bits, rounded to
    nearest, ties to even."""
    if DTYPE_BYTES[dtype] == 1:
        return _as_fp8(values, dtype)
    if dtype != "bf16":
        return values.astype(DUMP_DTYPES[dtype])
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
