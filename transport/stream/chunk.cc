// SPDX-License-Identifier: Apache-2.0
#include "transport/stream/chunk.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

constexpr uint32_t kChunkMagic = 0x31535243;  // "CRS1"

template <typename T>
T Read(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <typename T>
void Write(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

bool HasFrame(ChunkKind kind) { return kind == ChunkKind::kRequest || kind == ChunkKind::kReply; }

absl::Status Bad(std::string_view what, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("chunk: ", ToAbsl(what), " is ", value));
}

}  // namespace

absl::StatusOr<size_t> ParseChunkHead(std::span<const std::byte> head) {
  CAIRN_DCHECK(head.size() == kChunkHeadBytes);
  const auto magic = Read<uint32_t>(head, 0);
  const auto kind = Read<uint8_t>(head, 4);
  const auto frame_bytes = Read<uint16_t>(head, 6);
  const auto data_bytes = Read<uint32_t>(head, 16);
  if (magic != kChunkMagic) return Bad("the magic", magic);
  if (kind < 1 || kind > 4) return Bad("the kind", kind);
  if (Read<uint8_t>(head, 5) != 0 || Read<uint32_t>(head, 20) != 0) {
    return absl::InvalidArgumentError("chunk: a reserved byte is not 0");
  }
  const auto known = static_cast<ChunkKind>(kind);
  if (HasFrame(known) ? frame_bytes < proto::kFrameHeadBytes || frame_bytes > proto::kFrameBytesMax
                      : frame_bytes != 0) {
    return Bad("the frame's size", frame_bytes);
  }
  const bool is_good = known == ChunkKind::kRequest ? data_bytes <= kInlinePayloadBytesMax
                       : known == ChunkKind::kGo    ? data_bytes == 0
                       : known == ChunkKind::kData
                           ? data_bytes >= 1 && data_bytes <= kChunkDataBytesMax
                           : data_bytes <= kChunkDataBytesMax;
  if (!is_good) return Bad("the size of its data", data_bytes);
  return kChunkHeadBytes + frame_bytes + (HasFrame(known) ? kChunkSizesBytes : 0);
}

absl::StatusOr<Chunk> ParseChunk(std::span<const std::byte> front) {
  CAIRN_ASSIGN_OR_RETURN(const size_t bytes, ParseChunkHead(front.first(kChunkHeadBytes)));
  CAIRN_CHECK(bytes == front.size());
  Chunk chunk;
  chunk.kind = static_cast<ChunkKind>(Read<uint8_t>(front, 4));
  chunk.seq = Read<uint64_t>(front, 8);
  chunk.data_bytes = Read<uint32_t>(front, 16);
  if (!HasFrame(chunk.kind)) return chunk;
  chunk.frame.size = Read<uint16_t>(front, 6);
  std::memcpy(chunk.frame.data.data(), front.data() + kChunkHeadBytes, chunk.frame.size);
  chunk.capacity_bytes = Read<uint64_t>(front, bytes - 16);
  chunk.payload_bytes = Read<uint64_t>(front, bytes - 8);
  if (proto::SeqOf(chunk.frame.bytes()) != chunk.seq) {
    return Bad("the seq is not the frame's: it", chunk.seq);
  }
  if (chunk.kind == ChunkKind::kRequest) {
    const uint64_t expected =
        chunk.payload_bytes <= kInlinePayloadBytesMax ? chunk.payload_bytes : 0;
    if (chunk.data_bytes != expected) return Bad("the size of its data", chunk.data_bytes);
  } else {
    if (chunk.capacity_bytes != 0) return Bad("a reply's capacity", chunk.capacity_bytes);
    if (chunk.data_bytes > chunk.payload_bytes ||
        (chunk.data_bytes == 0 && chunk.payload_bytes > 0)) {
      return Bad("the size of its data", chunk.data_bytes);
    }
  }
  return chunk;
}

size_t WriteChunk(const Chunk& chunk, std::span<std::byte, kChunkFrontBytesMax> target) {
  const bool has_frame = HasFrame(chunk.kind);
  std::memset(target.data(), 0, kChunkHeadBytes);
  Write(target, 0, kChunkMagic);
  Write(target, 4, static_cast<uint8_t>(chunk.kind));
  Write(target, 6, has_frame ? chunk.frame.size : uint16_t{0});
  Write(target, 8, chunk.seq);
  Write(target, 16, chunk.data_bytes);
  if (!has_frame) return kChunkHeadBytes;
  std::memcpy(target.data() + kChunkHeadBytes, chunk.frame.data.data(), chunk.frame.size);
  const size_t at = kChunkHeadBytes + chunk.frame.size;
  Write(target, at, chunk.capacity_bytes);
  Write(target, at + 8, chunk.payload_bytes);
  return at + kChunkSizesBytes;
}

}  // namespace cairn::transport
