# SPDX-License-Identifier: Apache-2.0
"""Describes the memory of an array of any library: numpy, torch, anything with DLPack or the buffer
protocol. None of those libraries is imported here.

An array is described, never copied: the library gets its memory and its strides, so sliced,
transposed and per-layer arrays need no repacking.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import InvalidArgumentError

# The accepted types for each dtype of a space: the type itself, or its bits.
_ACCEPTED = {
    "bf16": {"bfloat16", "uint16", "int16", "void16"},
    "fp16": {"float16", "uint16", "int16"},
    "fp32": {"float32", "uint32", "int32"},
    "fp8_e4m3": {"float8_e4m3fn", "uint8", "int8", "void8"},
    "fp8_e5m2": {"float8_e5m2", "uint8", "int8", "void8"},
}
# The numpy type of each dtype: for bf16 and 8-bit floats their bits.
NUMPY_DTYPES = {
    "bf16": "uint16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8",
}
_NAMED_TYPES = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}  # of ml_dtypes
_DL_FP8_NAMES = {10: "float8_e4m3fn", 12: "float8_e5m2"}
_DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_DL_CPU_DEVICES = {1, 3, 11}  # CPU, CUDA pinned host, ROCm pinned host
_DL_CUDA_DEVICES = {2, 13}  # CUDA, CUDA managed
_TYPE_CHARACTERS = {"i": "int", "u": "uint", "f": "float", "V": "void"}


class Tensor(NamedTuple):
    """A described array. `owner` keeps the memory alive. Strides are bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "bfloat16", "uint16", …
    itemsize: int
    is_writable: bool
    owner: Any
    cuda_device: int | None = None  # the CUDA device that has it; None: host memory

    @property
    def bytes(self) -> int:
        """Returns the size of the elements, without gaps between them."""
        return self.itemsize * math.prod(self.shape)

    def require(self, what: str, dtype: str, is_target: bool) -> None:
        """Raises unless elements have a space's `dtype` (or its bits), and a target is writable."""
        if self.dtype not in _ACCEPTED[dtype]:
            names = ", ".join(sorted(_ACCEPTED[dtype]))
            raise InvalidArgumentError(f"{what} has dtype {self.dtype}, expected one of {names}")
        if is_target and not self.is_writable:
            raise InvalidArgumentError(f"{what} is read-only")


def stream_address(stream: int) -> int:
    """Returns a CUDA stream for the library, which accepts no null: the default stream, 0, is
    cudaStreamLegacy."""
    return stream or 1


def describe(what: str, array: Any, may_be_cuda: bool = False) -> Tensor:
    """Describes `array`; `what` names it in errors."""
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        return _from_array_interface(array, interface)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(what, array, may_be_cuda)
    try:
        view = memoryview(array)
    except TypeError:
        raise InvalidArgumentError(
            f"{what} is a {type(array).__name__}: neither DLPack nor the buffer protocol"
        ) from None
    return _from_buffer(what, view)


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether bytes lie in C order without gaps."""
    wanted = contiguous_strides(shape, itemsize)
    # The stride of an axis of extent 1 is not used, and may have any value.
    return 0 in shape or all(
        extent == 1 or stride == step
        for extent, stride, step in zip(shape, strides, wanted, strict=True)
    )


def contiguous(
    what: str, array: Any, is_target: bool = False, may_be_cuda: bool = False
) -> Tensor:
    """Describes a contiguous array as bytes in C order; it must be writable if it `is_target`."""
    tensor = describe(what, array, may_be_cuda)
    if not is_contiguous(tensor.shape, tensor.strides, tensor.itemsize):
        raise InvalidArgumentError(f"{what} is not one contiguous piece of bytes")
    if is_target and not tensor.is_writable:
        raise InvalidArgumentError(f"{what} is read-only")
    return tensor


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Returns the strides in bytes of a C-ordered array."""
    strides, step = [], itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@functools.lru_cache(maxsize=64)
def _name_of(type_text: str, itemsize: int) -> str:
    name = f"{_TYPE_CHARACTERS.get(type_text[1], type_text[1])}{8 * itemsize}"
    return f"big-endian {name}" if type_text[0] == ">" and itemsize > 1 else name


def _from_array_interface(array: Any, interface: dict[str, Any]) -> Tensor:
    type_text = interface["typestr"]
    itemsize = int(type_text[2:])
    name = ""
    if type_text[1] not in "iu":  # the interface only says "void" for the named types
        name = getattr(getattr(array, "dtype", None), "name", "")
    if name not in _NAMED_TYPES:
        name = _name_of(type_text, itemsize)
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or contiguous_strides(shape, itemsize)
    address, is_read_only = interface["data"]
    return Tensor(address, shape, tuple(strides), name, itemsize, not is_read_only, array)


def _from_buffer(what: str, view: memoryview) -> Tensor:
    if view.suboffsets:
        raise InvalidArgumentError(f"{what} is not one piece of memory")
    info = _PyBuffer()
    _get_buffer(view, ctypes.byref(info), _BUFFER_RECORDS_RO)
    address = info.buf or 0
    _release_buffer(ctypes.byref(info))  # `view` itself keeps the export alive
    kinds = {"e": "float", "f": "float", "d": "float"}
    character = view.format.lstrip("@=<")
    kind = kinds.get(character[-1], "uint" if character[-1].isupper() else "int")
    shape = view.shape or ()
    strides = view.strides or contiguous_strides(shape, view.itemsize)
    name = f"{kind}{8 * view.itemsize}"
    if character[0] in ">!" and view.itemsize > 1:
        name = f"big-endian {name}"
    return Tensor(address, shape, strides, name, view.itemsize, not view.readonly, view)


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_BUFFER_RECORDS_RO = 0x18 | 0x4  # PyBUF_STRIDES | PyBUF_FORMAT
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.c_void_p]
_release_buffer.restype = None


class _DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p


def _from_dlpack(what: str, array: Any, may_be_cuda: bool) -> Tensor:
    if getattr(array, "requires_grad", False):
        array = array.detach()
    device_type, number = (int(part) for part in array.__dlpack_device__())
    is_cuda = device_type in _DL_CUDA_DEVICES
    if device_type not in _DL_CPU_DEVICES and not (may_be_cuda and is_cuda):
        raise InvalidArgumentError(
            f"{what} lies on a device (DLPack type {device_type}); host memory is needed"
        )
    # The capsule is read and never renamed to "used": its destructor releases the tensor when
    # `owner` is destroyed. Without max_version a producer makes the unversioned struct.
    # The caller names the stream of a CUDA array. -1 tells the producer not to synchronize.
    capsule = array.__dlpack__(stream=-1) if is_cuda else array.__dlpack__()
    tensor = _DlTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.lanes != 1:
        raise InvalidArgumentError(f"{what} has elements of {tensor.lanes} lanes")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    itemsize = tensor.bits // 8
    strides = contiguous_strides(shape, itemsize)
    if tensor.strides:
        strides = tuple(tensor.strides[i] * itemsize for i in range(tensor.ndim))
    kind = _DL_CODES.get(tensor.code, f"code{tensor.code}:")
    address = (tensor.data or 0) + tensor.byte_offset
    # An unversioned DLPack cannot express "read-only": producers refuse to export such memory.
    owner = (capsule, array)
    dtype = _DL_FP8_NAMES.get(tensor.code) or f"{kind}{tensor.bits}"
    cuda_device = number if is_cuda else None
    return Tensor(address, shape, strides, dtype, itemsize, True, owner, cuda_device)
