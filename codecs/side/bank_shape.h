// SPDX-License-Identifier: Apache-2.0
#pragma once
// The size and layout of a bank, for code that makes one. A bank is a side object with the patterns
// of each head and plane, which the recipe `patternkv` uses. WriteBankFrame() writes all bytes of a
// bank except the patterns. docs/internals/formats/bank.md shows the layout.
//
// Thread-safety: a value; functions are Thread-safe. They do not allocate or throw.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/types/error.h"

namespace cairn::codecs {

struct BankShape {
  uint32_t layers = 1;
  uint32_t heads = 1;
  uint32_t patterns = 1;  // number of patterns of each head and plane
  uint32_t k_dim = 1;
  uint32_t v_dim = 0;  // 0: the group has latents
};

// Errors: kInvalidShape if a number, or the bank's size, exceeds the limits of
// docs/internals/formats/bank.md.
Error Validate(const BankShape& shape);

// REQUIRES for all functions below: Validate(shape) is kOk.

[[nodiscard]] inline uint32_t BankPlanes(const BankShape& shape) {
  return shape.v_dim == 0 ? 1 : 2;
}
[[nodiscard]] inline uint32_t BankDim(const BankShape& shape, uint32_t plane) {
  return plane == 0 ? shape.k_dim : shape.v_dim;
}
[[nodiscard]] uint64_t BankBytes(const BankShape& shape);
// Returns the offset of the patterns of a head.
//   head  index in the group: layer * heads + head
[[nodiscard]] uint64_t PatternsAt(const BankShape& shape, uint32_t plane, uint64_t head);
// Writes all of a bank except its patterns.
// REQUIRES: bank.size() is BankBytes(shape).
void WriteBankFrame(const BankShape& shape, std::span<std::byte> bank);

}  // namespace cairn::codecs
