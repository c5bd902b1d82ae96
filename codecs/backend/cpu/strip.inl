// SPDX-License-Identifier: Apache-2.0
// Shared by strip_decode.inl and strip_encode.inl, with the primitives of simd_strips.h. Each ISA
// file includes it once and compiles it with its flags. So it uses nothing of std, and nothing has
// external linkage.

#include "codecs/backend/backend.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kChunk = 32;      // elements of a register of bytes
constexpr uint32_t kPanelWide = 32;  // channels that are transposed together

// Lookups of kExponentTables.
struct ExponentLookups {
  CoderLookup of[kExponentTables];
  bool are_exact = true;
};
constexpr ExponentLookups kExponentLookups = [] {
  ExponentLookups lookups{};
  for (uint32_t i = 0; i < kExponentTables; ++i) {
    lookups.of[i] = MakeCoderLookup(kExponentCoderTables.of[i]);
    lookups.are_exact &= lookups.of[i].is_exact && lookups.of[i].is_exact_at_low;
  }
  return lookups;
}();
static_assert(kExponentLookups.are_exact);

// Exponents of a panel: [channel][token].
struct PanelExponents {
  alignas(32) uint8_t of[kPanelWide][kStripTokens];
};

Bytes32 PlaneOf(Halves32 bf16) {
  const Halves32 sign = Strips::And(Strips::Right<8>(bf16), Strips::SetHalves(0x80));
  return Strips::Narrow(Strips::Or(sign, Strips::And(bf16, Strips::SetHalves(0x7F))));
}
Bytes32 ExponentsOf(Halves32 bf16) {
  return Strips::Narrow(Strips::And(Strips::Right<7>(bf16), Strips::SetHalves(0xFF)));
}
Halves32 JoinBf16(Bytes32 exponents, Bytes32 plane) {
  const Halves32 twice = Strips::And(Strips::Pair(plane, plane), Strips::SetHalves(0x807F));
  return Strips::Or(twice, Strips::Left<7>(Strips::Widen(exponents)));
}

// Elements of a dtype, 32 at a time. Offsets are in elements. kHasPlane: they have plane bytes.
template <DType kType>
struct Elements32;

template <>
struct Elements32<DType::kBf16> {
  static constexpr uint32_t kBytes = 2;
  static constexpr DType kDType = DType::kBf16;
  static constexpr bool kHasPlane = true;
  static Bytes32 Exponents(const uint8_t* source) {
    return ExponentsOf(Strips::LoadHalves(source));
  }
  // Returns the plane bytes of 32 elements from `index` on, and stores their low bits.
  static Bytes32 Rest(const uint8_t* source, uint64_t, uint8_t*) {
    return PlaneOf(Strips::LoadHalves(source));
  }
  template <bool kStreams>
  static void Join(Bytes32 exponents, Bytes32 plane, const uint8_t*, uint64_t, uint8_t* target) {
    Strips::PutHalves<kStreams>(target, JoinBf16(exponents, plane));
  }
};

template <>
struct Elements32<DType::kFp16> {
  static constexpr uint32_t kBytes = 2;
  static constexpr DType kDType = DType::kFp16;
  static constexpr bool kHasPlane = true;
  static Bytes32 Exponents(const uint8_t* source) {
    const Halves32 x = Strips::Right<10>(Strips::LoadHalves(source));
    return Strips::Narrow(Strips::And(x, Strips::SetHalves(0x1F)));
  }
  // REQUIRES: index is a multiple of 32.
  static Bytes32 Rest(const uint8_t* source, uint64_t index, uint8_t* low) {
    const Halves32 x = Strips::LoadHalves(source);
    const Bytes32 bits = Strips::Narrow(Strips::And(x, Strips::SetHalves(7)));
    StoreRunCodes(bits, index, low);
    const Halves32 sign = Strips::And(Strips::Right<8>(x), Strips::SetHalves(0x80));
    const Halves32 mantissa = Strips::And(Strips::Right<3>(x), Strips::SetHalves(0x7F));
    return Strips::Narrow(Strips::Or(sign, mantissa));
  }
  template <bool kStreams>
  static void Join(Bytes32 exponents, Bytes32 plane, const uint8_t* low, uint64_t index,
                   uint8_t* target) {
    const Halves32 twice = Strips::Pair(plane, plane);
    const Halves32 sign = Strips::And(twice, Strips::SetHalves(0x8000));
    const Halves32 mantissa = Strips::Left<3>(Strips::And(twice, Strips::SetHalves(0x7F)));
    const Halves32 exponent =
        Strips::And(Strips::Left<10>(Strips::Widen(exponents)), Strips::SetHalves(0x7C00));
    const Halves32 bits = Strips::Widen(LoadRunCodes(low, index));
    Strips::PutHalves<kStreams>(target,
                                Strips::Or(Strips::Or(sign, exponent), Strips::Or(mantissa, bits)));
  }

  // Returns the 32 codes from `index` on, as bytes.
  static Bytes32 LoadRunCodes(const uint8_t* runs, uint64_t index) {
    const uint8_t* at = runs + index / kRun * kRunBytes + index % kRun / 8;
    uint32_t words[3];
    for (uint32_t w = 0; w < 3; ++w) __builtin_memcpy(words + w, at + uint64_t{8} * w, 4);
    // A set mask is -1, so subtracting it adds 1.
    Bytes32 less = Strips::Spread(words[2]);
    less = Strips::Add(Strips::Add(less, less), Strips::Spread(words[1]));
    less = Strips::Add(Strips::Add(less, less), Strips::Spread(words[0]));
    return Strips::Sub(Strips::Set(0), less);
  }
  static void StoreRunCodes(Bytes32 codes, uint64_t index, uint8_t* runs) {
    uint8_t* at = runs + index / kRun * kRunBytes + index % kRun / 8;
    const uint32_t words[3] = {Strips::BitsOf<0>(codes), Strips::BitsOf<1>(codes),
                               Strips::BitsOf<2>(codes)};
    for (uint32_t w = 0; w < 3; ++w) __builtin_memcpy(at + uint64_t{8} * w, words + w, 4);
  }
};

template <>
struct Elements32<DType::kFp32> {
  static constexpr uint32_t kBytes = 4;
  static constexpr DType kDType = DType::kFp32;
  static constexpr bool kHasPlane = true;
  static Bytes32 Exponents(const uint8_t* source) {
    Halves32 high;
    Halves32 low;
    Strips::LoadWords(source, &high, &low);
    return ExponentsOf(high);
  }
  static Bytes32 Rest(const uint8_t* source, uint64_t index, uint8_t* lows) {
    Halves32 high;
    Halves32 low;
    Strips::LoadWords(source, &high, &low);
    Strips::PutHalves<false>(lows + 2 * index, low);
    return PlaneOf(high);
  }
  template <bool kStreams>
  static void Join(Bytes32 exponents, Bytes32 plane, const uint8_t* lows, uint64_t index,
                   uint8_t* target) {
    Strips::PutWords<kStreams>(target, JoinBf16(exponents, plane),
                               Strips::LoadHalves(lows + 2 * index));
  }
};

// 8-bit floats. REQUIRES of Rest() and Join(): index is a multiple of 32.
template <>
struct Elements32<DType::kFp8E4m3> {
  static constexpr uint32_t kBytes = 1;
  static constexpr DType kDType = DType::kFp8E4m3;
  static constexpr bool kHasPlane = false;
  static Bytes32 Exponents(const uint8_t* source) {
    return Strips::RightBytes<3, 15>(Strips::Load(source));
  }
  static Bytes32 Rest(const uint8_t* source, uint64_t index, uint8_t* low) {
    const Bytes32 x = Strips::Load(source);
    Strips::StoreNibbles(low + index / kNibbleRun * kNibbleRunBytes,
                         Strips::Or(Strips::RightBytes<4, 8>(x), Strips::And(x, Strips::Set(7))));
    return x;
  }
  template <bool kStreams>
  static void Join(Bytes32 exponents, Bytes32, const uint8_t* low, uint64_t index,
                   uint8_t* target) {
    const Bytes32 nibbles = Strips::LoadNibbles(low + index / kNibbleRun * kNibbleRunBytes);
    Strips::Put<kStreams>(target, Strips::Or(Strips::LeftBytes<3, 15>(exponents),
                                             Strips::Or(Strips::LeftBytes<4, 8>(nibbles),
                                                        Strips::And(nibbles, Strips::Set(7)))));
  }
};

template <>
struct Elements32<DType::kFp8E5m2> {
  static constexpr uint32_t kBytes = 1;
  static constexpr DType kDType = DType::kFp8E5m2;
  static constexpr bool kHasPlane = false;
  static Bytes32 Exponents(const uint8_t* source) {
    return Strips::RightBytes<2, 31>(Strips::Load(source));
  }
  static Bytes32 Rest(const uint8_t* source, uint64_t index, uint8_t* low) {
    const Bytes32 x = Strips::Load(source);
    Elements32<DType::kFp16>::StoreRunCodes(
        Strips::Or(Strips::RightBytes<5, 4>(x), Strips::And(x, Strips::Set(3))), index, low);
    return x;
  }
  template <bool kStreams>
  static void Join(Bytes32 exponents, Bytes32, const uint8_t* low, uint64_t index,
                   uint8_t* target) {
    const Bytes32 codes = Elements32<DType::kFp16>::LoadRunCodes(low, index);
    Strips::Put<kStreams>(target, Strips::Or(Strips::LeftBytes<2, 31>(exponents),
                                             Strips::Or(Strips::LeftBytes<5, 4>(codes),
                                                        Strips::And(codes, Strips::Set(3)))));
  }
};

// Calls run(Elements32<dtype>()).
template <typename Run>
auto WithElements32(DType dtype, Run run) {
  switch (dtype) {
    case DType::kFp16:
      return run(Elements32<DType::kFp16>());
    case DType::kFp32:
      return run(Elements32<DType::kFp32>());
    case DType::kFp8E4m3:
      return run(Elements32<DType::kFp8E4m3>());
    case DType::kFp8E5m2:
      return run(Elements32<DType::kFp8E5m2>());
    default:
      return run(Elements32<DType::kBf16>());
  }
}

// The maximum exponents of a strip's channels, so that those of any 32 consecutive elements are
// adjacent.
struct Tops {
  uint8_t of[kStripDimMax + kChunk];

  Tops(const StripShape& shape, uint32_t top, const uint8_t* par) {
    for (uint32_t c = 0; c < shape.dim; ++c) of[c] = static_cast<uint8_t>(TopOf(top, par[c]));
    for (uint32_t i = 0; i < kChunk; ++i) of[shape.dim + i] = of[i];
  }
};

}  // namespace
}  // namespace cairn::codecs
