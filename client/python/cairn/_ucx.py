# SPDX-License-Identifier: Apache-2.0
"""Loads the transport over HOST:PORT, a library separate from libcairn.so."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ._ffi import library_path
from .errors import InternalError

# UCX reads these once, when it is loaded. In an engine's process Cairn must install no memory hooks
# and no signal handlers, and print nothing to stdout. Values that the user has set for the first
# three stay.
_UCX_SETTINGS = {
    "UCX_MEM_EVENTS": "n",
    "UCX_HANDLE_ERRORS": "none",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_LOG_FILE": "stderr",
}
_USERS = {"UCX_MEM_EVENTS", "UCX_HANDLE_ERRORS", "UCX_LOG_LEVEL", "UCX_MODULE_DIR"}
_loaded: set[Path] = set()


def load() -> None:
    """Loads the transport over HOST:PORT, if it is there, with our settings; libcairn.so then uses
    it. A wheel's own UCX must not open the modules of an installed UCX, because they would load
    that UCX, too. The engine's own UCX does not see these settings. Ours sees none of the engine's
    other variables; some of them end a process whose UCX is another version.
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
