// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prepares codes for the matrix products of attention: defines their layout in shared memory, and
// copies tokens there. attend_affine.h and attend_fp8.h use it.

#include <cstdint>

#include "kernels/body/affine_decode.h"
#include "kernels/body/attend_sums.h"
#include "kernels/body/attend_tasks.h"

namespace cairn::kernels {

inline constexpr float kDenormalUnit = 5.9604644775390625e-8F;  // 2^-24
inline constexpr float kDenormalUnitInverse = 16777216.0F;

// Describes how codes of kBits bits are arranged in the 16-bit halves of words.
template <uint32_t kBits>
struct Pairing {
  static constexpr uint32_t kOfHalf = 16 / kBits;     // codes in a half of a word
  static constexpr uint32_t kUnshifted = 10 / kBits;  // codes below an fp16 number's exponent
  static constexpr uint32_t kMask = ((1U << kBits) - 1) * 0x00010001U;
};

// Code i of a half is not shifted to the lowest bits. Returns the exponent of the factor by which
// it is therefore too large.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t ExcessOf(uint32_t i) {
  return i % Pairing<kBits>::kUnshifted * kBits;
}

// Returns code i of each half of a word, as two denormal fp16 numbers.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t CodePair(uint32_t word, uint32_t i) {
  using P = Pairing<kBits>;
  return word >> (i / P::kUnshifted * P::kUnshifted * kBits) & P::kMask << ExcessOf<kBits>(i);
}

// Returns 2^-excess / levels as fp16, in both halves.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t StepFactors(uint32_t excess) {
  constexpr uint32_t kInverse = kBits == 2 ? 0x3555 : kBits == 4 ? 0x2C44 : 0x1C04;
  return (kInverse - (excess << 10)) * 0x00010001U;
}

// A step: the data of 32 tokens, in shared memory. Its pieces of 16 bytes are placed so that lanes
// that read at the same time use different banks.
template <uint32_t kOfBits>
struct AffineStep {
  static constexpr uint32_t kBits = kOfBits, kDim = kAttendDim, kRowBytes = kDim * kBits / 8;
  static constexpr uint32_t kSteps = kBits == 8 ? 3 : 4;  // copied at a time
  alignas(16) uint8_t k_codes[kStepTokens * kRowBytes];
  alignas(16) uint8_t v_codes[kStepTokens * kRowBytes];
  U32x2 v_params[kStepTokens];  // params of both groups of V
  U32x4 k_params[kAttendDim / 4];
  uint32_t tokens;    // number of tokens
  uint32_t status;    // index of their status word
  uint32_t is_first;  // whether it is the first step of its part, with new k_params
};

template <typename Step>
struct StepsShared {
  U32x4 queries[2][Step::kDim / 32][kWarpLanes];  // rows g and g + 8; a lane has a quarter
  float factors[kAttendRows];                     // they convert a row's sums to scores
  uint32_t part_end;                              // end of the work item's parts
  float largest[kAttendWarps][kAttendRows];
  float sums[kAttendWarps][kAttendRows];
  union {
    Step steps[kAttendWarps][Step::kSteps];
    float outputs[kAttendWarps][kAttendRows][Step::kDim];
  };
};
template <uint32_t kBits>
using AffineAttendShared = StepsShared<AffineStep<kBits>>;

// ---- Copying steps ----

// Returns the place of a piece of 16 bytes among a token's codes of K.
template <uint32_t kRowBytes>
CAIRN_DEVICE uint32_t KPieceAt(uint32_t token, uint32_t piece) {
  if (kRowBytes == 128) piece ^= token & 1;
  return token * kRowBytes + 16 * piece;
}
// Of each 8 tokens of V, the even ones are stored before the odd ones. So the two tokens that p
// selects are adjacent.
CAIRN_DEVICE uint32_t VSlotOf(uint32_t token) {
  return (token & ~7U) | (token & 7) >> 1 | (token & 1) << 2;
}
// Returns the bits to invert in an offset within a row, so that banks differ.
template <uint32_t kRowBytes>
CAIRN_DEVICE uint32_t VSwizzle(uint32_t slot) {
  return kRowBytes == 128 ? (slot & 3) * 32 : kRowBytes == 64 ? (slot >> 1 & 1) * 32 : 0;
}

// Starts to copy the codes of up to 32 tokens of a part; `token` is the first of them.
template <typename Step>
CAIRN_DEVICE void AskForCodes(const AffinePart& part, uint32_t token, uint32_t tokens, Step* step) {
  constexpr uint32_t kRowBytes = Step::kRowBytes, kPieces = kRowBytes / 16;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  // The addresses of the first pieces that this lane copies.
  const uint32_t row = lane / kPieces, piece = lane % kPieces, slot = VSlotOf(row);
  const uint32_t k_at = KPieceAt<kRowBytes>(row, piece);
  const uint32_t v_at = slot * kRowBytes + (16 * piece ^ VSwizzle<kRowBytes>(slot));
  const uint8_t* k = part.image + (part.k_codes + token * kRowBytes + 16 * lane);
  const uint8_t* v = part.image + (part.v_codes + token * kRowBytes + 16 * lane);
  const auto ask = [&](uint32_t rows) {
    CAIRN_UNROLL
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t before = i * (kWarpLanes / kPieces);  // the number of rows before
      // Eight rows further, the swizzle is the same. Four rows further means two slots further,
      // with the swizzle of that slot.
      const uint32_t v_to =
          before / 8 * 8 * kRowBytes +
          (before % 8 == 0 ? v_at : v_at ^ (2 * kRowBytes | VSwizzle<kRowBytes>(2)));
      if (before + lane / kPieces < rows) {
        CopyAsync16(step->k_codes + k_at + before * kRowBytes, k + 16 * kWarpLanes * i);
        CopyAsync16(step->v_codes + v_to, v + 16 * kWarpLanes * i);
      }
    }
  };
  // This branch lets the compiler remove the conditions if all tokens exist.
  if (tokens == kStepTokens) {
    ask(kStepTokens);
  } else {
    ask(tokens);
  }
}

// Starts to copy the data of a part other than codes. The bytes after the last token are padding,
// or another part of the tile.
template <uint32_t kBits>
CAIRN_DEVICE void AskForParams(const AffinePart& part, uint32_t token, uint32_t tokens,
                               AffineStep<kBits>* step) {
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  if (2 * lane < tokens) {  // a piece has two tokens
    CopyAsync16(step->v_params + 2 * lane, part.image + (part.v_params + 8 * token + 16 * lane));
  }
  // For each i, the pieces with the number i are adjacent, over all p.
  if (token == 0)
    CopyAsync16(step->k_params + lane % 8 * 4 + lane / 8, part.image + (part.k_params + 16 * lane));
}

// Starts the copies of the parts of a warp, 32 tokens at a time.
struct StepAsker {
  const AttendReader& reader;
  const uint32_t& end;  // end of the parts
  uint32_t index;
  uint32_t token = 0;

  CAIRN_DEVICE_MEMBER StepAsker(const AttendReader& from, uint32_t first, const uint32_t& last)
      : reader(from), end(last), index(first) {}
  [[nodiscard]] CAIRN_DEVICE_MEMBER bool IsOver() const { return index >= end; }

  // REQUIRES: !IsOver().
  template <typename Step>
  CAIRN_DEVICE_MEMBER void Ask(Step* step) {
    const auto part = reader.Part<AffinePart>(index);
    const uint32_t left = part.tokens - token;
    const uint32_t tokens = left < kStepTokens ? left : kStepTokens;
    AskForCodes(part, token, tokens, step);
    AskForParams(part, token, tokens, step);
    if (ThreadIndex() % kWarpLanes == 0) {
      step->tokens = tokens;
      step->status = part.status;
      step->is_first = token == 0 ? 1 : 0;
    }
    token += kStepTokens;
    if (token < part.tokens) return;
    token = 0;
    index += kAttendWarps;
  }
};

// Calls visit(step, fault) for the steps of a warp in order. The next steps are copied meanwhile.
template <typename Step, typename Visit>
CAIRN_DEVICE void ForEachStep(const AttendArgs& args, const AttendReader& reader,
                              const AttendWork& work, StepsShared<Step>* shared, Visit visit) {
  constexpr uint32_t kSteps = Step::kSteps;
  const uint32_t warp = WarpOfBlock();
  Step* steps = shared->steps[warp];
  StepAsker asker(reader, work.part_first + warp, shared->part_end);
  // The steps form a ring. Each round starts to copy a step, and then visits the oldest one.
  uint32_t under_way = 0, at = 0;
  CAIRN_NO_UNROLL
  for (uint32_t round = 0; under_way != 0 || !asker.IsOver(); ++round) {
    if (!asker.IsOver()) {
      asker.Ask(steps + at);
      ++under_way;
    }
    CopyCommit();
    at = at == kSteps - 1 ? 0 : at + 1;
    if (round + 1 < kSteps) continue;
    Step& step = steps[at];
    Fault fault = Fault::kNone;
    CopyWait<kSteps - 1>();
    SyncWarp();
    visit(step, &fault);
    if (fault != Fault::kNone) AtomicMax(args.status + step.status, static_cast<uint32_t>(fault));
    SyncWarp();  // no lane reads the step any more
    --under_way;
  }
  CopyWait<0>();
}

// ---- How lanes read codes and queries ----

// The codes of one of 8 tokens of K, in the channels that p selects.
template <typename Step>
struct KeyWords {
  static constexpr uint32_t kRowBytes = Step::kRowBytes;
  uint32_t of[kRowBytes / 16];

  CAIRN_DEVICE_MEMBER KeyWords(const Step& step, uint32_t first) {
    const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
    if constexpr (kRowBytes == 32) {
      const auto two =
          *reinterpret_cast<const U32x2*>(step.k_codes + (first + g) * kRowBytes + 8 * p);
      of[0] = two.x;
      of[1] = two.y;
    } else {
      CAIRN_UNROLL
      for (uint32_t i = 0; i < kRowBytes / 64; ++i) {
        const auto& four = *reinterpret_cast<const U32x4*>(
            step.k_codes + KPieceAt<kRowBytes>(first + g, kRowBytes / 64 * p + i));
        of[4 * i] = four.x;
        of[4 * i + 1] = four.y;
        of[4 * i + 2] = four.z;
        of[4 * i + 3] = four.w;
      }
    }
  }
};

// The codes of two tokens of V, in the 8 channels of a group that g selects. One token is in the
// low halves of the words, the other in the high halves.
template <uint32_t kBits>
struct ValuePairs {
  uint32_t of[kBits / 2];

  template <typename Step>
  CAIRN_DEVICE_MEMBER ValuePairs(const Step& step, uint32_t first, uint32_t group) {
    constexpr uint32_t kRowBytes = Step::kRowBytes;
    const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
    const uint32_t at = (group * (kRowBytes / 2) + kBits * g) ^ VSwizzle<kRowBytes>(p);
    const uint8_t* even = step.v_codes + (first + p) * kRowBytes + at;
    const uint8_t* odd = even + 4 * kRowBytes;
    if constexpr (kBits == 2) {
      of[0] = PermuteBytes(*reinterpret_cast<const uint16_t*>(even),
                           *reinterpret_cast<const uint16_t*>(odd), 0x5410);
    } else {
      using Words = CodeWords<kBits>;
      const Words a(even), b(odd);
      CAIRN_UNROLL
      for (uint32_t i = 0; i < kBits / 4; ++i) {
        of[2 * i] = PermuteBytes(a.of[i], b.of[i], 0x5410);
        of[2 * i + 1] = PermuteBytes(a.of[i], b.of[i], 0x7632);
      }
    }
  }
};

// Stores rows of queries in the layout in which lanes read them. Each row is scaled by a power of
// two, so that its largest element is between 1 and 2. Then no product with a step overflows. A
// warp stores 4 rows.
//   unit  another factor by which the sums are to be multiplied
template <typename Step>
CAIRN_DEVICE void LayOutQueries(const AttendReader& reader, const AttendWork& work, float unit,
                                StepsShared<Step>* shared) {
  using P = Pairing<Step::kBits>;
  constexpr uint32_t kOfPart = Step::kDim / 8, kPairs = kOfPart / 2;
  const AttendQueries queries = reader.Queries(work.queries);
  const uint32_t row = ThreadIndex() / 8, part = ThreadIndex() % 8;  // a part has kOfPart channels
  if (ThreadIndex() == 0) shared->part_end = work.part_first + work.part_count;
  const bool is_there = row < RowCount(queries, work);
  const uint32_t query = QueryOf(queries, work, is_there ? row : 0);
  uint32_t largest = 0;
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < kOfPart; ++i) {
    const float value = LoadQuery(queries, query, kOfPart * part + i);
    const uint32_t bits = codecs::FloatBits(value) & 0x7FFFFFFF;
    largest = bits > largest ? bits : largest;
  }
  CAIRN_UNROLL
  for (uint32_t lanes = 1; lanes < 8; lanes *= 2) {
    const uint32_t other = ShuffleXor(largest, lanes);
    largest = other > largest ? other : largest;
  }
  uint32_t exponent = largest >> 23;
  exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  const float shrink = is_there ? codecs::BitsFloat((254 - exponent) << 23) : 0.0F;
  if (part == 0) {
    const float grow = codecs::Multiply(codecs::BitsFloat(exponent << 23), queries.scale);
    shared->factors[row] = codecs::Multiply(codecs::Multiply(grow, kLog2E), unit);
  }
  // For p = part / 2, this lane stores kPairs pairs, from pair kPairs * (part mod 2) on.
  CAIRN_NO_UNROLL
  for (uint32_t i = 0; i < kPairs; ++i) {
    const uint32_t n = kPairs * (part % 2) + i;
    const uint32_t low =
        part / 2 * (2 * kOfPart) + n / P::kOfHalf * 2 * P::kOfHalf + n % P::kOfHalf;
    const float first = codecs::Multiply(LoadQuery(queries, query, low), shrink);
    const float second = codecs::Multiply(LoadQuery(queries, query, low + P::kOfHalf), shrink);
    auto* words =
        reinterpret_cast<uint32_t*>(&shared->queries[row / 8][n / 4][row % 8 * 4 + part / 2]);
    words[n % 4] = PackFp16(first, second);
  }
}

}  // namespace cairn::kernels
