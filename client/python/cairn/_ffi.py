# SPDX-License-Identifier: Apache-2.0
"""Loads libcairn.so through ctypes. `_abi` has the declarations of client/c/cairn.h.

The library is loaded at its first use, from $CAIRN_LIBRARY or from this folder (where a wheel has
it). It is loaded with RTLD_LOCAL, so its gRPC, protobuf and UCX do not mix with an engine's."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading

from . import _abi
from .errors import InternalError, InvalidArgumentError, from_code

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def library_path() -> pathlib.Path:
    """Returns the file that `library()` loads."""
    named = os.environ.get("CAIRN_LIBRARY")
    return pathlib.Path(named) if named else pathlib.Path(__file__).parent / "libcairn.so"


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise InternalError(
            f"libcairn.so cannot be loaded ({error}); install the wheel, or name the file in"
            " CAIRN_LIBRARY"
        ) from error
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    if library.cairn_abi_version() != _abi.ABI_VERSION:
        found = library.cairn_abi_version()
        raise InternalError(f"{path} has ABI {found}, not {_abi.ABI_VERSION}")
    return library


def library() -> ctypes.CDLL:
    """Returns the library, and loads it at the first call."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def check(code: int) -> None:
    """Raises the exception for a status other than OK."""
    if code != _abi.OK:
        raise from_code(code, last_error())


def last_error() -> str:
    """Returns one line about the last call that failed on this thread."""
    return library().cairn_last_error().decode("utf-8", "replace")


def library_version() -> str:
    """Returns the version of Cairn of the library."""
    return library().cairn_version().decode()


def status_name(code: int) -> str:
    return library().cairn_status_name(code).decode()


def milliseconds(timeout: float | None) -> int:
    """Converts seconds to the library's timeout; None gives its default (0)."""
    if timeout is None:
        return 0
    if not 0 < timeout <= 60:
        raise ValueError(f"timeout is {timeout} s, expected more than 0 and at most 60")
    return max(1, round(timeout * 1000))


def unsigned(what: str, value: int, bits: int = 32) -> int:
    """Checks a number for a field of `bits` bits. ctypes would truncate a larger one."""
    if not 0 <= value < 1 << bits:
        raise InvalidArgumentError(f"{what} is {value}, expected 0 to 2^{bits} - 1")
    return value


def wait_milliseconds(wait: float) -> int:
    """Converts seconds to wait to milliseconds; 0 means not to wait."""
    if not 0 <= wait < 60:
        raise InvalidArgumentError(f"wait is {wait} s, expected 0 to less than 60")
    return round(wait * 1000)
