# SPDX-License-Identifier: Apache-2.0
"""A stand-in for what `cairn.vllm.cuda` uses of torch, over the emulated device of libcairn.so.

What is put on an engine's stream is done as late as can be: when another stream waits for a mark
behind it, or the engine for all of it. What the library puts on a stream is done at once. So a move
that does not wait for what it has to meets what was there before."""

import contextlib
import ctypes
import itertools
import threading
import types
import weakref

import numpy as np
from cairn import _ffi
from fake_modules import install_modules

waits = []  # numbers of streams, those that waited and those of the marks; an engine's is 0
copies = []  # the shapes of what blocks were copied out of
faults = types.SimpleNamespace(room=None)  # bytes that the device has room for; None: enough

_numbers = itertools.count(1)
_here = threading.local()


def is_there():
    """Whether the library has an emulated device."""
    return hasattr(_ffi.library(), "cairn_emulated_allocate")


def recipe(wanted):
    """What an engine of the tests makes its space with: kernels that are emulated are slow."""
    return "raw" if is_there() else wanted


def fail(is_dead=False, hangs=False):
    """Whether all that the library asks of the device fails, or comes to no end."""
    _ffi.library().cairn_emulated_fail(is_dead, hangs)


class Tensor:
    """An array on the device. `values` are its memory, which tests read and write as well."""

    device = "cuda:0"

    def __init__(self, values, whole=None):
        """whole: the piece of memory that it lies in."""
        self.values, self._whole = values, values if whole is None else whole

    @staticmethod
    def of(values):
        library = _ffi.library()
        library.cairn_emulated_allocate.restype = ctypes.c_void_p
        library.cairn_emulated_allocate.argtypes = [ctypes.c_size_t]
        library.cairn_emulated_free.argtypes = [ctypes.c_void_p]
        address = library.cairn_emulated_allocate(values.nbytes)
        memory = (ctypes.c_uint8 * values.nbytes).from_address(address)
        weakref.finalize(memory, library.cairn_emulated_free, address)
        made = Tensor(np.frombuffer(memory, values.dtype).reshape(values.shape))
        made.values[...] = values
        return made

    def view(self, values):
        """values: memory of this one's, or a dtype to see it as."""
        if not isinstance(values, np.ndarray):
            values = self.values.view(values)
        return Tensor(values, self._whole)

    def reshape(self, shape):
        made = self.values.reshape(shape)
        assert np.shares_memory(made, self.values) or made.size == 0
        return self.view(made)

    def swapaxes(self, first, second):
        return self.view(self.values.swapaxes(first, second))

    def index_copy_(self, axis, index, source):
        def act():
            place = [slice(None)] * axis
            self.values[(*place, index.values)] = source.values

        assert source.shape[axis] == index.shape[0]
        current_stream().put(act)

    @property
    def shape(self):
        return self.values.shape

    @property
    def dtype(self):
        return self.values.dtype

    def element_size(self):
        return self.values.itemsize

    def narrow(self, axis, first, count):
        place = [slice(None)] * self.values.ndim
        place[axis] = slice(first, first + count)
        assert first >= 0 and first + count <= self.shape[axis]
        return self.view(self.values[tuple(place)])

    def __getitem__(self, index):
        return self.view(self.values[index])

    def stride(self):
        return tuple(step // self.values.itemsize for step in self.values.strides)

    def storage_offset(self):
        return (self.values.ctypes.data - self._whole.ctypes.data) // self.values.itemsize

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self._whole.ctypes.data)

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None):
        assert stream == -1, "the stream is named elsewhere"
        return self.values.__dlpack__()


class Stream:
    """An engine's has the number 0, as the default one has."""

    def __init__(self, device=0, number=None):
        assert device == 0
        self.cuda_stream = next(_numbers) if number is None else number
        self._lock, self._running = threading.Lock(), threading.RLock()
        self._waiting, self._put = [], 0

    def put(self, act):
        with self._lock:
            self._waiting.append(act)
            self._put += 1

    def record_event(self):
        with self._lock:
            return Event(self, self._put)

    def wait_event(self, event):
        waits.append((self.cuda_stream, event.stream.cuda_stream))
        if event.stream is not self:
            event.stream.run(event.count)

    def run(self, count):
        with self._running:  # whoever puts more on it meanwhile does not wait
            while (act := self._next(count)) is not None:
                act()

    def _next(self, count):
        with self._lock:
            is_due = self._waiting and self._put - len(self._waiting) < count
            return self._waiting.pop(0) if is_due else None

    def synchronize(self):
        self.run(self._put)


class Event:
    def __init__(self, stream, count):
        self.stream, self.count = stream, count


@contextlib.contextmanager
def stream(wanted):
    before = getattr(_here, "within", None)
    _here.within = wanted
    try:
        yield
    finally:
        _here.within = before


def current_stream(device=0):
    """Each engine of the tests has a thread."""
    if getattr(_here, "within", None) is not None:
        return _here.within
    assert not threading.current_thread().name.startswith("cairn-"), "of the engine's alone"
    if not hasattr(_here, "stream"):
        _here.stream = Stream(number=0)
    return _here.stream


class OutOfMemoryError(RuntimeError):
    pass


class _Pinned:
    """In page-locked host memory."""

    def __init__(self, values):
        self.values = values

    @property
    def __array_interface__(self):
        return self.values.__array_interface__

    def view(self, dtype):
        return _Pinned(self.values.view(dtype))

    def reshape(self, shape):
        return _Pinned(self.values.reshape(shape))

    def copy_(self, source, non_blocking):
        assert non_blocking and source.shape == self.values.shape
        current_stream().put(lambda: self.values.__setitem__(..., source.values))

    def to(self, device, non_blocking):
        assert device == Tensor.device and non_blocking, "or else it waits for the stream"
        made = Tensor(np.full_like(self.values, 255 if self.values.dtype == np.uint8 else -1))
        current_stream().put(lambda: made.values.__setitem__(..., self.values))
        return made


def tensor(values, dtype, pin_memory):
    assert dtype == "int64" and pin_memory, "or else the copy waits for the stream"
    assert min(values) >= 0, "which would end every process on the device"
    return _Pinned(np.array(values, np.int64))


def empty(shape, dtype, device=None, pin_memory=False):
    if pin_memory:
        assert device is None
        return _Pinned(np.full(shape, 7, dtype))
    assert device == Tensor.device
    values = np.full(shape, 7, dtype)
    if faults.room is not None and values.nbytes > faults.room:
        raise OutOfMemoryError(f"tried to allocate {values.nbytes} bytes")
    return Tensor.of(values)


def as_strided(tensor, shape, strides, offset):
    flat = tensor._whole.reshape(-1)
    assert offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) < flat.size
    steps = [step * flat.itemsize for step in strides]
    return tensor.view(np.lib.stride_tricks.as_strided(flat[offset:], shape, steps))


def index_select(source, axis, index, out):
    def act():
        out.values[...] = source.values.take(index.values, axis)

    assert out.shape[axis] == index.shape[0]
    copies.append(source.shape)
    current_stream().put(act)


def install():
    members = {
        "torch": {
            "int64": "int64",
            "uint8": np.uint8,
            "empty": empty,
            "tensor": tensor,
            "as_strided": as_strided,
            "index_select": index_select,
            "inference_mode": lambda mode: contextlib.nullcontext(),
        },
        "torch.cuda": {
            "Stream": Stream,
            "current_stream": current_stream,
            "stream": stream,
            "OutOfMemoryError": OutOfMemoryError,
        },
    }
    install_modules(members)
    import sys

    sys.modules["torch"].cuda = sys.modules["torch.cuda"]
