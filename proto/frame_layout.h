// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bytes of a frame, as in docs/internals/formats/frame.md. Only for frame.cc and its tests.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "proto/frame.h"

namespace cairn::proto {

static_assert(std::endian::native == std::endian::little, "frames are copied, not swapped");

inline constexpr uint32_t kFrameMagic = 0x314E5243;  // "CRN1"
inline constexpr size_t kFrameCrcOffset = 60;

// The head on the wire, as in docs/internals/formats/frame.md.
struct HeadLayout {
  uint32_t magic;
  uint8_t version;
  uint8_t kind;
  uint16_t flags;
  uint64_t seq;
  Ticket ticket;
  uint64_t payload_bytes;
  uint32_t payload_crc32c;
  uint32_t deadline_ms;
  uint16_t status;
  uint16_t body_bytes;
  uint32_t trace_low;  // two halves, so that no padding is needed before them
  uint32_t trace_high;
  uint32_t frame_crc32c;
};
static_assert(sizeof(HeadLayout) == kFrameHeadBytes);
static_assert(offsetof(HeadLayout, ticket) == 16 && offsetof(HeadLayout, status) == 48 &&
              offsetof(HeadLayout, frame_crc32c) == kFrameCrcOffset);

struct HelloLayout {
  uint16_t version;
  uint16_t batch_max;  // Hello: 0
  uint32_t window;
  uint64_t bytes;  // Hello: region_bytes. HelloReply: payload_bytes_max
};
static_assert(sizeof(HelloLayout) == 16);

struct GetLayout {
  uint64_t space_id;
  BlockKey key;
  LeaseToken lease;
  uint16_t group, layer_first, layer_count, head_first, head_count;
  uint8_t form, zero_byte;
  uint32_t zero;
  uint64_t target_bytes;
};
static_assert(sizeof(GetLayout) == 80);

struct GetReplyLayout {
  uint8_t form, tier;
  uint16_t zero_short;
  uint32_t zero;
  uint64_t first_position;
  uint64_t source_bytes;
};
static_assert(sizeof(GetReplyLayout) == 24);

struct PutLayout {
  uint64_t space_id;
  BlockKey key;
  BlockKey parent;
  uint64_t first_position;
  uint16_t group, layer_first, layer_count, head_first, head_count;
  uint16_t tokens;
  uint8_t form, is_derived;
  uint8_t aux, is_durable;
};
static_assert(sizeof(PutLayout) == 96);

// Follows a PutLayout if the put has hashes of the engine.
struct PutNamesLayout {
  uint8_t hash_bytes, parent_bytes;
  uint8_t zero[6];
  std::array<std::byte, EngineHash::kBytesMax> hash, parent;
};
static_assert(sizeof(PutNamesLayout) == 72);

struct PutReplyLayout {
  uint8_t is_duplicate;
  uint8_t durability;
  uint8_t zero[6];
  uint64_t image_bytes;
};
static_assert(sizeof(PutReplyLayout) == 16);

static_assert(kFrameHeadBytes + sizeof(PutLayout) + sizeof(PutNamesLayout) <= kFrameBytesMax);
static_assert(kFrameHeadBytes + kErrorTextBytesMax <= kFrameBytesMax);

}  // namespace cairn::proto
