# SPDX-License-Identifier: Apache-2.0
"""libcairn.so through ctypes: the structs and functions of client/c/cairn.h and cairn_image.h.

It is found in $CAIRN_LIBRARY, then beside this file (where a wheel has it), and loaded on first use
with RTLD_LOCAL: an engine's own gRPC, protobuf or UCX never meets the ones inside it."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from ctypes import POINTER, Structure
from ctypes import c_char_p as text
from ctypes import c_double as f64
from ctypes import c_int as status
from ctypes import c_int32 as i32
from ctypes import c_int64 as i64
from ctypes import c_size_t as size
from ctypes import c_uint8 as u8
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from ctypes import c_void_p as pointer

from .errors import InternalError, from_code

ABI_VERSION = 1

FORM_VIEWS, FORM_SOURCE, FORM_IMAGE = 0, 1, 2
OK, NOT_FOUND = 0, 5


class _Sized(Structure):
    """A struct that begins with struct_bytes, zero but for that."""

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields)
        self.struct_bytes = ctypes.sizeof(type(self))


class Slice(Structure):
    _names = ("group", "layer_first", "layer_count", "head_first", "head_count")
    _fields_ = [(name, u32) for name in _names]


class ConnectOptions(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("timeout_ms", u32),
        ("control", text),
        ("data", text),
        ("tenant", text),
        ("name", text),
        ("connections", u32),
        ("window", u32),
        ("region_bytes", u64),
    ]


class GroupSpec(Structure):
    _fields_ = [
        ("kind", i32),
        ("layer_count", u32),
        ("layers", POINTER(u32)),
        ("kv_heads", u32),
        ("k_dim", u32),
        ("v_dim", u32),
        ("window_tokens", u32),
        ("rope_kind", i32),
        ("rope_rotary_dims", u32),
        ("rope_base", f64),
        ("rope_inverse_frequencies", POINTER(f64)),
        ("state_bytes", u32),
        ("row_bytes", u32),
    ]


class SpaceSpec(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("dtype", i32),
        ("model", text),
        ("weights_revision", text),
        ("tokens_per_block", u32),
        ("group_count", u32),
        ("groups", POINTER(GroupSpec)),
        ("recipe", text),
    ]


class SpaceInfo(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("created", u32),
        ("fingerprint", u8 * 32),
        ("recipe", ctypes.c_char * 32),
        ("tokens_per_block", u32),
        ("group_count", u32),
    ]


class KeyExtra(Structure):
    _fields_ = [("kind", text), ("offset", u32), ("value_bytes", u32), ("value", pointer)]


class MatchOptions(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("timeout_ms", u32),
        ("slices", POINTER(Slice)),
        ("slice_count", u32),
        ("groups_skipped_count", u32),
        ("groups_skipped", POINTER(u32)),
        ("token_limit", u32),
        ("wait_ms", u32),
        ("no_lease", u32),
    ]


class MatchedBlock(Structure):
    _fields_ = [("tier", i32), ("reserved", u32), ("image_bytes", u64)]


class MatchResult(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("block_count", u32),
        ("token_count", u64),
        ("lease", u8 * 16),
        ("lease_ms", u32),
        ("shortened_by_pins", u32),
        ("breaker_open", u32),
        ("reserved", u32),
    ]


class View(Structure):
    _fields_ = [
        ("data", pointer),
        ("layers", POINTER(pointer)),
        ("token_offsets", POINTER(i64)),
        ("stride", i64 * 4),
    ]


class Memory(Structure):
    _fields_ = [
        ("form", i32),
        ("reserved", u32),
        ("data", pointer),
        ("bytes", u64),
        ("k", View),
        ("v", View),
    ]


class PutRequest(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("encode", i32),
        ("key", u8 * 32),
        ("parent", u8 * 32),
        ("slice", Slice),
        ("first_position", u64),
        ("derived", u32),
        ("reserved", u32),
        ("source", Memory),
        ("status", i32),
        ("duplicate", u32),
        ("image_bytes", u64),
    ]


class GetRequest(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("decode", i32),
        ("key", u8 * 32),
        ("lease", u8 * 16),
        ("slice", Slice),
        ("target", Memory),
        ("status", i32),
        ("tier", i32),
        ("bytes", u64),
        ("wire_bytes", u64),
        ("first_position", u64),
    ]


class TierStats(Structure):
    _fields_ = [
        ("tier", i32),
        ("reserved", u32),
        ("capacity_bytes", u64),
        ("used_bytes", u64),
        ("pinned_bytes", u64),
        ("staging_bytes", u64),
        ("quarantine_bytes", u64),
    ]


class Stats(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("tier_count", u32),
        ("tiers", TierStats * 4),
        ("block_count", u64),
        ("image_count", u64),
        ("image_bytes", u64),
        ("source_bytes", u64),
        ("session_count", u64),
        ("lease_count", u64),
        ("uptime_ms", u64),
        ("draining", u32),
        ("reserved", u32),
        ("daemon_version", ctypes.c_char * 32),
    ]


class Counters(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("breaker_state", u32),
        ("gets", u64),
        ("hits", u64),
        ("misses", u64),
        ("corrupt", u64),
        ("late", u64),
        ("puts", u64),
        ("duplicates", u64),
        ("get_bytes", u64),
        ("put_bytes", u64),
        ("reconnects", u64),
        ("breaker_opened", u64),
    ]


class ImageInfo(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("version", u32),
        ("fingerprint", u8 * 32),
        ("key", u8 * 32),
        ("slice", Slice),
        ("tokens", u32),
        ("dtype", i32),
        ("first_position", u64),
        ("image_bytes", u64),
        ("source_bytes", u64),
        ("tile_count", u32),
        ("k_dim", u32),
        ("v_dim", u32),
        ("recipe", ctypes.c_char * 64),
    ]


class ImageSpec(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("kind", i32),
        ("fingerprint", u8 * 32),
        ("key", u8 * 32),
        ("slice", Slice),
        ("tokens", u32),
        ("dtype", i32),
        ("k_dim", u32),
        ("v_dim", u32),
        ("first_position", u64),
        ("recipe", text),
        *(("profile", text), ("profile_bytes", size), ("parent_image", pointer)),
        *(("parent_image_bytes", size), ("query_magnitudes", pointer), ("token_scores", pointer)),
    ]


# Handles are void pointers, keys byte strings. Everything not named returns a status.
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "cairn_version": (text, []),
    "cairn_abi_version": (status, []),
    "cairn_last_error": (text, []),
    "cairn_status_name": (text, [status]),
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
    "cairn_release": (status, [pointer, pointer, size, u32]),
    "cairn_put": (status, [pointer, POINTER(PutRequest), u32]),
    "cairn_put_batch": (status, [pointer, POINTER(PutRequest), size, u32]),
    "cairn_get": (status, [pointer, POINTER(GetRequest), u32]),
    "cairn_get_batch": (status, [pointer, POINTER(GetRequest), size, u32]),
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
