// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes the most common tiles to codes, one (min, range) for each group. These tiles have bf16 or
// fp16 elements, rows of memory at multiples of 16 bytes, heads of 64 channels or of a multiple of
// 128, and no tokens kept as source elements. A block encodes one tile, 128 tokens of up to 128
// channels at a time. Its threads keep these elements in registers until they are coded. If the
// tile turns out to need rows, or a group forces it to be raw, EncodeAffineAny encodes the tile
// again.
//
// The values equal those of codecs/numbers/math.h, but need fewer operations:
//
// - Code8() needs no clamping. Since min <= value, (value - min) * (255 / range) is at most
//   255 * (1 + 2^-23), which rounds to 255. If the range is 0, the product is 0.
// - Narrow() is one product and one shift for every 8-bit code. For 4 bits, (code + 8) / 17 equals
//   (code + 8) * 241 >> 12. For 2 bits, the product is (code + 42) * 193 >> 14.
// - To find out whether a group has a value that cannot be coded, only its smallest and its largest
//   value are examined. If there is such a value, one of these two is too large, infinite or a NaN.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "kernels/body/affine_encode.h"

namespace cairn::kernels {

inline constexpr uint32_t kSlabTokens = kFastGroupTokens;
inline constexpr uint32_t kSlabChannels = 128;
inline constexpr uint32_t kPartChannels = 8;  // 16 bytes per thread

struct AffineFastShared {
  EncodeShared tile;
  // For K: extremes of a warp's tokens, two channels per word.
  alignas(16) uint32_t low[kBlockWarps][kSlabChannels / 2];
  alignas(16) uint32_t high[kBlockWarps][kSlabChannels / 2];
  alignas(16) float min_negated[kSlabChannels];
  alignas(16) float inverse[kSlabChannels];
};

template <codecs::DType kDType>
CAIRN_DEVICE uint32_t LeastHalves(uint32_t a, uint32_t b) {
  return kDType == codecs::DType::kBf16 ? LeastBf16(a, b) : LeastFp16(a, b);
}
template <codecs::DType kDType>
CAIRN_DEVICE uint32_t LargestHalves(uint32_t a, uint32_t b) {
  return kDType == codecs::DType::kBf16 ? LargestBf16(a, b) : LargestFp16(a, b);
}
template <codecs::DType kDType>
CAIRN_DEVICE float LowerHalf(uint32_t word) {
  return kDType == codecs::DType::kBf16 ? codecs::BitsFloat(word << 16) : HalfToFloat(word);
}
template <codecs::DType kDType>
CAIRN_DEVICE float UpperHalf(uint32_t word) {
  return kDType == codecs::DType::kBf16 ? codecs::BitsFloat(word & 0xFFFF0000U)
                                        : HalfToFloat(word >> 16);
}

// The factors for the codes of a group.
struct GroupCoder {
  float min_negated, inverse;
};

// Stores the params of a group whose smallest and largest values are `low` and `high`. Sets
// *is_wrong if the group needs rows or a raw tile.
CAIRN_DEVICE GroupCoder StoreGroup(float low, float high, uint8_t* pair, bool* is_wrong) {
  low = codecs::Add(low, 0.0F);  // no zero is negative
  high = codecs::Add(high, 0.0F);
  const uint32_t min = HalfBelow(low);
  const float min_value = HalfToFloat(min);
  const uint32_t range = HalfAbove(codecs::Add(high, -min_value));
  StoreGlobal(pair, min | range << 16);
  *is_wrong |=
      codecs::IsRowValue(low) || codecs::IsRowValue(high) || (low == high && min_value != low);
  return {-min_value, codecs::InverseStep(8, HalfToFloat(range))};
}

// The codes of 8 channels. The code of the first channel is in the lowest bits.
template <uint32_t kBits>
struct UnitCodes {
  static constexpr uint32_t kAdded = kBits == 8 ? 0 : kBits == 4 ? 8 : 42;
  static constexpr uint32_t kFactor = kBits == 8 ? 1U << 24 : kBits == 4 ? 241U << 16 : 193U << 16;
  uint32_t of[kBits == 8 ? 2 : 1] = {};

  // Adds the code of channel i. Add channels from the last to the first.
  CAIRN_DEVICE_MEMBER void Add(uint32_t i, float value, GroupCoder by) {
    const float position = codecs::Multiply(codecs::Add(value, by.min_negated), by.inverse);
    // The lowest byte of the sum is the 8-bit code. The highest bits of the product below are the
    // code of kBits bits.
    const uint32_t code8 = codecs::FloatBits(codecs::Add(position, 12582912.0F));
    const uint32_t code = code8 * kFactor + kAdded * kFactor;
    uint32_t& word = of[kBits == 8 ? i / 4 : 0];
    word = word << kBits | code >> (32 - kBits);
  }
  CAIRN_DEVICE_MEMBER void Store(uint8_t* to) const {
    if constexpr (kBits == 8) {
      StoreGlobal(to, U32x2{of[0], of[1]});
    } else if constexpr (kBits == 4) {
      StoreGlobal(to, of[0]);
    } else {
      StoreGlobal(to, static_cast<uint16_t>(of[0]));
    }
  }
};

// A slab: 128 tokens of kParts * 8 channels. A thread holds 8 channels of kTokens tokens.
template <uint32_t kBits, codecs::DType kDType, uint32_t kParts>
struct Slab {
  static constexpr uint32_t kTokens = kSlabTokens * kParts / kBlockThreads;

  const EncodeTile& tile;
  uint32_t part;     // the thread's part of the slab's channels
  uint32_t token;    // the thread's first token
  uint32_t channel;  // the thread's first channel
  U32x4 values[kTokens];

  CAIRN_DEVICE_MEMBER Slab(const EncodeTile& of, const EncodeShared& shared, uint32_t token_first,
                           uint32_t channel_first)
      : tile(of),
        part(ThreadIndex() % kParts),
        token(token_first + ThreadIndex() / kParts * kTokens),
        channel(channel_first + kPartChannels * part) {
    const uint32_t last = tile.plane.tokens - 1;
    CAIRN_UNROLL
    for (uint32_t k = 0; k < kTokens; ++k) {
      // A token after the last one is replaced by the last one. This does not change the extremes.
      const uint32_t there = token + k < last ? token + k : last;
      values[k] = LoadGlobal<U32x4>(shared.places[there] + 2 * channel);
    }
  }

  //   coder_of(i)  returns the GroupCoder of channel i
  template <typename CoderOf>
  CAIRN_DEVICE_MEMBER void StoreCodes(uint32_t k, CoderOf coder_of) const {
    if (token + k >= tile.plane.tokens) return;
    UnitCodes<kBits> codes;
    CAIRN_UNROLL
    for (uint32_t i = kPartChannels; i-- > 0;) {
      const uint32_t word = WordOf(values[k], i / 2);
      codes.Add(i, i % 2 == 0 ? LowerHalf<kDType>(word) : UpperHalf<kDType>(word), coder_of(i));
    }
    const uint32_t row_bytes = tile.plane.dim / kPartChannels * kBits;
    codes.Store(tile.task.slot + (token + k) * row_bytes + channel / kPartChannels * kBits);
  }
};

// Stores the extremes of a warp's tokens. The lanes that hold the first of these tokens store them.
template <codecs::DType kDType, uint32_t kParts, typename SlabOf>
CAIRN_DEVICE void ShareExtremes(const SlabOf& slab, AffineFastShared* shared) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, warp = ThreadIndex() / kWarpLanes;
  uint32_t low[4], high[4];
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    low[i] = high[i] = WordOf(slab.values[0], i);
    CAIRN_UNROLL
    for (uint32_t k = 1; k < SlabOf::kTokens; ++k) {
      low[i] = LeastHalves<kDType>(low[i], WordOf(slab.values[k], i));
      high[i] = LargestHalves<kDType>(high[i], WordOf(slab.values[k], i));
    }
    CAIRN_UNROLL
    for (uint32_t lanes = kParts; lanes < kWarpLanes; lanes *= 2) {
      low[i] = LeastHalves<kDType>(low[i], ShuffleXor(low[i], lanes));
      high[i] = LargestHalves<kDType>(high[i], ShuffleXor(high[i], lanes));
    }
  }
  if (lane >= kParts) return;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    shared->low[warp][4 * lane + i] = low[i];
    shared->high[warp][4 * lane + i] = high[i];
  }
}

// Encodes K, with a (min, range) per channel. Synchronizes the block. Returns true if the general
// kernel must encode the tile.
template <uint32_t kBits, codecs::DType kDType, uint32_t kParts>
CAIRN_DEVICE bool EncodeChannels(const EncodeTile& tile, uint32_t token_first,
                                 uint32_t channel_first, AffineFastShared* shared) {
  const Slab<kBits, kDType, kParts> slab(tile, shared->tile, token_first, channel_first);
  ShareExtremes<kDType, kParts>(slab, shared);
  SyncBlock();
  bool is_wrong = false;
  const uint32_t own = ThreadIndex();
  if (own < kParts * kPartChannels) {
    uint32_t low = shared->low[0][own / 2], high = shared->high[0][own / 2];
    CAIRN_UNROLL
    for (uint32_t warp = 1; warp < kBlockWarps; ++warp) {
      low = LeastHalves<kDType>(low, shared->low[warp][own / 2]);
      high = LargestHalves<kDType>(high, shared->high[warp][own / 2]);
    }
    const uint32_t shift = own % 2 * 16;
    const uint32_t pair = token_first / kSlabTokens * tile.plane.dim + channel_first + own;
    const GroupCoder coder =
        StoreGroup(LowerHalf<kDType>(low >> shift), LowerHalf<kDType>(high >> shift),
                   tile.task.slot + tile.params_at + 4 * pair, &is_wrong);
    shared->min_negated[own] = coder.min_negated;
    shared->inverse[own] = coder.inverse;
  }
  SyncBlock();
  GroupCoder by[kPartChannels];
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kPartChannels; ++i) {
    by[i] = {shared->min_negated[kPartChannels * slab.part + i],
             shared->inverse[kPartChannels * slab.part + i]};
  }
  CAIRN_UNROLL
  for (uint32_t k = 0; k < slab.kTokens; ++k) {
    slab.StoreCodes(k, [&](uint32_t i) { return by[i]; });
  }
  return is_wrong;
}

// Returns the smallest of a thread's 8 channels in the lower half of the word, and the negated
// largest in the upper half.
template <codecs::DType kDType>
CAIRN_DEVICE uint32_t ExtremesOfUnit(const U32x4& values) {
  const uint32_t low = LeastHalves<kDType>(LeastHalves<kDType>(values.x, values.y),
                                           LeastHalves<kDType>(values.z, values.w));
  const uint32_t high = LargestHalves<kDType>(LargestHalves<kDType>(values.x, values.y),
                                              LargestHalves<kDType>(values.z, values.w)) ^
                        0x80008000U;
  return LeastHalves<kDType>(PermuteBytes(low, high, 0x5410), PermuteBytes(low, high, 0x7632));
}

// Encodes V, with a (min, range) for each 64 channels of a token. 8 adjacent lanes hold these
// channels. In each round, each lane gives half of its tokens to another lane, until it has one
// token. It computes the params of this token. The lanes then exchange the params.
template <uint32_t kBits, codecs::DType kDType, uint32_t kParts>
CAIRN_DEVICE bool EncodeTokens(const EncodeTile& tile, uint32_t token_first, uint32_t channel_first,
                               AffineFastShared* shared) {
  using SlabOf = Slab<kBits, kDType, kParts>;
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  const SlabOf slab(tile, shared->tile, token_first, channel_first);
  uint32_t extremes[SlabOf::kTokens];
  CAIRN_UNROLL
  for (uint32_t k = 0; k < slab.kTokens; ++k) {
    extremes[k] = ExtremesOfUnit<kDType>(slab.values[k]);
  }
  uint32_t own = 0;  // the lane's token, among its thread's
  CAIRN_UNROLL
  for (uint32_t lanes = kPartChannels / 2, left = slab.kTokens; lanes != 0; lanes /= 2) {
    const bool is_upper = (lane & lanes) != 0;
    if (left == 1) {  // the lane shares its token with the other one
      extremes[0] = LeastHalves<kDType>(extremes[0], ShuffleXor(extremes[0], lanes));
      continue;
    }
    left /= 2;
    own += is_upper ? left : 0;
    CAIRN_UNROLL
    for (uint32_t k = 0; k < left; ++k) {
      const uint32_t kept = is_upper ? extremes[left + k] : extremes[k];
      const uint32_t given = is_upper ? extremes[k] : extremes[left + k];
      extremes[k] = LeastHalves<kDType>(kept, ShuffleXor(given, lanes));
    }
  }
  bool is_wrong = false;
  GroupCoder coder{};
  const uint32_t token = slab.token + own;
  constexpr uint32_t kShared = kPartChannels / SlabOf::kTokens;  // lanes that have the same token
  if (token < tile.plane.tokens && lane % kShared == 0) {
    const uint32_t pair = (token * tile.plane.dim + slab.channel) / kFastGroupChannels;
    coder = StoreGroup(LowerHalf<kDType>(extremes[0]), -UpperHalf<kDType>(extremes[0]),
                       tile.task.slot + tile.params_at + 4 * pair, &is_wrong);
  }
  CAIRN_UNROLL
  for (uint32_t k = 0; k < slab.kTokens; ++k) {
    const uint32_t from = (lane & ~(kPartChannels - 1)) + k * kShared;
    const GroupCoder by{codecs::BitsFloat(Shuffle(codecs::FloatBits(coder.min_negated), from)),
                        codecs::BitsFloat(Shuffle(codecs::FloatBits(coder.inverse), from))};
    slab.StoreCodes(k, [&](uint32_t) { return by; });
  }
  return is_wrong;
}

template <uint32_t kBits, codecs::DType kDType, uint32_t kParts>
CAIRN_DEVICE bool EncodeSlabs(const EncodeTile& tile, AffineFastShared* shared) {
  const PlaneRecord& plane = tile.plane;
  bool is_wrong = false;
  CAIRN_NO_UNROLL
  for (uint32_t token = 0; token < plane.tokens; token += kSlabTokens) {
    CAIRN_NO_UNROLL
    for (uint32_t channel = 0; channel < plane.dim; channel += kParts * kPartChannels) {
      is_wrong |= plane.is_v ? EncodeTokens<kBits, kDType, kParts>(tile, token, channel, shared)
                             : EncodeChannels<kBits, kDType, kParts>(tile, token, channel, shared);
    }
  }
  return is_wrong;
}

template <uint32_t kBits, codecs::DType kDType>
CAIRN_DEVICE bool EncodeWithoutRows(EncodeTile* tile, AffineFastShared* shared) {
  constexpr uint32_t kParts = kSlabChannels / kPartChannels;
  PlaceCodes(tile);
  tile->content_bytes = tile->row_bits_at;
  if (Align16(tile->content_bytes) >= RawBytes(tile->plane)) return false;
  const bool is_wrong = tile->plane.dim % kSlabChannels == 0
                            ? EncodeSlabs<kBits, kDType, kParts>(*tile, shared)
                            : EncodeSlabs<kBits, kDType, kParts / 2>(*tile, shared);
  tile->is_left = SyncBlockOr(is_wrong);
  if (tile->is_left) return false;
  StoreRowsOf(*tile, shared->tile);
  return true;
}

template <uint32_t kBits, codecs::DType kDType>
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) EncodeAffineFast(EncodeArgs args) {
  CAIRN_SHARED(AffineFastShared, shared);
  EncodeTiles(args, &shared.tile, [&](const EncodeReader&, EncodeTile* tile, Fault*) {
    return EncodeWithoutRows<kBits, kDType>(tile, &shared);
  });
}

}  // namespace cairn::kernels
