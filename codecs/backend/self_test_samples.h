// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tiles that the self-test of a backend uses. They are the same on every machine.
//
// Thread-safety: a value. Allocates.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/backend/backend.h"
#include "codecs/side/profile.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs::self_test {

inline constexpr uint32_t kTokens = 131;  // one whole group of tokens of K, and a partial one
inline constexpr uint32_t kDim = 75;      // not a multiple of any register width
inline constexpr uint32_t kGroupTokens = 128, kGroupChannels = 64;
inline constexpr uint32_t kPatterns = 5;
inline constexpr uint64_t kElements = uint64_t{kTokens} * kDim;
inline constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3,
                                       DType::kFp8E5m2};

using Buffer = std::vector<uint8_t>;

struct Samples {
  Samples();

  std::array<Buffer, kDTypes.size()> elements;  // bell-shaped; a few are outliers
  std::array<Buffer, kDTypes.size()> others;    // V of the same tokens
  Buffer any_bits;                              // random bytes, used as codes
  Buffer patterns;                              // fp16
  std::vector<std::byte> profile_bytes;
  // The backend whose encoders make the input of decoders.
  const Backend* inputs_of = nullptr;
  Profile profile;  // one head of kDim channels of K and V, with RoPE
};

}  // namespace cairn::codecs::self_test
