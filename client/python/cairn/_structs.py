# SPDX-License-Identifier: Apache-2.0
"""The structs of client/c/cairn.h and what it includes, for `_ffi`."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure
from ctypes import c_char_p as text
from ctypes import c_double as f64
from ctypes import c_int32 as i32
from ctypes import c_int64 as i64
from ctypes import c_size_t as size
from ctypes import c_uint8 as u8
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from ctypes import c_void_p as pointer


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


# What the options of a match and of a prefetch begin with.
_WANTED = [
    ("struct_bytes", u32),
    ("timeout_ms", u32),
    ("slices", POINTER(Slice)),
    ("slice_count", u32),
    ("groups_skipped_count", u32),
    ("groups_skipped", POINTER(u32)),
]


class MatchOptions(_Sized):
    _fields_ = [
        *_WANTED,
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


class PrefetchOptions(_Sized):
    _fields_ = _WANTED


class PrefetchResult(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("in_memory_count", u32),
        ("on_their_way_count", u32),
        ("absent_count", u32),
        ("refused_count", u32),
    ]


class View(Structure):
    _fields_ = [
        ("data", pointer),
        ("layers", POINTER(pointer)),
        ("token_offsets", POINTER(i64)),
        ("stride", i64 * 4),
        ("first_byte", i64),
        ("end_byte", i64),
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
        ("query_squares", pointer),
        ("query_square_count", u64),
        ("query_magnitudes", pointer),
        ("query_magnitude_count", u64),
        ("token_scores", pointer),
        ("token_score_count", u64),
        ("durable", u32),
        ("durability", i32),
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
        ("side_object", u8 * 32),
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
        ("profile", text),
        ("profile_bytes", size),
        ("parent_image", pointer),
        ("parent_image_bytes", size),
        ("query_magnitudes", pointer),
        ("token_scores", pointer),
        ("chain_tokens", u64),
        ("token_states", pointer),
    ]


class Attention(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("query_heads", u32),
        ("kv_heads", u32),
        ("queries", u32),
        ("keys", u32),
        ("dim", u32),
        ("weights", pointer),
        ("query_values", pointer),
        ("key_values", pointer),
        ("scale", f64),
        ("gamma", f64),
    ]


class LayerStatistics(Structure):
    _fields_ = [("entropy", f64), ("variance", f64), ("kurtosis", f64)]


class TokenBudget(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("is_uniform", u32),
        ("bytes", u64),
        ("original_bytes", u64),
        ("low_bytes", u64),
        ("original_share", f64),
    ]


class PagedPlane(Structure):
    _axes = ("layer", "block", "head", "token_run", "token", "dim_run", "dim")
    _fields_ = [
        ("data", pointer),
        ("layers", POINTER(pointer)),
        *((f"{name}_stride", i64) for name in _axes),
        ("tokens_per_run", u32),
        ("dims_per_run", u32),
        ("first_byte", i64),
        ("end_byte", i64),
    ]


class PagedCache(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("tokens_per_block", u32),
        ("block_count", i64),
        ("k", PagedPlane),
        ("v", PagedPlane),
        ("device", i32),
        ("device_number", i32),
        ("stream", pointer),
    ]


class PagedRequest(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("timeout_ms", u32),
        ("slice", Slice),
        ("code", i32),
        ("keys", pointer),
        ("key_count", size),
        ("blocks", POINTER(i64)),
        ("block_count", size),
        ("lease", u8 * 16),
        ("parent", u8 * 32),
        ("first_position", u64),
        ("derived", u32),
        ("durable", u32),
        ("statuses", POINTER(i32)),
        ("bytes", u64),
        ("wire_bytes", u64),
        ("durabilities", POINTER(i32)),
    ]


class Event(Structure):
    _fields_ = [
        ("stored", u32),
        ("tier", i32),
        ("space", u8 * 32),
        ("key", u8 * 32),
        ("parent", u8 * 32),
        ("first_position", u64),
        ("token_count", u32),
        ("reserved", u32),
    ]


class EventBatch(_Sized):
    _fields_ = [
        ("struct_bytes", u32),
        ("reset", u32),
        ("epoch", u64),
        ("first_sequence", u64),
        ("next_sequence", u64),
        ("events", POINTER(Event)),
        ("event_count", size),
    ]
