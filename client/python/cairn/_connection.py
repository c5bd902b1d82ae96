# SPDX-License-Identifier: Apache-2.0
"""A session with a daemon, shared by a client, its spaces and its watches."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from . import _ffi
from ._handle import Handle


class Connection:
    """Client and spaces share it. A space in use therefore survives when the client is dropped.

    opened: spaces and watches, which `close` closes first.
    """

    def __init__(self, address: int, tenant: str) -> None:
        self.tenant = tenant
        self.handle = Handle("client", address, _ffi.library().cairn_close)
        self.opened: weakref.WeakSet[Any] = weakref.WeakSet()
        _connections.add(self)

    def close(self) -> None:
        for one in list(self.opened):
            one.close()
        self.handle.close()

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the library's threads before the interpreter ends."""
    for connection in list(_connections):
        connection.close()
