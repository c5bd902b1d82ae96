# SPDX-License-Identifier: Apache-2.0
"""Memory that the data connections of a client can access without an extra copy."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from . import _ffi
from ._handle import Handle
from .errors import FailedPreconditionError


class Buffer:
    """Bytes in the memory of a data connection; made by `Client.allocate_buffer`.

    Puts from it and gets into it, in the `source` or `image` form, make the fewest copies. It is a
    context manager. Its memory lives as long as any view of it. A client that is closed meanwhile
    ends its session only when the last such view is gone.

        with client.allocate_buffer(space.source_bytes()) as buffer:
            kv = np.frombuffer(buffer.memory, np.uint16).reshape(layers, heads, 2, tokens, dim)
            ...
            space.put(key, source=kv)
    """

    def __init__(self, client: Handle, address: int) -> None:
        library = _ffi.library()
        count = library.cairn_buffer_bytes(address)
        # An instance of a class of our own, as the ctypes types themselves have no weak references.
        kind: Any = type("Memory", (ctypes.c_uint8 * count,), {})
        owner = kind.from_address(library.cairn_buffer_data(address))
        client.keep()
        weakref.finalize(owner, _free, client, address, os.getpid())
        self._memory: memoryview | None = memoryview(owner).cast("B")

    @property
    def memory(self) -> memoryview:
        """Returns the bytes, writable: for `numpy.frombuffer`, `torch.frombuffer`, slices, …"""
        if self._memory is None:
            raise FailedPreconditionError("the buffer is closed")
        return self._memory

    def close(self) -> None:
        """Drops the memory. It returns to the connection when no view of it is left."""
        self._memory = None

    def __len__(self) -> int:
        return self.memory.nbytes

    def __repr__(self) -> str:
        count = None if self._memory is None else self._memory.nbytes
        return "<cairn.Buffer, closed>" if count is None else f"<cairn.Buffer of {count} bytes>"

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _free(client: Handle, address: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has only a copy
        _ffi.library().cairn_buffer_free(address)
        client.let_go()
