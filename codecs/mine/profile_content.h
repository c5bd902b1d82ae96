// SPDX-License-Identifier: Apache-2.0
#pragma once
// The content of a profile without a basis, before serialization. docs/internals/formats/profile.md
// shows the layout of the bytes.
//
// Thread-safety: a value; WriteProfile() is Thread-safe. Allocates.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/side/profile.h"

namespace cairn::codecs {

struct ProfileTable {
  uint8_t frequencies[kCoderSymbols] = {};  // their sum is 256; the last is at least 1
  int8_t offsets[2] = {};                   // offsets of the codes 1 and 2, in 1/256 of a step
};

struct ProfilePlane {
  uint32_t dim = 0;
  ProfileTable tables[kProfileTables];
  std::vector<ProfileChannel> channels;  // [layer][head][dim]
};

struct ProfileRate {
  uint16_t bits = 0;  // in tenths of a bit
  int16_t multiplier = 0;
};

struct ProfileContent {
  uint16_t layers = 0;
  uint16_t heads = 0;
  std::vector<ProfilePlane> planes;  // K and V, or the latent alone
  RotaryPairs pairs;
  std::vector<uint64_t> turns;  // one per channel pair, in 2^-64 turn per token
  std::vector<ProfileRate> rates;
};

// Serializes a profile. REQUIRES: every field is within the limits of
// docs/internals/formats/profile.md, and the rates ascend.
[[nodiscard]] std::vector<std::byte> WriteProfile(const ProfileContent& content);

}  // namespace cairn::codecs
