# SPDX-License-Identifier: Apache-2.0
"""Every kind of array is described where it lies, and what cannot be used is refused by name."""

import array
import ctypes

import cairn
import numpy as np
import pytest
from cairn.tensors import contiguous, describe


class DlpackOnly:
    """A host tensor that offers DLPack and nothing else, as torch does, with any dtype code."""

    def __init__(self, values, code, device=(1, 0)):
        self._values, self._code, self._device = values, code, device
        self.requires_grad = False

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self):
        capsule = self._values.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
        # DLTensor: data 8, device 8, ndim 4, then code, bits, lanes.
        ctypes.c_uint8.from_address(get(capsule, b"dltensor") + 20).value = self._code
        return capsule


def test_numpy_with_strides():
    base = np.arange(4 * 6 * 8, dtype=np.uint16).reshape(4, 6, 8)
    part = base[1:, ::2].transpose(1, 0, 2)
    tensor = describe("k", part)
    assert tensor.address == part.ctypes.data
    assert tensor.shape == (3, 3, 8) and tensor.strides == part.strides
    assert tensor.dtype == "uint16" and tensor.itemsize == 2
    tensor.require("k", "bf16", is_target=True)
    tensor.require("k", "fp16", is_target=True)


def test_read_only_is_no_target():
    values = np.zeros(4, np.float16)
    values.flags.writeable = False
    describe("k", values).require("k", "fp16", is_target=False)
    with pytest.raises(cairn.InvalidArgumentError, match="k is read-only"):
        describe("k", values).require("k", "fp16", is_target=True)
    with pytest.raises(cairn.InvalidArgumentError, match="read-only"):
        describe("k", memoryview(b"1234").cast("H")).require("k", "bf16", is_target=True)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.zeros(4, np.float16), "bf16"),
        (np.zeros(4, np.float32), "bf16"),
        (np.zeros(4, np.float64), "fp32"),
        (np.zeros(4, ">u2"), "bf16"),
        (np.zeros(4, np.uint8), "fp16"),
    ],
)
def test_wrong_dtype(values, dtype):
    with pytest.raises(cairn.InvalidArgumentError, match="has dtype"):
        describe("k", values).require("k", dtype, is_target=False)


def test_dlpack():
    values = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)[:, ::2]
    tensor = describe("k", DlpackOnly(values, code=4))
    assert tensor.dtype == "bfloat16" and tensor.itemsize == 2
    assert tensor.address == values.ctypes.data
    assert tensor.shape == values.shape and tensor.strides == values.strides
    tensor.require("k", "bf16", is_target=True)
    with pytest.raises(cairn.InvalidArgumentError, match="has dtype bfloat16"):
        tensor.require("k", "fp16", is_target=True)


def test_device_memory_is_refused():
    with pytest.raises(cairn.InvalidArgumentError, match="device"):
        describe("k", DlpackOnly(np.zeros(4, np.uint16), code=4, device=(2, 0)))


def test_buffer_protocol():
    words = array.array("H", range(12))
    address, _ = words.buffer_info()
    tensor = describe("k", memoryview(words).cast("B").cast("H", (3, 4)))
    assert tensor.address == address and tensor.shape == (3, 4) and tensor.strides == (8, 2)
    assert tensor.dtype == "uint16" and tensor.is_writable
    assert describe("k", memoryview(words)[2:]).address == address + 4


def test_big_endian_buffers_are_not_native():
    view = memoryview((ctypes.c_uint16.__ctype_be__ * 4)())
    assert view.format == ">H"
    assert describe("k", view).dtype == "big-endian uint16"
    with pytest.raises(cairn.InvalidArgumentError, match="has dtype big-endian uint16"):
        describe("k", view).require("k", "bf16", is_target=False)
    native = memoryview((ctypes.c_uint16.__ctype_le__ * 4)())
    assert describe("k", native).dtype == "uint16"


def test_contiguous_heeds_no_stride_of_an_axis_of_one():
    base = np.zeros((4, 3, 8), np.uint16)
    part = base[:, 1:2][2:3]  # the strides of the first two axes are those of `base`
    assert part.shape == (1, 1, 8) and part.strides == (48, 16, 2)
    assert contiguous("source", part).bytes == 16
    odd = np.lib.stride_tricks.as_strided(base, (1, 8), (7, 2))
    assert contiguous("source", odd).bytes == 16
    assert contiguous("source", np.zeros((0, 3), np.uint16)[:, ::2]).bytes == 0
    with pytest.raises(cairn.InvalidArgumentError, match="not one contiguous piece"):
        contiguous("source", base[:, :2])


def test_no_array():
    with pytest.raises(cairn.InvalidArgumentError, match="k is a list"):
        describe("k", [1, 2])


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert describe("k", np.zeros(4, ml_dtypes.bfloat16)).dtype == "bfloat16"


def test_torch():
    torch = pytest.importorskip("torch")
    values = torch.zeros(2, 3, 4, dtype=torch.bfloat16).transpose(0, 1)
    tensor = describe("k", values)
    assert tensor.dtype == "bfloat16" and tensor.address == values.data_ptr()
    assert tensor.shape == (3, 2, 4) and tensor.strides == (8, 24, 2)
    assert describe("k", torch.zeros(2, dtype=torch.float16, requires_grad=True)).dtype == "float16"
