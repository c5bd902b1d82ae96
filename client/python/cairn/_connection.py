# SPDX-License-Identifier: Apache-2.0
"""A session with a daemon, as a client, its spaces and its watches share it."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from . import _ffi
from ._handle import Handle


class Connection:
    """The client and its spaces hold it, so that dropping the client ends no space that is in use.

    opened: spaces and watches, which `close` closes first."""

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
    """The library's threads end before the interpreter does."""
    for connection in list(_connections):
        connection.close()
