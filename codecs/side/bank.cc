// SPDX-License-Identifier: Apache-2.0
#include "codecs/side/bank.h"

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint16_t kValueMaxBits = 0x77FF;  // of 32752, as fp16

namespace field {                 // in addition to the fields of every side object
constexpr size_t kReserved = 17;  // u8, 0
constexpr size_t kPatterns = 18;  // u16
constexpr size_t kTail = 32;      // 32 bytes, 0
}  // namespace field

constexpr SideObjectFormat kFormat = {kBankMagic,    kBankVersion, kBankHeaderBytes,
                                      kBankBytesMax, kBankDimMax,  field::kReserved,
                                      field::kTail};

// Returns true if all values are finite and at most 32752 in magnitude.
bool HasValidValues(const std::byte* values, uint64_t count) {
  uint32_t faults = 0;
  for (uint64_t i = 0; i < count; ++i) {
    faults |= (Load<uint16_t>(values + 2 * i) & 0x7FFF) > kValueMaxBits ? 1 : 0;
  }
  return faults == 0;
}

}  // namespace

Error ParseBank(std::span<const std::byte> bytes, Bank* bank) {
  Bank parsed;
  parsed.bytes_ = bytes;
  if (const Error error = ParseSideObjectHead(bytes, kFormat, &parsed.head_); error != Error::kOk) {
    return error;
  }
  const std::byte* base = bytes.data();
  parsed.patterns_ = Load<uint16_t>(base + field::kPatterns);
  if (parsed.patterns_ < 1 || parsed.patterns_ > kBankPatternsMax) return Error::kBadHeader;
  // At most 2^16 heads of 2^19 bytes per plane: no overflow is possible.
  const uint64_t count = uint64_t{parsed.head_.layers} * parsed.head_.heads * parsed.patterns_;
  uint64_t at = kBankHeaderBytes;
  for (uint32_t plane = 0; plane < parsed.head_.planes; ++plane) {
    const uint64_t values = count * parsed.head_.dims[plane];
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
  const uint64_t head = uint64_t{at.layer} * head_.heads + at.head;
  return U8(bytes_.data()) + offsets_[plane] +
         head * patterns_ * head_.dims[plane] * sizeof(uint16_t);
}

}  // namespace cairn::codecs
