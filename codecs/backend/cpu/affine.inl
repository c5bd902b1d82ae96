// SPDX-License-Identifier: Apache-2.0
// Shared by affine_encode.inl and affine_decode.inl. Each ISA file includes it once, after its
// primitives (struct Simd), and compiles it with its flags. So it uses nothing of std, and nothing
// has external linkage.
//
// The reference loops process shapes that do not fill registers (a dim or a group that is not a
// multiple of kLanes): every head_dim in use is a multiple of 16. They also process 8-bit floats.

#include "codecs/backend/backend.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/math.h"

namespace cairn::codecs {
namespace {

using Float = Simd::Float;
using Int = Simd::Int;
using Mask = Simd::Mask;
constexpr uint32_t kLanes = Simd::kLanes;

bool FillsRegisters(const AffineTile& tile) {
  return tile.dim % kLanes == 0 && tile.group % kLanes == 0 && !IsFp8(tile.dtype);
}

uint8_t* Bytes(float* values) { return reinterpret_cast<uint8_t*>(values); }
const uint8_t* Bytes(const float* values) { return reinterpret_cast<const uint8_t*>(values); }

float HalfAt(const uint8_t* halves, uint32_t index) {
  uint16_t bits = 0;
  __builtin_memcpy(&bits, halves + uint64_t{2} * index, 2);
  return Simd::FromFp16(bits);
}

bool HasRow(const uint64_t* rows, uint32_t token) {
  return ((rows[token / 64] >> (token % 64)) & 1) != 0;
}

template <DType kType>
struct Elements;

template <>
struct Elements<DType::kBf16> {
  static constexpr uint32_t kBytes = 2;
  static constexpr uint32_t kMagnitudeMax =
      kMagnitudeMaxBits >> 16;  // the largest that is no row's
  static Float Load(const uint8_t* source) { return Simd::LoadBf16(source); }
  static void Store(uint8_t* target, Float value) { Simd::StoreBf16(target, value); }
  template <bool kStreams>
  static void StoreTwo(uint8_t* target, Float a, Float b) {
    Simd::StoreHalves<kStreams>(target, Pack(a, b));
  }
  static Simd::Halves Pack(Float a, Float b) { return Simd::PackBf16(a, b); }
  static float ToFloat(uint16_t bits) { return Bf16ToFloat(bits); }
};
template <>
struct Elements<DType::kFp16> {
  static constexpr uint32_t kBytes = 2;
  static constexpr uint32_t kMagnitudeMax = 0x77FF;  // 32752
  static Float Load(const uint8_t* source) { return Simd::LoadFp16(source); }
  static void Store(uint8_t* target, Float value) { Simd::StoreFp16(target, value); }
  template <bool kStreams>
  static void StoreTwo(uint8_t* target, Float a, Float b) {
    Simd::StoreHalves<kStreams>(target, Pack(a, b));
  }
  static Simd::Halves Pack(Float a, Float b) { return Simd::PackFp16(a, b); }
  static float ToFloat(uint16_t bits) { return Simd::FromFp16(bits); }
};
template <>
struct Elements<DType::kFp32> {
  static constexpr uint32_t kBytes = 4;
  static constexpr uint32_t kMagnitudeMax = kMagnitudeMaxBits;
  static Float Load(const uint8_t* source) { return Simd::LoadFp32(source); }
  static void Store(uint8_t* target, Float value) { Simd::StoreFp32(target, value); }
  template <bool kStreams>
  static void StoreTwo(uint8_t* target, Float a, Float b) {
    Simd::StoreHalves<kStreams>(target, Simd::BitsOf(a));
    Simd::StoreHalves<kStreams>(target + 4 * kLanes, Simd::BitsOf(b));
  }
};

// Calls `run` with the type of the tile's elements.
template <typename Run>
auto WithType(DType dtype, Run run) {
  switch (dtype) {
    case DType::kFp16:
      return run(Elements<DType::kFp16>());
    case DType::kFp32:
      return run(Elements<DType::kFp32>());
    default:
      return run(Elements<DType::kBf16>());
  }
}

// Calls `run` with whether patterns are subtracted from the tile's tokens.
template <bool kIs>
struct Predicted {
  static constexpr bool kIsPredicted = kIs;
};
template <typename Run>
auto WithPrediction(const AffineTile& tile, Run run) {
  return tile.prediction != nullptr ? run(Predicted<true>()) : run(Predicted<false>());
}

// Returns the pattern that is subtracted from a token, from a channel on; null if none is.
const uint8_t* PatternAt(const AffineTile& tile, uint32_t token, uint32_t channel) {
  if (tile.prediction == nullptr) return nullptr;
  const uint8_t* pattern = tile.prediction->PatternOf(token, tile.dim);
  return pattern == nullptr ? nullptr : pattern + uint64_t{2} * channel;
}

// Loads 16 elements.
Floats16 LoadFloats(DType dtype, const uint8_t* source) {
  switch (dtype) {
    case DType::kFp16:
      return Blocks::LoadFp16(source);
    case DType::kFp32:
      return Blocks::LoadBytes(source);
    default:
      return Blocks::LoadBf16(source);
  }
}

template <uint32_t kBits>
struct Width {
  static constexpr uint32_t kCodeBits = kBits;
};

// Calls `run` with the width of the tile's codes.
template <typename Run>
auto WithWidth(uint32_t bits, Run run) {
  if (bits == 8) return run(Width<8>());
  if (bits == 4) return run(Width<4>());
  return run(Width<2>());
}

// Computes RoundToInt() of every lane, as a float and as an integer.
constexpr float kRounder = 12582912.0F;
Float RoundedFloat(Float value) {
  return Simd::Sub(Simd::Add(value, Simd::Set(kRounder)), Simd::Set(kRounder));
}
Int RoundedInt(Float value) {
  const Float moved = Simd::Add(value, Simd::Set(kRounder));
  return Simd::AddInt(Simd::BitsOf(moved), Simd::BitsOf(Simd::Set(BitsFloat(0xB4C00000))));
}
Float Clamped(Float value, float high) {
  return Simd::Min(Simd::Max(value, Simd::Set(0.0F)), Simd::Set(high));
}

// Returns the larger of `largest` and the magnitudes of a register of elements of kBytes each, as
// bits.
template <uint32_t kBytes>
Int LargerMagnitude(Int largest, const uint8_t* elements) {
  if constexpr (kBytes == 1) return Simd::MaxMagnitude8(largest, elements);
  return kBytes == 2 ? Simd::MaxMagnitude16(largest, elements)
                     : Simd::MaxMagnitude32(largest, elements);
}

// Returns whether the magnitude of an element of kBytes is above `bound`, as bits.
template <uint32_t kBytes>
bool HasAbove(const uint8_t* elements, uint64_t bytes, uint32_t bound) {
  constexpr uint32_t kRegisterBytes = 4 * kLanes;
  uint8_t few[kRegisterBytes] = {};
  if (bytes < kRegisterBytes) {
    __builtin_memcpy(few, elements, bytes);
    elements = few;
    bytes = kRegisterBytes;
  }
  Int largest = Simd::Zero();
  for (uint64_t at = 0; at < bytes; at += kRegisterBytes) {
    // If the bytes do not fill the last register, it overlaps the previous one.
    const uint64_t from = at + kRegisterBytes <= bytes ? at : bytes - kRegisterBytes;
    largest = LargerMagnitude<kBytes>(largest, elements + from);
  }
  if constexpr (kBytes == 1) return Simd::AnyAbove8(largest, bound);
  return kBytes == 2 ? Simd::AnyAbove16(largest, bound) : Simd::AnyAbove32(largest, bound);
}

}  // namespace
}  // namespace cairn::codecs
