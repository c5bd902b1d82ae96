// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names that an engine has for a block: its own hash of the block, its hash of the previous block,
// and the block's tokens. Routers find blocks in events by these names. Cairn itself finds blocks
// only by keys.
//
// Thread-safety: values.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cairn::proto {

// A hash as the engine computes it, or none.
class EngineHash {
 public:
  static constexpr size_t kBytesMin = 8, kBytesMax = 32;

  constexpr EngineHash() = default;
  // Returns an empty hash if there are no bytes. Errors: InvalidArgument, naming `field`, unless
  // there are 0 or kBytesMin to kBytesMax bytes.
  static absl::StatusOr<EngineHash> From(std::span<const std::byte> bytes, std::string_view field);

  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {bytes_.data(), count_}; }

  friend bool operator==(const EngineHash&, const EngineHash&) = default;

 private:
  uint8_t count_ = 0;
  std::array<std::byte, kBytesMax> bytes_{};  // zeros from index count_ on
};

struct EngineNames {
  EngineHash hash;
  EngineHash parent;             // hash of the previous block; empty: none, or unknown
  std::vector<uint32_t> tokens;  // empty: not kept

  // The memory that the index counts for the names, including their table entry.
  [[nodiscard]] uint64_t bytes() const { return 128 + tokens.size() * sizeof(uint32_t); }

  friend bool operator==(const EngineNames&, const EngineNames&) = default;
};

}  // namespace cairn::proto
