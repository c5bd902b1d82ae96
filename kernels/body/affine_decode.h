// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decodes the codes of kivi, ott, logquant, arkv and of V in mixkvq, and rows. In kernels, a row is
// a token that is stored as source elements. The codes of a group of elements lie between the (min,
// range) of the group. Every value is code * step + min in fp32, rounded to the dtype.
//
// In the fast kernel, a thread decodes 8 channels of every few tokens. It reads codes through
// shared memory, and stores values in units of 16 bytes. The plan gives it only tasks for which
// this works: dim is a multiple of 8 and at most 2048; the places of tokens are multiples of 16;
// the codes of the task fit into shared memory; all tokens of K in the task belong to the same
// groups, and each 8 channels of V belong to one group. The slow kernel does all other tasks, with
// one element per thread.

#include <cstdint>

#include "codecs/numbers/affine.h"
#include "codecs/numbers/math.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/eight_bits.h"
#include "kernels/body/tasks.h"

namespace cairn::kernels {

struct AffineShared {
  alignas(16) uint8_t codes[kAffineCodesMax];
  TokenPlaces places;
};

// Returns range / (2^bits - 1) for an fp16 range, rounded to nearest. Equals codecs::Step(), but
// uses a product.
template <uint32_t kBits>
CAIRN_DEVICE float StepOf(float range) {
  constexpr float kLevels = static_cast<float>((1U << kBits) - 1);
  constexpr float kInverse = 1.0F / kLevels;
  const float near = codecs::Multiply(range, kInverse);
  return FusedMultiplyAdd(FusedMultiplyAdd(-kLevels, near, range), kInverse, near);
}

struct StepAndMin {
  float step, min;
};

// A min must be finite and not -0. A range must be finite and not negative.
CAIRN_DEVICE Fault CheckParams(uint32_t pair) {
  const bool is_infinite = (((pair & 0x7C007C00U) + 0x04000400U) & 0x80008000U) != 0;
  const bool is_negative = pair >> 31 != 0;
  const bool is_zero_wrong = (pair & 0xFFFF) == 0x8000;
  return is_infinite || is_negative || is_zero_wrong ? Fault::kBadTile : Fault::kNone;
}

template <uint32_t kBits>
CAIRN_DEVICE StepAndMin ParamsOf(uint32_t pair, Fault* fault) {
  *fault = Worse(*fault, CheckParams(pair));
  return {StepOf<kBits>(HalfToFloat(pair >> 16)), HalfToFloat(pair & 0xFFFF)};
}

// The codes of 8 channels.
template <uint32_t kBits>
struct CodeWords {
  uint32_t of[kBits == 8 ? 2 : 1];

  CAIRN_DEVICE_MEMBER explicit CodeWords(const uint8_t* codes) {
    if constexpr (kBits == 8) {
      const auto* words = reinterpret_cast<const uint32_t*>(codes);
      of[0] = words[0];
      of[1] = words[1];
    } else if constexpr (kBits == 4) {
      of[0] = *reinterpret_cast<const uint32_t*>(codes);
    } else {
      of[0] = *reinterpret_cast<const uint16_t*>(codes);
    }
  }
  // Returns code i as a float. The code is put into the lowest bits of the float 2^23, from which
  // 2^23 is then subtracted. This works for codes below 2^23.
  CAIRN_DEVICE_MEMBER float At(uint32_t i) const {
    uint32_t bits = 0;
    if constexpr (kBits == 8) {
      bits = PermuteBytes(of[i / 4], 0x4B000000U, 0x7540U + i % 4);
    } else {
      bits = (of[0] >> (kBits * i) & ((1U << kBits) - 1)) | 0x4B000000U;
    }
    return codecs::Add(codecs::BitsFloat(bits), -8388608.0F);
  }
};

template <uint32_t kBits>
CAIRN_DEVICE float ValueAt(const CodeWords<kBits>& codes, uint32_t i, StepAndMin params) {
  return codecs::Add(codecs::Multiply(codes.At(i), params.step), params.min);
}

template <codecs::DType kDType>
CAIRN_DEVICE uint32_t PackPair(float low, float high) {
  return kDType == codecs::DType::kBf16 ? PackBf16(low, high) : PackFp16(low, high);
}

// Starts to copy the codes of the task to shared memory. The copy is complete after CopyWait().
CAIRN_DEVICE void AskForCodes(const TileTask& task, uint32_t code_row_bytes, uint8_t* codes) {
  const uint8_t* source = task.source + static_cast<uint64_t>(task.token_first) * code_row_bytes;
  const uint32_t bytes = task.token_count * code_row_bytes;
  // The section is padded to 16 bytes.
  for (uint32_t at = 16 * ThreadIndex(); at < bytes; at += 16 * kBlockThreads) {
    CopyAsync16(codes + at, source + at);
  }
  CopyCommit();
}

template <uint32_t kBits, codecs::DType kDType, bool kIsV>
CAIRN_DEVICE void DecodeCodes(const TileTask& task, const PlaneRecord& plane,
                              const AffineShared& shared, Fault* fault) {
  const uint32_t parts = plane.dim / 8, step = kBlockThreads / parts;
  const uint32_t part = ThreadIndex() % parts, first = ThreadIndex() / parts;
  if (first >= step) return;
  const uint8_t* params = task.source + task.params_at;
  const uint32_t groups = kIsV ? (plane.dim + plane.group - 1) / plane.group : 0;
  const uint32_t own = kIsV ? 8 * part / plane.group : 0;
  StepAndMin of[8];
  if constexpr (!kIsV) {
    params += 4 * (task.token_first / plane.group * plane.dim + 8 * part);
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      of[i] = ParamsOf<kBits>(LoadGlobal<uint32_t>(params + 4 * i), fault);
    }
  }
  const bool has_rows = task.rows != 0;
  for (uint32_t at = first; at < task.token_count; at += step) {
    uint8_t* place = shared.places.of[at];
    if (place == nullptr || (has_rows && IsRowAt(shared.places, at))) continue;
    if constexpr (kIsV) {
      const uint32_t pair = (task.token_first + at) * groups + own;
      of[0] = ParamsOf<kBits>(LoadGlobal<uint32_t>(params + 4 * pair), fault);
    }
    const CodeWords<kBits> codes(shared.codes + (at * parts + part) * kBits);
    uint32_t words[4];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      words[i] = PackPair<kDType>(ValueAt(codes, 2 * i, of[kIsV ? 0 : 2 * i]),
                                  ValueAt(codes, 2 * i + 1, of[kIsV ? 0 : 2 * i + 1]));
    }
    StoreGlobal(place + 16 * part, U32x4{words[0], words[1], words[2], words[3]});
  }
}

template <uint32_t kBits, codecs::DType kDType, bool kIsV>
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 5) DecodeAffine(DecodeArgs args) {
  CAIRN_SHARED(AffineShared, shared);
  DecodeTasks(
      args, &shared.places,
      [&](TileTask& task, const PlaneRecord& plane, Fault*) {
        AskForCodes(task, plane.dim / 8 * kBits, shared.codes);
      },
      [&](const TileTask& task, const PlaneRecord& plane, Fault* fault) {
        DecodeCodes<kBits, kDType, kIsV>(task, plane, shared, fault);
      });
}

CAIRN_DEVICE void StoreValue(codecs::DType dtype, uint8_t* row, uint32_t channel, float value) {
  if (dtype == codecs::DType::kFp32) {
    StoreGlobal(row + 4 * channel, codecs::FloatBits(value));
  } else if (codecs::IsFp8(dtype)) {
    StoreGlobal(row + channel, codecs::FloatToFp8(dtype, value));
  } else {
    const uint16_t bits = dtype == codecs::DType::kBf16
                              ? codecs::FloatToBf16(value)
                              : codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven);
    StoreGlobal(row + 2 * channel, bits);
  }
}

// Returns the value of a code that has `bits` bits. `pair` is the index of its (min, range) in the
// tile.
CAIRN_DEVICE float LoadAndDequantize(const TileTask& task, uint32_t pair, uint32_t code,
                                     uint32_t bits, Fault* fault) {
  const uint32_t params = LoadGlobal<uint32_t>(task.source + task.params_at + 4 * pair);
  *fault = Worse(*fault, CheckParams(params));
  return codecs::AffineValue(static_cast<uint8_t>(code), HalfToFloat(params & 0xFFFF),
                             HalfToFloat(params >> 16), bits);
}

// Decodes a task of any shape, element by element.
//   pattern_at(at)  returns the fp16 numbers to add to token `at` of the task, or null for none
template <typename PatternAt>
CAIRN_DEVICE void DecodeElements(const TileTask& task, const PlaneRecord& plane,
                                 const TokenPlaces& places, PatternAt pattern_at, Fault* fault) {
  const uint32_t code_row_bytes = codecs::CodeRowBytes(plane.dim, plane.bits);
  for (uint32_t i = ThreadIndex(); i < task.token_count * plane.dim; i += kBlockThreads) {
    const uint32_t at = i / plane.dim, channel = i % plane.dim, token = task.token_first + at;
    if (places.of[at] == nullptr || IsRowAt(places, at)) continue;
    const uint32_t bit = channel * plane.bits;
    const uint64_t byte_at = static_cast<uint64_t>(token) * code_row_bytes + bit / 8;
    const uint32_t code =
        LoadGlobal<uint8_t>(task.source + byte_at) >> bit % 8 & ((1U << plane.bits) - 1);
    float value = LoadAndDequantize(task, PairOf(plane, token, channel), code, plane.bits, fault);
    if (const uint8_t* pattern = pattern_at(at)) {
      value = codecs::Add(value, HalfToFloat(LoadGlobal<uint16_t>(pattern + 2 * channel)));
    }
    StoreValue(plane.dtype, places.of[at], channel, value);
  }
}

using AffineDecodeShared = TokenPlaces;

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) DecodeAffineAny(DecodeArgs args) {
  DecodeTasks(args, [](const TileTask& task, const PlaneRecord& plane, const TokenPlaces& places,
                       Fault* fault) {
    const auto no_pattern = [](uint32_t) -> const uint8_t* { return nullptr; };
    DecodeElements(task, plane, places, no_pattern, fault);
  });
}

}  // namespace cairn::kernels
