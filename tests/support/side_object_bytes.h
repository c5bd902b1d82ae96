// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes side objects of every kind, for tests that run with all kinds.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/side_object.h"
#include "tests/support/bank_bytes.h"
#include "tests/support/profile_bytes.h"

namespace cairn {

struct SideObjectCase {
  proto::SideObjectKind kind;
  const char* recipe;  // a recipe that uses it
};
inline constexpr SideObjectCase kProfileCase = {proto::SideObjectKind::kProfile, "cairn:2.3"};
inline constexpr SideObjectCase kBankCase = {proto::SideObjectKind::kBank, "patternkv:2"};

inline std::string NameOfKind(proto::SideObjectKind kind) {
  return kind == proto::SideObjectKind::kBank ? "Bank" : "Profile";
}
inline std::string NameOfCase(const testing::TestParamInfo<SideObjectCase>& info) {
  return NameOfKind(info.param.kind);
}

// Returns a side object for a group of this shape. Each seed gives other bytes of the same size.
// Only profiles use the parts of the shape for RoPE and bases.
inline std::vector<std::byte> SideObjectBytes(proto::SideObjectKind kind, uint64_t seed,
                                              const codecs::ProfileShape& shape) {
  std::mt19937_64 random(seed);
  if (kind == proto::SideObjectKind::kProfile) {
    return codecs::ProfileBytes(shape, random).bytes();
  }
  return codecs::BankBytes({.layers = shape.layers,
                            .heads = shape.heads,
                            .patterns = 9,
                            .k_dim = shape.k_dim,
                            .v_dim = shape.v_dim},
                           random);
}

}  // namespace cairn
