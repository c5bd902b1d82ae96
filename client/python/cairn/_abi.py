# SPDX-License-Identifier: Apache-2.0
"""The C ABI for `_ffi`. Generated from client/c/cairn.h by generate_abi.py: do not edit."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure
from ctypes import c_char as char
from ctypes import c_char_p as text
from ctypes import c_double as f64
from ctypes import c_float as f32
from ctypes import c_int as integer
from ctypes import c_int32 as i32
from ctypes import c_int64 as i64
from ctypes import c_size_t as size
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64
from ctypes import c_uint8 as u8
from ctypes import c_void_p as pointer


class Sized(Structure):
    """A struct that begins with struct_bytes, zero but for that."""

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields)
        self.struct_bytes = ctypes.sizeof(type(self))


ABI_VERSION = 1
WHERE_MEMBERS_MAX = 17
ARKV_GAMMA = 263.81
OK = 0
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
DTYPE_BF16 = 1
DTYPE_FP16 = 2
DTYPE_FP32 = 3
DTYPE_FP8_E4M3 = 5
DTYPE_FP8_E5M2 = 6
TIER_NONE = 0
TIER_GPU = 1
TIER_HOST = 2
TIER_SSD = 3
TIER_PEER = 4
GROUP_KV = 1
GROUP_LATENT = 2
GROUP_STATE = 3
GROUP_OPAQUE_ROWS = 4
ROPE_NONE = 0
ROPE_HALF = 1
ROPE_INTERLEAVED = 2
FORM_VIEWS = 0
FORM_SOURCE = 1
FORM_IMAGE = 2
ENCODE_DAEMON = 0
ENCODE_CLIENT = 1
DURABILITY_NOT_ASKED = 0
DURABILITY_DURABLE = 1
DURABILITY_NO_TIER = 2
DURABILITY_READ_ONLY = 3
DURABILITY_NO_ROOM = 4
DURABILITY_LATE = 5
DURABILITY_ANCESTORS = 6
DURABILITY_TOO_LARGE = 7
DURABILITY_GONE = 8
DURABILITY_STOPPING = 9
DECODE_CLIENT = 0
DECODE_DAEMON = 1
DEVICE_HOST = 0
DEVICE_CUDA = 1
SNAPSHOT_NONE = 0
SNAPSHOT_FOLLOWS = 1
SNAPSHOT_PAGE = 2
SNAPSHOT_LAST_PAGE = 3
BLOCK_STORED = 1
BLOCK_INCOMPLETE = 2
BLOCK_ABSENT = 3
REASON_NONE = 0
REASON_UNKNOWN = 1
REASON_NEVER_PUT = 2
REASON_EVICTED = 3
REASON_EXPIRED = 4
REASON_DELETED = 5
REASON_INVALIDATED = 6
REASON_DAMAGED = 7
REASON_DEVICE_OUT = 8
REASON_REFUSED = 9
SIDE_OBJECT_PROFILE = 1
SIDE_OBJECT_BANK = 2
TOKEN_EVICTED = 0
TOKEN_LOW = 1
TOKEN_ORIGINAL = 2


class Slice(Structure):
    """cairn_slice"""

    _fields_ = [
        ("group", u32),
        ("layer_first", u32),
        ("layer_count", u32),
        ("head_first", u32),
        ("head_count", u32),
    ]


class ConnectOptions(Sized):
    """cairn_connect_options"""

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
        ("tls_ca", text),
        ("tls_cert", text),
        ("tls_key", text),
        ("tls_server", text),
        ("transports", text),
    ]


class GroupSpec(Structure):
    """cairn_group_spec"""

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


class SpaceSpec(Sized):
    """cairn_space_spec"""

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


class SpaceInfo(Sized):
    """cairn_space_info"""

    _fields_ = [
        ("struct_bytes", u32),
        ("created", u32),
        ("fingerprint", u8 * 32),
        ("recipe", char * 32),
        ("tokens_per_block", u32),
        ("group_count", u32),
    ]


class KeyExtra(Structure):
    """cairn_key_extra"""

    _fields_ = [("kind", text), ("offset", u32), ("value_bytes", u32), ("value", pointer)]


class MatchOptions(Sized):
    """cairn_match_options"""

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
    """cairn_matched_block"""

    _fields_ = [("tier", i32), ("reserved", u32), ("image_bytes", u64)]


class MatchResult(Sized):
    """cairn_match_result"""

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


class PrefetchOptions(Sized):
    """cairn_prefetch_options"""

    _fields_ = [
        ("struct_bytes", u32),
        ("timeout_ms", u32),
        ("slices", POINTER(Slice)),
        ("slice_count", u32),
        ("groups_skipped_count", u32),
        ("groups_skipped", POINTER(u32)),
    ]


class PrefetchResult(Sized):
    """cairn_prefetch_result"""

    _fields_ = [
        ("struct_bytes", u32),
        ("in_memory_count", u32),
        ("on_their_way_count", u32),
        ("absent_count", u32),
        ("refused_count", u32),
    ]


class View(Structure):
    """cairn_view"""

    _fields_ = [
        ("data", pointer),
        ("layers", POINTER(pointer)),
        ("token_offsets", POINTER(i64)),
        ("stride", i64 * 4),
        ("first_byte", i64),
        ("end_byte", i64),
    ]


class Memory(Structure):
    """cairn_memory"""

    _fields_ = [
        ("form", i32),
        ("reserved", u32),
        ("data", pointer),
        ("bytes", u64),
        ("k", View),
        ("v", View),
    ]


class Names(Structure):
    """cairn_names"""

    _fields_ = [
        ("hash", pointer),
        ("parent", pointer),
        ("tokens", POINTER(u32)),
        ("hash_bytes", u32),
        ("parent_bytes", u32),
        ("token_count", u32),
        ("reserved", u32),
    ]


class PutRequest(Sized):
    """cairn_put_request"""

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
        ("names", Names),
    ]


class GetRequest(Sized):
    """cairn_get_request"""

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


class PagedPlane(Structure):
    """cairn_paged_plane"""

    _fields_ = [
        ("data", pointer),
        ("layers", POINTER(pointer)),
        ("layer_stride", i64),
        ("block_stride", i64),
        ("head_stride", i64),
        ("token_run_stride", i64),
        ("token_stride", i64),
        ("dim_run_stride", i64),
        ("dim_stride", i64),
        ("tokens_per_run", u32),
        ("dims_per_run", u32),
        ("first_byte", i64),
        ("end_byte", i64),
    ]


class PagedCache(Sized):
    """cairn_paged_cache"""

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


class PagedRequest(Sized):
    """cairn_paged_request"""

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
        ("names", POINTER(Names)),
    ]


class AttendJob(Sized):
    """cairn_attend_job"""

    _fields_ = [
        ("struct_bytes", u32),
        ("layer", u32),
        ("images", pointer),
        ("head_first", u32),
        ("head_count", u32),
        ("query_heads", u32),
        ("query_tokens", u32),
        ("v_dim", u32),
        ("scale", f32),
        ("queries", pointer),
        ("outputs", pointer),
        ("log_sums", pointer),
        ("tail", POINTER(PagedCache)),
        ("tail_blocks", POINTER(i32)),
        ("tail_block_count", u32),
        ("tail_first_token", u32),
        ("tail_tokens_max", u32),
        ("tail_ends_with_queries", u32),
        ("tail_tokens", POINTER(i32)),
    ]


class Event(Structure):
    """cairn_event"""

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


class EventBatch(Sized):
    """cairn_event_batch"""

    _fields_ = [
        ("struct_bytes", u32),
        ("reset", u32),
        ("epoch", u64),
        ("first_sequence", u64),
        ("next_sequence", u64),
        ("events", POINTER(Event)),
        ("event_count", size),
        ("names", POINTER(Names)),
        ("snapshot", i32),
        ("reserved", u32),
    ]


class WatchOptions(Sized):
    """cairn_watch_options"""

    _fields_ = [("struct_bytes", u32), ("snapshots", u32), ("epoch", u64), ("next_sequence", u64)]


class TierStats(Structure):
    """cairn_tier_stats"""

    _fields_ = [
        ("tier", i32),
        ("reserved", u32),
        ("capacity_bytes", u64),
        ("used_bytes", u64),
        ("pinned_bytes", u64),
        ("staging_bytes", u64),
        ("quarantine_bytes", u64),
    ]


class Stats(Sized):
    """cairn_stats"""

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
        ("daemon_version", char * 32),
    ]


class Counters(Sized):
    """cairn_counters"""

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


class BlockFate(Structure):
    """cairn_block_fate"""

    _fields_ = [
        ("state", i32),
        ("reason", i32),
        ("tiers", u32),
        ("missing_group", u32),
        ("removed_ms", u64),
    ]


class MemberBlocks(Structure):
    """cairn_member_blocks"""

    _fields_ = [
        ("member", char * 256),
        ("failure", char * 128),
        ("block_count", u32),
        ("tier_counts", u32 * 8),
        ("is_self", u8),
        ("is_draining", u8),
    ]


class ImageInfo(Sized):
    """cairn_image_info"""

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
        ("recipe", char * 64),
        ("side_object", u8 * 32),
    ]


class ImageSpec(Sized):
    """cairn_image_spec"""

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
        ("profile", pointer),
        ("profile_bytes", size),
        ("parent_image", pointer),
        ("parent_image_bytes", size),
        ("query_magnitudes", pointer),
        ("token_scores", pointer),
        ("chain_tokens", u64),
        ("token_states", pointer),
    ]


class SampleText(Structure):
    """cairn_sample_text"""

    _fields_ = [("blocks", POINTER(i64)), ("block_count", size), ("first_position", u64)]


class Sample(Sized):
    """cairn_sample"""

    _fields_ = [
        ("struct_bytes", u32),
        ("timeout_ms", u32),
        ("group", u32),
        ("cache", POINTER(PagedCache)),
        ("texts", POINTER(SampleText)),
        ("text_count", size),
    ]


class Attention(Sized):
    """cairn_attention"""

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
    """cairn_layer_statistics"""

    _fields_ = [("entropy", f64), ("variance", f64), ("kurtosis", f64)]


class TokenBudget(Sized):
    """cairn_token_budget"""

    _fields_ = [
        ("struct_bytes", u32),
        ("is_uniform", u32),
        ("bytes", u64),
        ("original_bytes", u64),
        ("low_bytes", u64),
        ("original_share", f64),
    ]


# The result and the arguments. Handles are pointers, keys byte strings.
FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "cairn_version": (text, []),
    "cairn_abi_version": (integer, []),
    "cairn_last_error": (text, []),
    "cairn_status_name": (text, [integer]),
    "cairn_set_trace": (integer, [text]),
    "cairn_connect": (integer, [POINTER(ConnectOptions), POINTER(pointer)]),
    "cairn_close": (None, [pointer]),
    "cairn_open_space": (integer, [pointer, POINTER(SpaceSpec), u32, POINTER(pointer)]),
    "cairn_space_info_get": (integer, [pointer, POINTER(SpaceInfo)]),
    "cairn_space_source_bytes": (integer, [pointer, POINTER(Slice), POINTER(u64)]),
    "cairn_space_image_bytes_max": (integer, [pointer, POINTER(Slice), POINTER(u64)]),
    "cairn_space_close": (None, [pointer]),
    "cairn_fingerprint": (integer, [text, POINTER(SpaceSpec), pointer]),
    "cairn_derive_key": (integer, [
        pointer,
        pointer,
        pointer,
        size,
        POINTER(KeyExtra),
        size,
        pointer,
    ]),
    "cairn_derive_chain": (integer, [
        pointer,
        pointer,
        size,
        u32,
        POINTER(KeyExtra),
        size,
        pointer,
        size,
        POINTER(size),
    ]),
    "cairn_opaque_key": (integer, [pointer, pointer, size, pointer]),
    "cairn_match": (integer, [
        pointer,
        pointer,
        size,
        POINTER(MatchOptions),
        POINTER(MatchResult),
        POINTER(MatchedBlock),
    ]),
    "cairn_prefetch": (integer, [
        pointer,
        pointer,
        size,
        POINTER(PrefetchOptions),
        POINTER(PrefetchResult),
    ]),
    "cairn_release": (integer, [pointer, pointer, size, u32]),
    "cairn_put": (integer, [pointer, POINTER(PutRequest), u32]),
    "cairn_put_batch": (integer, [pointer, POINTER(PutRequest), size, u32]),
    "cairn_get": (integer, [pointer, POINTER(GetRequest), u32]),
    "cairn_get_batch": (integer, [pointer, POINTER(GetRequest), size, u32]),
    "cairn_contains": (integer, [pointer, pointer, size, u32, pointer]),
    "cairn_delete": (integer, [pointer, pointer, size, u32, POINTER(u64)]),
    "cairn_invalidate": (integer, [pointer, u32, POINTER(u64)]),
    "cairn_buffer_allocate": (integer, [pointer, size, u32, POINTER(pointer)]),
    "cairn_buffer_data": (pointer, [pointer]),
    "cairn_buffer_bytes": (size, [pointer]),
    "cairn_buffer_free": (None, [pointer]),
    "cairn_get_paged": (integer, [pointer, POINTER(PagedCache), POINTER(PagedRequest)]),
    "cairn_put_paged": (integer, [pointer, POINTER(PagedCache), POINTER(PagedRequest)]),
    "cairn_gather_paged": (integer, [
        pointer,
        POINTER(PagedCache),
        POINTER(PagedRequest),
        pointer,
        u64,
    ]),
    "cairn_check_device": (integer, [i32, i32]),
    "cairn_device_images_open": (integer, [pointer, i32, POINTER(Slice), POINTER(pointer)]),
    "cairn_device_images_append": (integer, [
        pointer,
        pointer,
        size,
        pointer,
        pointer,
        u32,
        POINTER(size),
    ]),
    "cairn_device_images_count": (integer, [pointer, POINTER(size)]),
    "cairn_device_images_close": (None, [pointer]),
    "cairn_attend_open": (integer, [
        pointer,
        i32,
        POINTER(AttendJob),
        size,
        pointer,
        POINTER(pointer),
    ]),
    "cairn_attend_launch": (integer, [pointer, pointer]),
    "cairn_attend_check": (integer, [pointer]),
    "cairn_attend_close": (None, [pointer]),
    "cairn_watch_open": (integer, [pointer, pointer, u64, u64, POINTER(pointer)]),
    "cairn_watch_open_with": (integer, [pointer, pointer, POINTER(WatchOptions), POINTER(pointer)]),
    "cairn_watch_next": (integer, [pointer, u32, POINTER(EventBatch)]),
    "cairn_watch_close": (None, [pointer]),
    "cairn_stats_get": (integer, [pointer, u32, POINTER(Stats)]),
    "cairn_counters_get": (integer, [pointer, POINTER(Counters)]),
    "cairn_breaker_recomputed": (integer, [pointer, u64, f64]),
    "cairn_breaker_advise": (integer, [pointer, u64, u64, POINTER(integer)]),
    "cairn_breaker_advise_peer": (integer, [pointer, u64, u64, u64, POINTER(integer)]),
    "cairn_explain": (integer, [pointer, pointer, size, u32, POINTER(BlockFate), POINTER(u64)]),
    "cairn_where": (integer, [
        pointer,
        pointer,
        size,
        u32,
        POINTER(MemberBlocks),
        size,
        POINTER(size),
        POINTER(u32),
    ]),
    "cairn_retain": (integer, [pointer, pointer, size, u32, u32, u32, POINTER(u32)]),
    "cairn_demote": (integer, [pointer, pointer, size, u32, u32, POINTER(u32)]),
    "cairn_image_inspect": (integer, [pointer, size, POINTER(ImageInfo)]),
    "cairn_image_verify": (integer, [pointer, size, POINTER(u64)]),
    "cairn_image_decode": (integer, [pointer, size, POINTER(Memory)]),
    "cairn_image_decode_with": (integer, [pointer, size, pointer, size, POINTER(Memory)]),
    "cairn_image_recipes": (text, []),
    "cairn_image_bytes_max": (integer, [POINTER(ImageSpec), POINTER(u64)]),
    "cairn_image_encode": (integer, [
        POINTER(ImageSpec),
        POINTER(Memory),
        pointer,
        size,
        POINTER(size),
    ]),
    "cairn_image_thin": (integer, [pointer, size, u64, pointer, size, POINTER(size)]),
    "cairn_mine_bank": (integer, [pointer, POINTER(Sample), u32, POINTER(pointer)]),
    "cairn_mine_profile": (integer, [
        pointer,
        POINTER(Sample),
        pointer,
        size,
        pointer,
        size,
        POINTER(pointer),
    ]),
    "cairn_mined_data": (pointer, [pointer]),
    "cairn_mined_bytes": (size, [pointer]),
    "cairn_mined_free": (None, [pointer]),
    "cairn_side_object_put": (integer, [pointer, u32, i32, pointer, size, u32, pointer]),
    "cairn_side_object_get": (integer, [pointer, pointer, u32, pointer, size, POINTER(size)]),
    "cairn_side_object_current": (integer, [pointer, u32, i32, u32, pointer]),
    "cairn_token_scores": (integer, [POINTER(Attention), pointer, POINTER(LayerStatistics)]),
    "cairn_layer_shares": (integer, [POINTER(LayerStatistics), size, POINTER(f64)]),
    "cairn_plan_tokens": (integer, [POINTER(TokenBudget), pointer, u32, u32, pointer]),
    "cairn_image_scores": (integer, [pointer, size, pointer]),
    "cairn_image_kept": (integer, [pointer, size, pointer]),
}
