// SPDX-License-Identifier: Apache-2.0
// Whatever bytes a peer of transport/stream sends as a chunk. What is taken writes itself again,
// byte for byte.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "transport/stream/chunk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace cairn::transport;
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), bytes);
  if (bytes < kChunkHeadBytes) return 0;
  const auto front_bytes = ParseChunkHead(input.first(kChunkHeadBytes));
  if (!front_bytes.ok()) {
    CAIRN_CHECK(front_bytes.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  CAIRN_CHECK(*front_bytes >= kChunkHeadBytes && *front_bytes <= kChunkFrontBytesMax);
  if (bytes < *front_bytes) return 0;
  const auto chunk = ParseChunk(input.first(*front_bytes));
  if (!chunk.ok()) return 0;
  CAIRN_CHECK(chunk->data_bytes <= kChunkDataBytesMax);
  CAIRN_CHECK(chunk->kind != ChunkKind::kRequest || chunk->data_bytes <= kInlinePayloadBytesMax);
  std::array<std::byte, kChunkFrontBytesMax> again;
  CAIRN_CHECK(WriteChunk(*chunk, again) == *front_bytes);
  CAIRN_CHECK(std::ranges::equal(std::span(again).first(*front_bytes), input.first(*front_bytes)));
  return 0;
}
