# SPDX-License-Identifier: Apache-2.0
"""libcairn.so through ctypes: the structs and functions of client/c/cairn.h and what it includes.

It is found in $CAIRN_LIBRARY, then beside this file (where a wheel has it), and loaded on first use
with RTLD_LOCAL: an engine's own gRPC, protobuf or UCX never meets the ones inside it."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from ctypes import POINTER
from ctypes import c_char_p as text
from ctypes import c_double as f64
from ctypes import c_int as status
from ctypes import c_int32 as i32
from ctypes import c_size_t as size
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from ctypes import c_void_p as pointer

from ._structs import (  # noqa: F401: all of them, for those who use this module
    Attention,
    ConnectOptions,
    Counters,
    Event,
    EventBatch,
    GetRequest,
    GroupSpec,
    ImageInfo,
    ImageSpec,
    KeyExtra,
    LayerStatistics,
    MatchOptions,
    MatchResult,
    MatchedBlock,
    Memory,
    PagedCache,
    PagedPlane,
    PagedRequest,
    PrefetchOptions,
    PrefetchResult,
    PutRequest,
    Slice,
    SpaceInfo,
    SpaceSpec,
    Stats,
    TierStats,
    TokenBudget,
    View,
)
from .errors import InternalError, InvalidArgumentError, from_code

ABI_VERSION = 1

FORM_VIEWS, FORM_SOURCE, FORM_IMAGE = 0, 1, 2
SIDE_OBJECT_PROFILE, SIDE_OBJECT_BANK = 1, 2
DEVICE_CUDA = 1
OK, NOT_FOUND = 0, 5


# Handles are void pointers, keys byte strings. Everything not named returns a status.
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "cairn_version": (text, []),
    "cairn_abi_version": (status, []),
    "cairn_last_error": (text, []),
    "cairn_status_name": (text, [status]),
    "cairn_set_trace": (status, [text]),
    "cairn_connect": (status, [POINTER(ConnectOptions), POINTER(pointer)]),
    "cairn_close": (None, [pointer]),
    "cairn_open_space": (status, [pointer, POINTER(SpaceSpec), u32, POINTER(pointer)]),
    "cairn_space_info_get": (status, [pointer, POINTER(SpaceInfo)]),
    "cairn_space_source_bytes": (status, [pointer, POINTER(Slice), POINTER(u64)]),
    "cairn_space_image_bytes_max": (status, [pointer, POINTER(Slice), POINTER(u64)]),
    "cairn_space_close": (None, [pointer]),
    "cairn_fingerprint": (status, [text, POINTER(SpaceSpec), pointer]),
    "cairn_derive_key": (
        status,
        [pointer, pointer, pointer, size, POINTER(KeyExtra), size, pointer],
    ),
    "cairn_derive_chain": (
        status,
        [pointer, pointer, size, u32, POINTER(KeyExtra), size, pointer, size, POINTER(size)],
    ),
    "cairn_opaque_key": (status, [pointer, pointer, size, pointer]),
    "cairn_match": (
        status,
        [
            pointer,
            pointer,
            size,
            POINTER(MatchOptions),
            POINTER(MatchResult),
            POINTER(MatchedBlock),
        ],
    ),
    "cairn_prefetch": (
        status,
        [pointer, pointer, size, POINTER(PrefetchOptions), POINTER(PrefetchResult)],
    ),
    "cairn_release": (status, [pointer, pointer, size, u32]),
    "cairn_put": (status, [pointer, POINTER(PutRequest), u32]),
    "cairn_put_batch": (status, [pointer, POINTER(PutRequest), size, u32]),
    "cairn_get": (status, [pointer, POINTER(GetRequest), u32]),
    "cairn_get_batch": (status, [pointer, POINTER(GetRequest), size, u32]),
    "cairn_side_object_put": (status, [pointer, u32, i32, text, size, u32, pointer]),
    "cairn_side_object_get": (status, [pointer, pointer, u32, pointer, size, POINTER(size)]),
    "cairn_side_object_current": (status, [pointer, u32, i32, u32, pointer]),
    "cairn_contains": (status, [pointer, pointer, size, u32, pointer]),
    "cairn_delete": (status, [pointer, pointer, size, u32, POINTER(u64)]),
    "cairn_invalidate": (status, [pointer, u32, POINTER(u64)]),
    "cairn_stats_get": (status, [pointer, u32, POINTER(Stats)]),
    "cairn_counters_get": (status, [pointer, POINTER(Counters)]),
    "cairn_breaker_recomputed": (status, [pointer, u64, f64]),
    "cairn_breaker_advise": (status, [pointer, u64, u64, POINTER(status)]),
    "cairn_buffer_allocate": (status, [pointer, size, u32, POINTER(pointer)]),
    "cairn_buffer_data": (pointer, [pointer]),
    "cairn_buffer_bytes": (size, [pointer]),
    "cairn_buffer_free": (None, [pointer]),
    "cairn_get_paged": (status, [pointer, POINTER(PagedCache), POINTER(PagedRequest)]),
    "cairn_put_paged": (status, [pointer, POINTER(PagedCache), POINTER(PagedRequest)]),
    "cairn_gather_paged": (
        status,
        [pointer, POINTER(PagedCache), POINTER(PagedRequest), pointer, u64],
    ),
    "cairn_check_device": (status, [i32, i32]),
    "cairn_device_images_open": (status, [pointer, i32, POINTER(Slice), POINTER(pointer)]),
    "cairn_device_images_append": (
        status,
        [pointer, text, size, text, pointer, u32, POINTER(size)],
    ),
    "cairn_device_images_count": (status, [pointer, POINTER(size)]),
    "cairn_device_images_close": (None, [pointer]),
    "cairn_attend_open": (status, [pointer, i32, pointer, size, pointer, POINTER(pointer)]),
    "cairn_attend_launch": (status, [pointer, pointer]),
    "cairn_attend_check": (status, [pointer]),
    "cairn_attend_close": (None, [pointer]),
    "cairn_mine_bank": (status, [pointer, pointer, u32, POINTER(pointer)]),
    "cairn_mine_profile": (
        status,
        [pointer, pointer, pointer, size, pointer, size, POINTER(pointer)],
    ),
    "cairn_mined_data": (pointer, [pointer]),
    "cairn_mined_bytes": (size, [pointer]),
    "cairn_mined_free": (None, [pointer]),
    "cairn_watch_open": (status, [pointer, pointer, u64, u64, POINTER(pointer)]),
    "cairn_watch_next": (status, [pointer, u32, POINTER(EventBatch)]),
    "cairn_watch_close": (None, [pointer]),
    "cairn_image_inspect": (status, [pointer, size, POINTER(ImageInfo)]),
    "cairn_image_verify": (status, [pointer, size, POINTER(u64)]),
    "cairn_image_decode": (status, [pointer, size, POINTER(Memory)]),
    "cairn_image_decode_with": (status, [pointer, size, text, size, POINTER(Memory)]),
    "cairn_image_recipes": (text, []),
    "cairn_image_bytes_max": (status, [POINTER(ImageSpec), POINTER(u64)]),
    "cairn_image_encode": (
        status,
        [POINTER(ImageSpec), POINTER(Memory), pointer, size, POINTER(size)],
    ),
    "cairn_image_thin": (status, [pointer, size, u64, pointer, size, POINTER(size)]),
    "cairn_image_scores": (status, [pointer, size, pointer]),
    "cairn_image_kept": (status, [pointer, size, pointer]),
    "cairn_token_scores": (status, [POINTER(Attention), pointer, POINTER(LayerStatistics)]),
    "cairn_layer_shares": (status, [POINTER(LayerStatistics), size, POINTER(f64)]),
    "cairn_plan_tokens": (status, [POINTER(TokenBudget), pointer, u32, u32, pointer]),
}

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def library_path() -> pathlib.Path:
    """The file that `library()` loads."""
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
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    if library.cairn_abi_version() != ABI_VERSION:
        raise InternalError(f"{path} has ABI {library.cairn_abi_version()}, not {ABI_VERSION}")
    return library


def library() -> ctypes.CDLL:
    """The library, loaded on first use."""
    global _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def check(code: int) -> None:
    """Raises the exception for a status that is not OK."""
    if code != OK:
        raise from_code(code, last_error())


def last_error() -> str:
    """One line on the last call that failed on this thread."""
    return library().cairn_last_error().decode("utf-8", "replace")


def library_version() -> str:
    """The version of Cairn that the library is of."""
    return library().cairn_version().decode()


def status_name(code: int) -> str:
    return library().cairn_status_name(code).decode()


def milliseconds(timeout: float | None) -> int:
    """Seconds to the library's timeout; None is its default (0)."""
    if timeout is None:
        return 0
    if not 0 < timeout <= 60:
        raise ValueError(f"timeout is {timeout} s, expected more than 0 and at most 60")
    return max(1, round(timeout * 1000))


def unsigned(what: str, value: int, bits: int = 32) -> int:
    """A number for a field of so many bits. ctypes would cut one that does not fit."""
    if not 0 <= value < 1 << bits:
        raise InvalidArgumentError(f"{what} is {value}, expected 0 to 2^{bits} - 1")
    return value


def wait_milliseconds(wait: float) -> int:
    """Seconds to wait, 0 for not at all."""
    if not 0 <= wait < 60:
        raise InvalidArgumentError(f"wait is {wait} s, expected 0 to less than 60")
    return round(wait * 1000)
