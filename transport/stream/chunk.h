// SPDX-License-Identifier: Apache-2.0
#pragma once
// The chunks of transport/stream, in a TLS byte stream (docs/internals/transport-stream.md):
//
//   0   u32  "CRS1"
//   4   u8   kind
//   5   u8   0
//   6   u16  frame bytes
//   8   u64  seq
//   16  u32  data bytes
//   20  u32  0
//   24  the frame; for request and reply then the sizes below; then the data
//
//   kind      from    frame  sizes                           data
//   request   client  yes    u64 capacity, u64 payload       the payload, if it is at most 64 KiB
//   go        daemon  no     –                               –
//   data      both    no     –                               1 byte to 256 KiB of the payload
//   reply     daemon  yes    u64 0, u64 payload              the payload's first bytes
//
// A payload above 64 KiB is sent after `go`. If the daemon replies without `go`, it has refused the
// payload. Numbers are little-endian. A chunk that breaks these rules ends the connection.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frame.h"

namespace cairn::transport {

inline constexpr char kStreamAlpn[] = "cairn-stream/1";

enum class ChunkKind : uint8_t { kRequest = 1, kGo = 2, kData = 3, kReply = 4 };

inline constexpr size_t kChunkHeadBytes = 24;
inline constexpr size_t kChunkSizesBytes = 16;
// Maximum size of head, frame and sizes together.
inline constexpr size_t kChunkFrontBytesMax =
    kChunkHeadBytes + proto::kFrameBytesMax + kChunkSizesBytes;
inline constexpr uint32_t kChunkDataBytesMax = 256 << 10;
inline constexpr uint32_t kInlinePayloadBytesMax = 64 << 10;

struct Chunk {
  ChunkKind kind = ChunkKind::kData;
  uint64_t seq = 0;
  uint32_t data_bytes = 0;
  proto::FrameBytes frame;      // request, reply
  uint64_t capacity_bytes = 0;  // request
  uint64_t payload_bytes = 0;   // request, reply
};

// Parses the first kChunkHeadBytes of a chunk. Returns the length of its front, which is head,
// frame and sizes. Errors: InvalidArgument. REQUIRES: head.size() == kChunkHeadBytes.
absl::StatusOr<size_t> ParseChunkHead(std::span<const std::byte> head);
// Parses a complete front. Errors: InvalidArgument. REQUIRES: front.size() is the length that
// ParseChunkHead() returned for it.
absl::StatusOr<Chunk> ParseChunk(std::span<const std::byte> front);

// Writes the front of a chunk. Returns its length.
size_t WriteChunk(const Chunk& chunk, std::span<std::byte, kChunkFrontBytesMax> target);

}  // namespace cairn::transport
