# SPDX-License-Identifier: Apache-2.0
"""Reads GGUF files: the fields in front, then tensors, mapped and dequantised on demand.

The package `gguf` has a reader of its own, which takes 15 s over a vocabulary of 262144 tokens;
this one takes half a second. What the quantised types mean is left to the package.
"""

from __future__ import annotations

import math
import pathlib
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.quants import quant_shape_to_byte_shape

_SCALARS = {
    code: struct.Struct(f"<{letter}")
    for code, letter in enumerate(("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"))
    if letter
}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32  # where no field says otherwise


@dataclass(frozen=True)
class _Place:
    shape: tuple[int, ...]  # rows first
    kind: GGMLQuantizationType
    offset: int  # from the first tensor's


class GgufFile:
    """The fields by name, and the tensors' names. The file stays mapped."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._map = np.memmap(path, np.uint8, "r")
        self._bytes = memoryview(self._map)
        self._at = 0
        if self._take(4) != b"GGUF" or self._scalar(4) not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        tensor_count, field_count = self._scalar(10), self._scalar(10)
        self.fields: dict[str, Any] = {}
        for _ in range(field_count):
            name = self._string()
            self.fields[name] = self._value(self._scalar(4))
        self._places: dict[str, _Place] = {}
        for _ in range(tensor_count):
            self._read_place()
        alignment = self.fields.get("general.alignment", _ALIGNMENT)
        self._data = -(-self._at // alignment) * alignment

    @property
    def tensors(self) -> list[str]:
        return list(self._places)

    def tensor(self, name: str) -> np.ndarray:
        """Dequantised: float32, rows first."""
        place = self._places[name]
        byte_shape = quant_shape_to_byte_shape(place.shape, place.kind) if place.kind > 1 else None
        if byte_shape is None:  # F32 and F16
            dtype = np.dtype(np.float16 if place.kind == 1 else np.float32)
            raw = self._raw(place.offset, math.prod(place.shape) * dtype.itemsize)
            return raw.view(dtype).reshape(place.shape).astype(np.float32)
        raw = self._raw(place.offset, math.prod(byte_shape)).reshape(byte_shape)
        return np.ascontiguousarray(dequantize(raw, place.kind), np.float32)

    def _raw(self, offset: int, count: int) -> np.ndarray:
        first = self._data + offset
        return np.frombuffer(self._bytes, np.uint8, count, first)

    def _read_place(self) -> None:
        name = self._string()
        shape = [self._scalar(10) for _ in range(self._scalar(4))]
        kind, offset = GGMLQuantizationType(self._scalar(4)), self._scalar(10)
        self._places[name] = _Place(tuple(reversed(shape)), kind, offset)

    def _take(self, count: int) -> bytes:
        first = self._at
        self._at += count
        return bytes(self._bytes[first : self._at])

    def _scalar(self, code: int) -> Any:
        scalar = _SCALARS[code]
        (value,) = scalar.unpack_from(self._bytes, self._at)
        self._at += scalar.size
        return value

    def _string(self) -> str:
        return self._take(self._scalar(10)).decode("utf-8", "surrogateescape")

    def _value(self, code: int) -> Any:
        if code == _STRING:
            return self._string()
        if code != _ARRAY:
            return self._scalar(code)
        code, count = self._scalar(4), self._scalar(10)
        if code in (_STRING, _ARRAY):
            return [self._value(code) for _ in range(count)]
        scalar = _SCALARS[code]
        raw = self._take(scalar.size * count)
        return [value for (value,) in scalar.iter_unpack(raw)]
