// SPDX-License-Identifier: Apache-2.0
#pragma once
// Codes between a (min, range) on their way to products of halves: how they lie in shared memory,
// and how tokens are asked for. See attend_affine.h.

#include <cstdint>

#include "kernels/body/attend_sums.h"
#include "kernels/body/attend_tasks.h"

namespace cairn::kernels {

inline constexpr float kDenormalUnit = 5.9604644775390625e-8F;  // 2^-24
inline constexpr float kDenormalUnitInverse = 16777216.0F;

// How codes of a width lie in halves of words.
template <uint32_t kBits>
struct Pairing {
  static constexpr uint32_t kOfHalf = 16 / kBits;     // codes
  static constexpr uint32_t kUnshifted = 10 / kBits;  // of them, below a half's exponent
  static constexpr uint32_t kMask = ((1U << kBits) - 1) * 0x00010001U;
};

// What code i of each half is too large by, as a power of two.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t ExcessOf(uint32_t i) {
  return i % Pairing<kBits>::kUnshifted * kBits;
}

// Codes i of the halves of a word, as two denormals.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t CodePair(uint32_t word, uint32_t i) {
  using P = Pairing<kBits>;
  return word >> (i / P::kUnshifted * P::kUnshifted * kBits) & P::kMask << ExcessOf<kBits>(i);
}

// 2^-excess / levels as fp16, twice.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t StepFactors(uint32_t excess) {
  constexpr uint32_t kInverse = kBits == 2 ? 0x3555 : kBits == 4 ? 0x2C44 : 0x1C04;
  return (kInverse - (excess << 10)) * 0x00010001U;
}

// What of 32 tokens is in shared memory. Pieces of 16 bytes are placed so that lanes that read at
// once read different banks.
template <uint32_t kBits>
struct AffineStep {
  static constexpr uint32_t kRowBytes = kAttendDim * kBits / 8;
  alignas(16) uint8_t k_codes[kStepTokens * kRowBytes];
  alignas(16) uint8_t v_codes[kStepTokens * kRowBytes];
  Words2 v_params[kStepTokens];  // of both groups
  Words4 k_params[kAttendDim / 4];
  uint32_t tokens;    // that there are
  uint32_t status;    // whose they are
  uint32_t is_first;  // of its part: k_params are new
};

template <uint32_t kBits>
struct AffineAttendShared {
  static constexpr uint32_t kSteps = kBits == 8 ? 3 : 4;  // under way
  Words4 queries[2][4][kWarpLanes];  // of rows g and g + 8: 16 pairs of channels for each lane
  float factors[kAttendRows];        // of a row's sums to scores
  uint32_t part_end;                 // of the work
  float largest[kAttendWarps][kAttendRows];
  float sums[kAttendWarps][kAttendRows];
  union {
    AffineStep<kBits> steps[kAttendWarps][kSteps];
    float outputs[kAttendWarps][kAttendRows][kAttendDim];
  };
};

// ---- Steps on their way ----

// Where the pieces of 16 bytes of K's codes lie, of a token's row.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t KPieceAt(uint32_t token, uint32_t piece) {
  if (kBits == 8) piece ^= token & 1;
  return token * AffineStep<kBits>::kRowBytes + 16 * piece;
}
// Of V even tokens of 8 come before odd ones: those that lanes p have at once are neighbours.
CAIRN_DEVICE uint32_t VSlotOf(uint32_t token) {
  return (token & ~7U) | (token & 7) >> 1 | (token & 1) << 2;
}
// What a place among a row's bytes is to be changed by.
template <uint32_t kBits>
CAIRN_DEVICE uint32_t VSwizzle(uint32_t slot) {
  return kBits == 8 ? (slot & 3) * 32 : kBits == 4 ? (slot >> 1 & 1) * 32 : 0;
}

// Asks for the parts of a warp, 32 tokens at a time.
template <uint32_t kBits>
struct StepAsker {
  static constexpr uint32_t kRowBytes = AffineStep<kBits>::kRowBytes, kPieces = kRowBytes / 16;
  const AttendReader& reader;
  const uint32_t& end;  // of parts
  uint32_t index;
  uint32_t token = 0;

  CAIRN_DEVICE_MEMBER StepAsker(const AttendReader& from, uint32_t first, const uint32_t& last)
      : reader(from), end(last), index(first) {}
  [[nodiscard]] CAIRN_DEVICE_MEMBER bool IsOver() const { return index >= end; }

  // REQUIRES: !IsOver().
  CAIRN_DEVICE_MEMBER void Ask(AffineStep<kBits>* step) {
    const uint32_t lane = ThreadIndex() % kWarpLanes;
    // Where the lane's first pieces go.
    const uint32_t row = lane / kPieces, piece = lane % kPieces, slot = VSlotOf(row);
    const uint32_t k_at = KPieceAt<kBits>(row, piece);
    const uint32_t v_at = slot * kRowBytes + (16 * piece ^ VSwizzle<kBits>(slot));
    const auto part = reader.Part<AffinePart>(index);
    const uint32_t left = part.tokens - token;
    const uint32_t tokens = left < kStepTokens ? left : kStepTokens;
    const uint8_t* k = part.image + (part.k_codes + token * kRowBytes + 16 * lane);
    const uint8_t* v = part.image + (part.v_codes + token * kRowBytes + 16 * lane);
    const auto ask_for_codes = [&](uint32_t rows) {
      CAIRN_UNROLL
      for (uint32_t i = 0; i < kPieces; ++i) {
        const uint32_t before = i * (kWarpLanes / kPieces);  // rows
        // Eight rows on all is as it was; four rows on a slot is two on, and so is its swizzle.
        const uint32_t v_to =
            before / 8 * 8 * kRowBytes +
            (before % 8 == 0 ? v_at : v_at ^ (2 * kRowBytes | VSwizzle<kBits>(2)));
        if (before + lane / kPieces < rows) {
          CopyAsync16(step->k_codes + k_at + before * kRowBytes, k + 16 * kWarpLanes * i);
          CopyAsync16(step->v_codes + v_to, v + 16 * kWarpLanes * i);
        }
      }
    };
    // Of all of them the compiler leaves out what asks.
    if (tokens == kStepTokens) {
      ask_for_codes(kStepTokens);
    } else {
      ask_for_codes(tokens);
    }
    // Two tokens a piece; behind the last there is padding, or another part of the tile.
    if (2 * lane < tokens) {
      CopyAsync16(step->v_params + 2 * lane, part.image + (part.v_params + 8 * token + 16 * lane));
    }
    // Piece i of a lane p stands beside that of the others.
    if (token == 0)
      CopyAsync16(step->k_params + lane % 8 * 4 + lane / 8,
                  part.image + (part.k_params + 16 * lane));
    if (lane == 0) {
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

}  // namespace cairn::kernels
