// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/self_test_samples.h"

#include <cstring>
#include <utility>

#include "codecs/numbers/math.h"
#include "codecs/pack/strip.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs::self_test {
namespace {

class Numbers {
 public:
  uint32_t Next() {
    state_ = state_ * 1664525U + 1013904223U;
    return state_ >> 8;
  }
  // Returns a value from a bell curve of about +-4.
  float Bell() {
    int32_t sum = -(4 << 15);
    for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(Next() >> 8);
    return static_cast<float>(sum) / 16384.0F;
  }
  void Fill(uint8_t* target, size_t count) {
    for (size_t i = 0; i < count; ++i) target[i] = static_cast<uint8_t>(Next());
  }

 private:
  uint32_t state_ = 12345;
};

void StoreElement(DType dtype, float value, uint8_t* target) {
  const uint32_t bits = dtype == DType::kBf16   ? FloatToBf16(value)
                        : dtype == DType::kFp16 ? FloatToFp16(value, Fp16Rounding::kNearestEven)
                                                : FloatBits(value);
  std::memcpy(target, &bits, BytesOf(dtype));
}

// A profile of one head of kDim channels of K and V, with RoPE, as
// docs/internals/formats/profile.md draws it.
class ProfileWriter {
 public:
  explicit ProfileWriter(Numbers* numbers) {
    Header();
    for (uint32_t i = 0; i < kPairs; ++i) Put(uint64_t{numbers->Next()} << (30 - i % 16));
    Align();
    Put<uint16_t>(23);
    Put<int16_t>(0);
    Align();
    for (uint32_t plane = 0; plane < 2; ++plane) Tables();
    for (uint32_t plane = 0; plane < 2; ++plane) {
      for (uint32_t i = 0; i < kDim; ++i) {
        Put(numbers->Bell());
        const auto step = static_cast<int16_t>(static_cast<int32_t>(numbers->Next() % 400) - 300);
        Put(step);
        Put(static_cast<int16_t>(step - 500 + static_cast<int32_t>(numbers->Next() % 1500)));
      }
      Align();
    }
    Store(bytes_.data() + 8, uint64_t{bytes_.size()});
  }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  static constexpr uint32_t kPairs = 20;

  template <typename Value>
  void Put(Value value) {
    bytes_.resize(bytes_.size() + sizeof(value));
    Store(bytes_.data() + bytes_.size() - sizeof(value), value);
  }
  void Align() { bytes_.resize(AlignSection(bytes_.size())); }
  void Header() {
    Put(kProfileMagic);
    Put(kProfileVersion);
    Put(static_cast<uint16_t>(kProfileHeaderBytes));
    Put(uint64_t{0});
    Put(uint8_t{2});
    Put(RopeKind::kHalf);
    Put(uint16_t{0});
    Put(uint16_t{1});
    Put(uint16_t{1});
    Put(kDim);
    Put(kDim);
    Put(uint16_t{0});
    Put(static_cast<uint16_t>(2 * kPairs));
    Put(uint16_t{1});
    bytes_.resize(kProfileHeaderBytes);
  }
  void Tables() {
    for (uint32_t table = 0; table < kProfileTables; ++table) {
      for (uint32_t symbol = 0; symbol < kCoderSymbols; ++symbol) Put(uint8_t{16});
    }
    Align();
    for (uint32_t i = 0; i < 2 * kProfileTables; ++i)
      Put(static_cast<int8_t>(-static_cast<int8_t>(i)));
    Align();
  }

  std::vector<std::byte> bytes_;
};

void Fill(DType dtype, Numbers* numbers, Buffer* target) {
  const uint32_t bytes = BytesOf(dtype);
  target->resize(kElements * bytes);
  for (uint64_t i = 0; i < kElements; ++i) {
    const uint64_t channel = i % kDim;
    float value = numbers->Bell() + static_cast<float>(channel % 5);
    if (channel == 7) value = value * 0x1p-20F;
    if (i % 2477 == 5) value = 70000.0F;  // a token that is kept
    StoreElement(dtype, value, target->data() + i * bytes);
  }
}

}  // namespace

Samples::Samples() {
  Numbers numbers;
  for (size_t d = 0; d < kDTypes.size(); ++d) {
    Fill(kDTypes[d], &numbers, &elements[d]);
    Fill(kDTypes[d], &numbers, &others[d]);
  }
  any_bits.resize(4 * kElements);
  numbers.Fill(any_bits.data(), any_bits.size());
  patterns.resize(2 * kPatterns * kDim);
  for (uint32_t i = 0; i < kPatterns * kDim; ++i) {
    StoreElement(DType::kFp16, numbers.Bell(), patterns.data() + 2 * i);
  }
  profile_bytes = std::move(ProfileWriter(&numbers).bytes());
  // A profile with other planes than stated would cause reads out of bounds in the tests.
  if (ParseProfile(profile_bytes, &profile) != Error::kOk) __builtin_trap();
}

}  // namespace cairn::codecs::self_test
