# SPDX-License-Identifier: Apache-2.0
"""The transport over HOST:PORT, a library of its own beside libcairn.so."""

from __future__ import annotations

import ctypes
import os

from ._ffi import library_path
from .errors import InternalError

# UCX reads these once, when it is loaded: no memory hooks and no signal handlers from a guest in an
# engine's process. What the user has set stays.
_UCX_SETTINGS = {"UCX_MEM_EVENTS": "n", "UCX_HANDLE_ERRORS": "none", "UCX_LOG_LEVEL": "fatal"}


def load() -> None:
    """Loads the transport over HOST:PORT, if it is there, under our settings; the library finds it
    loaded. A wheel's own UCX must not open the modules of a UCX that is installed: they would bring
    that one along. The engine's own UCX may want them, so it never sees that setting.
    """
    module = library_path().with_name("libcairn_ucx.so")
    if not module.exists():
        return
    for name, value in _UCX_SETTINGS.items():
        os.environ.setdefault(name, value)
    grafted = module.parent.parent / "kvcairn.libs"
    is_ours = grafted.is_dir() and "UCX_MODULE_DIR" not in os.environ
    if is_ours:
        os.environ["UCX_MODULE_DIR"] = str(grafted)
    try:
        ctypes.CDLL(str(module), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise InternalError(f"{module} cannot be loaded: {error}") from error
    finally:
        if is_ours:
            del os.environ["UCX_MODULE_DIR"]
