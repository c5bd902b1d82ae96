# SPDX-License-Identifier: Apache-2.0
"""The transport over HOST:PORT, a library of its own beside libcairn.so."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ._ffi import library_path
from .errors import InternalError

# UCX reads these once, when it is loaded: no memory hooks and no signal handlers from a guest in an
# engine's process, nothing on its stdout. What the user has set of the first three stays.
_UCX_SETTINGS = {
    "UCX_MEM_EVENTS": "n",
    "UCX_HANDLE_ERRORS": "none",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_LOG_FILE": "stderr",
}
_USERS = {"UCX_MEM_EVENTS", "UCX_HANDLE_ERRORS", "UCX_LOG_LEVEL", "UCX_MODULE_DIR"}
_loaded: set[Path] = set()


def load() -> None:
    """Loads the transport over HOST:PORT, if it is there, under our settings; the library finds it
    loaded. A wheel's own UCX must not open the modules of a UCX that is installed: they would bring
    that one along. The engine's own UCX never sees these settings, and this one none of the engine's
    other variables, some of which end a process whose UCX they are not meant for.
    """
    module = library_path().with_name("libcairn_ucx.so")
    if module in _loaded or not module.exists():
        return
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    settings = _UCX_SETTINGS | {name: before[name] for name in _USERS & before.keys()}
    grafted = module.parent.parent / "kvcairn.libs"
    if grafted.is_dir():
        settings.setdefault("UCX_MODULE_DIR", str(grafted))
    try:
        _put(settings, before)
        ctypes.CDLL(str(module), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise InternalError(f"{module} cannot be loaded: {error}") from error
    finally:
        _put(before, settings)
    _loaded.add(module)


def _put(settings: dict[str, str], instead_of: dict[str, str]) -> None:
    for name in instead_of.keys() - settings.keys():
        os.environ.pop(name, None)
    os.environ.update(settings)
