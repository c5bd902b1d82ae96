// SPDX-License-Identifier: Apache-2.0
#include "codecs/bank.h"

#include "codecs/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint64_t kTilesOfGroupMax = 65536;
constexpr uint16_t kValueMaxBits = 0x77FF;  // of 32752, as fp16

namespace field {
constexpr size_t kMagic = 0;        // u32
constexpr size_t kVersion = 4;      // u16
constexpr size_t kHeaderBytes = 6;  // u16
constexpr size_t kBytes = 8;        // u64
constexpr size_t kPlanes = 16;      // u8
constexpr size_t kReserved = 17;    // u8, 0
constexpr size_t kPatterns = 18;    // u16
constexpr size_t kLayers = 20;      // u16
constexpr size_t kHeads = 22;       // u16
constexpr size_t kKDim = 24;        // u32
constexpr size_t kVDim = 28;        // u32
constexpr size_t kTail = 32;        // 32 bytes, 0
}  // namespace field

bool IsDim(uint32_t dim) { return dim >= 1 && dim <= kBankDimMax; }

Error CheckStart(std::span<const std::byte> bytes) {
  if (bytes.size() < kBankHeaderBytes) return Error::kTruncated;
  const std::byte* base = bytes.data();
  if (Load<uint32_t>(base + field::kMagic) != kBankMagic) return Error::kBadMagic;
  if (Load<uint16_t>(base + field::kVersion) != kBankVersion) return Error::kBadVersion;
  if (Load<uint16_t>(base + field::kHeaderBytes) != kBankHeaderBytes ||
      bytes.size() > kBankBytesMax) {
    return Error::kBadHeader;
  }
  if (Load<uint64_t>(base + field::kBytes) != bytes.size()) return Error::kTruncated;
  const bool is_zero = IsZero(base + field::kReserved, 1) &&
                       IsZero(base + field::kTail, kBankHeaderBytes - field::kTail);
  return is_zero ? Error::kOk : Error::kBadPadding;
}

// Finite, and at most 32752 in magnitude.
bool HasValidValues(const std::byte* values, uint64_t count) {
  uint32_t faults = 0;
  for (uint64_t i = 0; i < count; ++i) {
    faults |= (Load<uint16_t>(values + 2 * i) & 0x7FFF) > kValueMaxBits ? 1 : 0;
  }
  return faults == 0;
}

}  // namespace

Error ParseBank(std::span<const std::byte> bytes, Bank* bank) {
  if (const Error error = CheckStart(bytes); error != Error::kOk) return error;
  const std::byte* base = bytes.data();
  Bank parsed;
  parsed.bytes_ = bytes;
  parsed.planes_ = Load<uint8_t>(base + field::kPlanes);
  parsed.patterns_ = Load<uint16_t>(base + field::kPatterns);
  parsed.layers_ = Load<uint16_t>(base + field::kLayers);
  parsed.heads_ = Load<uint16_t>(base + field::kHeads);
  parsed.dims_[0] = Load<uint32_t>(base + field::kKDim);
  parsed.dims_[1] = Load<uint32_t>(base + field::kVDim);
  const bool is_valid =
      parsed.planes_ >= 1 && parsed.planes_ <= 2 && parsed.patterns_ >= 1 &&
      parsed.patterns_ <= kBankPatternsMax && parsed.layers_ >= 1 && parsed.heads_ >= 1 &&
      uint64_t{parsed.layers_} * parsed.heads_ * parsed.planes_ <= kTilesOfGroupMax &&
      IsDim(parsed.dims_[0]) &&
      (parsed.planes_ == 2 ? IsDim(parsed.dims_[1]) : parsed.dims_[1] == 0);
  if (!is_valid) return Error::kBadHeader;
  // At most 2^16 heads of 2^19 bytes a plane: nothing here can overflow.
  const uint64_t count = uint64_t{parsed.layers_} * parsed.heads_ * parsed.patterns_;
  uint64_t at = kBankHeaderBytes;
  for (uint32_t plane = 0; plane < parsed.planes_; ++plane) {
    const uint64_t values = count * parsed.dims_[plane];
    const uint64_t aligned = AlignSection(values * sizeof(uint16_t));
    if (bytes.size() - at < aligned) return Error::kBadBank;
    if (!HasValidValues(base + at, values)) return Error::kBadBank;
    if (!IsZero(base + at + values * sizeof(uint16_t), aligned - values * sizeof(uint16_t))) {
      return Error::kBadPadding;
    }
    parsed.offsets_[plane] = at;
    at += aligned;
  }
  if (at != bytes.size()) return Error::kBadBank;
  *bank = parsed;
  return Error::kOk;
}

const uint8_t* Bank::PatternsOf(uint32_t plane, ProfileHead at) const {
  const uint64_t head = uint64_t{at.layer} * heads_ + at.head;
  return U8(bytes_.data()) + offsets_[plane] + head * patterns_ * dims_[plane] * sizeof(uint16_t);
}

bool Bank::Fits(const TileShape& shape, const Slice& slice) const {
  const bool is_kv = shape.kind == GroupKind::kKv;
  if (!is_kv && shape.kind != GroupKind::kLatent) return false;
  return planes_ == (is_kv ? 2 : 1) && shape.k_dim == dims_[0] && shape.v_dim == dims_[1] &&
         uint32_t{slice.layer_first} + slice.layer_count <= layers_ &&
         uint32_t{slice.head_first} + slice.head_count <= heads_;
}

}  // namespace cairn::codecs
