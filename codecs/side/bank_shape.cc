// SPDX-License-Identifier: Apache-2.0
#include "codecs/side/bank_shape.h"

#include <cstring>

#include "codecs/side/bank.h"
#include "codecs/types/bytes.h"
#include "codecs/types/shape.h"

namespace cairn::codecs {
namespace {

namespace field {
constexpr size_t kVersion = 4;      // u16
constexpr size_t kHeaderBytes = 6;  // u16
constexpr size_t kBytes = 8;        // u64
constexpr size_t kPlanes = 16;      // u8
constexpr size_t kPatterns = 18;    // u16
constexpr size_t kLayers = 20;      // u16
constexpr size_t kHeads = 22;       // u16
constexpr size_t kKDim = 24;        // u32
constexpr size_t kVDim = 28;        // u32
}  // namespace field

// Returns the size of all patterns of a plane.
uint64_t ValueBytes(const BankShape& shape, uint32_t plane) {
  return uint64_t{shape.layers} * shape.heads * shape.patterns * BankDim(shape, plane) *
         sizeof(uint16_t);
}

}  // namespace

Error Validate(const BankShape& shape) {
  const uint64_t heads = uint64_t{shape.layers} * shape.heads;
  const bool is_valid = shape.layers >= 1 && shape.heads >= 1 && shape.layers < kTilesMax &&
                        shape.heads < kTilesMax && heads * BankPlanes(shape) <= kTilesMax &&
                        shape.patterns >= 1 && shape.patterns <= kBankPatternsMax &&
                        shape.k_dim >= 1 && shape.k_dim <= kBankDimMax &&
                        shape.v_dim <= kBankDimMax;
  return is_valid && BankBytes(shape) <= kBankBytesMax ? Error::kOk : Error::kInvalidShape;
}

uint64_t BankBytes(const BankShape& shape) {
  return kBankHeaderBytes + AlignSection(ValueBytes(shape, 0)) + AlignSection(ValueBytes(shape, 1));
}

uint64_t PatternsAt(const BankShape& shape, uint32_t plane, uint64_t head) {
  const uint64_t first = plane == 0 ? 0 : AlignSection(ValueBytes(shape, 0));
  return kBankHeaderBytes + first +
         head * shape.patterns * BankDim(shape, plane) * sizeof(uint16_t);
}

void WriteBankFrame(const BankShape& shape, std::span<std::byte> bank) {
  std::byte* base = bank.data();
  std::memset(base, 0, kBankHeaderBytes);
  Store(base, kBankMagic);
  Store(base + field::kVersion, kBankVersion);
  Store(base + field::kHeaderBytes, static_cast<uint16_t>(kBankHeaderBytes));
  Store(base + field::kBytes, uint64_t{bank.size()});
  Store(base + field::kPlanes, static_cast<uint8_t>(BankPlanes(shape)));
  Store(base + field::kPatterns, static_cast<uint16_t>(shape.patterns));
  Store(base + field::kLayers, static_cast<uint16_t>(shape.layers));
  Store(base + field::kHeads, static_cast<uint16_t>(shape.heads));
  Store(base + field::kKDim, shape.k_dim);
  Store(base + field::kVDim, shape.v_dim);
  for (uint32_t plane = 0; plane < BankPlanes(shape); ++plane) {
    const uint64_t bytes = ValueBytes(shape, plane);
    std::memset(base + PatternsAt(shape, plane, 0) + bytes, 0, AlignSection(bytes) - bytes);
  }
}

}  // namespace cairn::codecs
