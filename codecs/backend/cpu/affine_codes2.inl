// SPDX-License-Identifier: Apache-2.0
// Two-bit codes of 16-bit elements without arithmetic on the elements. The position never decreases
// as the element grows. So a group has three limits, the largest elements of codes 0, 1 and 2, and
// the code of an element is the number of limits below it. Elements are compared in the order of
// Simd::Ordered().

namespace cairn::codecs {
namespace {

uint16_t OrderedOne(uint16_t bits) {
  return static_cast<uint16_t>((bits & 0x8000) != 0 ? bits ^ 0x7FFF : bits);
}

// The codes after 0, 1 and 2 start at these positions of 255: see affine_encode.inl.
Mask IsPast(uint32_t code, Float position) {
  if (code == 0) return Simd::Greater(position, Simd::Set(42.5F));
  if (code == 1) return Simd::NotLess(position, Simd::Set(127.5F));
  return Simd::Greater(position, Simd::Set(212.5F));
}

// The limits of 2 * kLanes groups, in the order of the groups.
template <typename Type>
struct Limits {
  const Float* mins;  // two registers of each
  const Float* inverse_steps;
  alignas(64) uint8_t last[3][4 * kLanes];

  Limits(const Float* mins, const Float* inverse_steps)
      : mins(mins), inverse_steps(inverse_steps) {}

  // Returns false if a group has no limits, for example a group without a range.
  bool Find() {
    constexpr float kPositions[3] = {42.5F, 127.5F, 212.5F};
    for (uint32_t code = 0; code < 3; ++code) {
      Float near[2];
      for (uint32_t v = 0; v < 2; ++v) {
        near[v] = Simd::Add(mins[v], Simd::Div(Simd::Set(kPositions[code]), inverse_steps[v]));
      }
      // The limit is the element nearest to the position or the one after it. The exception is an
      // element so near zero that elements are denser there than the floats min + position.
      Simd::Halves at = StepBack(code, Simd::Ordered(Type::Pack(near[0], near[1])), 1);
      if (!IsLast(code, at)) {
        at = Search(code);
        if (!IsLast(code, at)) return false;
      }
      Simd::StoreHalves<false>(last[code], at);
    }
    return true;
  }

 private:
  // Larger than every value of a group, and not a NaN, which exceeds nothing: 2^113 in bf16, 32768
  // in fp16.
  static constexpr int16_t kLargest = 0x7800;

  struct Masks {
    Mask of[2];
  };

  [[nodiscard]] Masks ArePast(uint32_t code, Simd::Halves ordered) const {
    alignas(64) uint8_t elements[4 * kLanes];
    const Simd::Halves largest = Simd::AddToHalves(Simd::Zero(), kLargest);
    Simd::StoreHalves<false>(elements, Simd::Ordered(Simd::MinHalves(ordered, largest)));
    Masks past;
    for (uint32_t v = 0; v < 2; ++v) {
      const Float value = Type::Load(elements + uint64_t{2} * v * kLanes);
      past.of[v] = IsPast(code, Simd::Mul(Simd::Sub(value, mins[v]), inverse_steps[v]));
    }
    return past;
  }
  // Moves an element back by `step` if it exceeds the limit.
  [[nodiscard]] Simd::Halves StepBack(uint32_t code, Simd::Halves at, int16_t step) const {
    const Masks past = ArePast(code, at);
    return Simd::SubtractWhere(past.of[0], past.of[1], at, step);
  }
  [[nodiscard]] bool IsLast(uint32_t code, Simd::Halves at) const {
    constexpr uint32_t kAll = (uint32_t{1} << kLanes) - 1;
    const Masks past = ArePast(code, at);
    const Masks next = ArePast(code, Simd::AddToHalves(at, 1));
    return (Simd::Bits(past.of[0]) | Simd::Bits(past.of[1])) == 0 &&
           (Simd::Bits(next.of[0]) & Simd::Bits(next.of[1])) == kAll;
  }
  [[nodiscard]] Simd::Halves Search(uint32_t code) const {
    Simd::Halves at = StepBack(code, Simd::Zero(), 0x7FFF);
    for (int16_t step = 0x4000; step > 0; step = static_cast<int16_t>(step / 2)) {
      at = StepBack(code, Simd::AddToHalves(at, step), step);
    }
    return at;
  }
};

// Computes the codes of kCount registers of elements. `limits`: three for each register, or three
// for all.
template <uint32_t kCount, bool kShared>
[[gnu::always_inline]] inline void StoreCodesByLimits(uint8_t* codes, const uint8_t* source,
                                                      const Simd::Halves* limits) {
  Simd::Halves of[kCount];
  for (uint32_t i = 0; i < kCount; ++i) {
    const Simd::Halves value = Simd::Ordered(Simd::LoadHalves(source + uint64_t{4} * i * kLanes));
    of[i] = Simd::CountBelow(value, limits + (kShared ? 0 : 3 * i));
  }
  Simd::StoreCodeHalves2<kCount>(codes, of);
}

}  // namespace
}  // namespace cairn::codecs
