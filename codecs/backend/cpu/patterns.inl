// SPDX-License-Identifier: Apache-2.0
// choose_patterns of codecs/backend/backend.h, with the primitives of struct Blocks and struct
// Ranks.
//
// The search for the smallest range works on integers: the values of a token and of its head's
// patterns, in units of one step for the whole tile, 32 patterns at a time. The error of an integer
// is at most half a unit, of a difference one, of a range two, and of a range with saturation four.
// The error of a range in fp32 is smaller than that. So the pattern of least cost is at most kSlack
// above the smallest integer range, and only such patterns are computed again, in fp32. Channels
// are skipped if none of their values and patterns can extend the ranges of the channels before.

#include "codecs/numbers/gate.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kPatternDimMax = 1024;  // limit of a bank
constexpr uint32_t kSlack = 9;

float RangeOf(const Span& span) { return span.high - span.low; }
bool IsCodable(const Span& span) { return !IsRowValue(span.low) && !IsRowValue(span.high); }

template <DType kType>
struct PatternChoice {
  const PatternedTile& tile;
  const uint8_t* source;
  uint64_t* rows;
  uint8_t* numbers;
  uint64_t* is_predicted;

  alignas(64) int16_t table[kPatternDimMax * Ranks::kPatterns];
  alignas(64) int16_t values[2][kPatternDimMax];
  float reach[kPatternDimMax];     // of each channel, how far a value may be from a pattern
  uint16_t order[kPatternDimMax];  // indices of channels, those with the largest reach first
  uint16_t ranks[kPatternDimMax];  // of channels in it
  int32_t rest[kPatternDimMax / Ranks::kChannelsAtOnce];  // the reach, scaled, from there on
  float largest_value = 0.0F;
  float largest_of_patterns = 0.0F;
  float costs[64 * kRowWords];      // the least of each token so far
  uint16_t tokens[64 * kRowWords];  // that are no rows
  uint32_t token_count = 0;

  PatternChoice(const PatternedTile& of, const uint8_t* bytes, uint64_t* rows, uint8_t* numbers,
                uint64_t* is_predicted)
      : tile(of), source(bytes), rows(rows), numbers(numbers), is_predicted(is_predicted) {}

  [[nodiscard]] const uint8_t* RowOf(uint32_t token) const {
    return source + uint64_t{token} * tile.dim * BytesOf(kType);
  }
  [[nodiscard]] const uint8_t* PatternOf(uint32_t number) const {
    return tile.patterns + uint64_t{2} * number * tile.dim;
  }
  [[nodiscard]] Floats16 At(uint32_t token, uint32_t channel) const {
    return LoadFloats(kType, RowOf(token) + uint64_t{channel} * BytesOf(kType));
  }
  // Stores 16 values of a token as integers. Returns the index of a channel among them.
  void PutValues(uint32_t token, uint32_t channel, float rounder, int16_t* target) const {
    if constexpr (kType == DType::kBf16) {
      Ranks::PutValues(Blocks::SplitBf16(Blocks::LoadHalves(RowOf(token) + uint64_t{2} * channel)),
                       rounder, target);
    } else {
      Ranks::PutValues(At(token, channel), rounder, target);
    }
  }
  static uint32_t PlaceOf(uint32_t channel) {
    if constexpr (kType == DType::kBf16) return channel;
    return (channel & ~15U) | (channel & 7) << 1 | (channel >> 3 & 1);
  }
  // Returns a value with its pattern subtracted.
  [[nodiscard]] Floats16 LeftAt(uint32_t token, const uint8_t* pattern, uint32_t channel) const {
    return Blocks::Sub(At(token, channel), Blocks::LoadFp16(pattern + uint64_t{2} * channel));
  }

  // The span of a token's values in channels [first, end), without and with a pattern subtracted.
  enum : uint32_t { kRaw, kLeft };
  struct Spans {
    Span of[2];
  };
  [[nodiscard]] Spans SpansOf(uint32_t token, const uint8_t* pattern, uint32_t first,
                              uint32_t end) const {
    Floats16 raw_low = At(token, first);
    Floats16 raw_high = raw_low;
    Floats16 low = LeftAt(token, pattern, first);
    Floats16 high = low;
    for (uint32_t c = first + 16; c < end; c += 16) {
      const Floats16 raw = At(token, c);
      const Floats16 left = LeftAt(token, pattern, c);
      raw_low = Blocks::Min(raw_low, raw);
      raw_high = Blocks::Max(raw_high, raw);
      low = Blocks::Min(low, left);
      high = Blocks::Max(high, left);
    }
    float bounds[4];
    Blocks::Bounds(raw_low, raw_high, low, high, bounds);
    return {{{bounds[0], bounds[1]}, {bounds[2], bounds[3]}}};
  }
  [[nodiscard]] float LeftRange(uint32_t token, const uint8_t* pattern) const {
    Floats16 low = LeftAt(token, pattern, 0);
    Floats16 high = low;
    for (uint32_t c = 16; c < tile.dim; c += 16) {
      const Floats16 x = LeftAt(token, pattern, c);
      low = Blocks::Min(low, x);
      high = Blocks::Max(high, x);
    }
    return Blocks::Most(high) - Blocks::Least(low);
  }
  [[nodiscard]] float SquaredLength(uint32_t token, const uint8_t* pattern) const {
    Floats16 sums = Blocks::Set(0.0F);
    for (uint32_t c = 0; c < tile.dim; c += 16) {
      const Floats16 x = LeftAt(token, pattern, c);
      sums = Blocks::Add(sums, Blocks::Mul(x, x));
    }
    return Blocks::Fold(sums);
  }

  void ListTokens() {
    for (uint32_t t = 0; t < tile.tokens; ++t) {
      costs[t] = BitsFloat(0x7F800000);
      if (!HasRow(rows, t)) tokens[token_count++] = static_cast<uint16_t>(t);
    }
  }
  // Finds the largest magnitude of each channel of `count` rows, in their stored form.
  template <DType kOf, typename RowAt>
  void TakeLargest(uint32_t count, RowAt row_at, uint8_t* largest) const {
    const auto take = [&]<uint32_t kRegisters>(uint32_t at) {
      Halves16 most[kRegisters];
      for (Halves16& of : most) of = Blocks::SetHalves(0);
      for (uint32_t i = 0; i < count; ++i) {
        const uint8_t* row = row_at(i) + at;
        for (uint32_t k = 0; k < kRegisters; ++k) {
          const Halves16 x = Blocks::LoadHalves(row + uint64_t{32} * k);
          most[k] = kOf == DType::kFp32 ? Blocks::MaxMagnitudeOfWords(most[k], x)
                                        : Blocks::MaxMagnitude(most[k], x);
        }
      }
      for (uint32_t k = 0; k < kRegisters; ++k) {
        Blocks::StoreHalves(largest + at + uint64_t{32} * k, most[k]);
      }
    };
    const uint32_t bytes = tile.dim * BytesOf(kOf);
    uint32_t at = 0;
    for (; at + 4 * 32 <= bytes; at += 4 * 32) take.template operator()<4>(at);
    for (; at < bytes; at += 32) take.template operator()<1>(at);
  }
  // Finds the largest magnitude of the values, of the patterns, and of both together for each
  // channel.
  void FindLargest() {
    alignas(64) uint8_t elements[4 * kPatternDimMax];
    alignas(64) uint8_t taken[2 * kPatternDimMax];
    TakeLargest<kType>(
        token_count, [&](uint32_t i) { return RowOf(tokens[i]); }, elements);
    TakeLargest<DType::kFp16>(
        tile.count, [&](uint32_t i) { return PatternOf(i); }, taken);
    Floats16 values_most = Blocks::Set(0.0F);
    Floats16 patterns_most = Blocks::Set(0.0F);
    for (uint32_t c = 0; c < tile.dim; c += 16) {
      const Floats16 x = LoadFloats(kType, elements + uint64_t{c} * BytesOf(kType));
      const Floats16 p = LoadFloats(DType::kFp16, taken + uint64_t{2} * c);
      Blocks::Store(reach + c, Blocks::Add(x, p));
      values_most = Blocks::Max(values_most, x);
      patterns_most = Blocks::Max(patterns_most, p);
    }
    largest_value = Blocks::Most(values_most);
    largest_of_patterns = Blocks::Most(patterns_most);
  }

  // Channels of large reach come first, so that later channels can be skipped.
  void OrderChannels(float scale) {
    constexpr uint32_t kClasses = 66;
    constexpr float kClassReach = 512.0F;
    const auto class_of = [&](uint32_t c) {  // the farthest is 0
      return kClasses - 1 - static_cast<uint32_t>(reach[c] * scale / kClassReach);
    };
    uint32_t next[kClasses + 1] = {};
    for (uint32_t c = 0; c < tile.dim; ++c) ++next[class_of(c) + 1];
    for (uint32_t i = 1; i <= kClasses; ++i) next[i] += next[i - 1];
    float reaches[kPatternDimMax];  // in the order
    for (uint32_t c = 0; c < tile.dim; ++c) {
      const uint32_t rank = next[class_of(c)]++;
      ranks[c] = static_cast<uint16_t>(rank);
      order[rank] = static_cast<uint16_t>(PlaceOf(c));
      reaches[rank] = reach[c];
    }
    float farthest = 0.0F;
    for (uint32_t rank = tile.dim; rank-- > 0;) {
      const float of = reaches[rank] * scale;
      farthest = of > farthest ? of : farthest;
      // Rounded up, by the error of rounding and by one.
      if (rank % Ranks::kChannelsAtOnce == 0) {
        rest[rank / Ranks::kChannelsAtOnce] = static_cast<int32_t>(farthest) + 4;
      }
    }
  }

  // Returns a power of two that scales a magnitude to at most 2^14.
  static float ScaleOf(float largest) {
    const int32_t exponent = 127 + 140 - static_cast<int32_t>(FloatBits(largest) >> 23);
    return BitsFloat(static_cast<uint32_t>(exponent < 253 ? exponent : 253) << 23);
  }

  // Fills the table from pattern `first` on; missing patterns repeat the last one.
  void FillTable(uint32_t first, float scale) {
    for (uint32_t i = 0; i < Ranks::kPatterns; i += 8) {
      for (uint32_t c = 0; c < tile.dim; c += 8) {
        const uint8_t* eight[8];
        for (uint32_t k = 0; k < 8; ++k) {
          const uint32_t number = first + i + k < tile.count ? first + i + k : tile.count - 1;
          eight[k] = PatternOf(number) + uint64_t{2} * c;
        }
        Ranks::PutEight(eight, scale, ranks + c, table + i);
      }
    }
  }

  // Compares the patterns `first` + bits with the best pattern so far.
  void TakeBest(uint32_t token, uint32_t first, uint32_t bits) {
    if (tile.count <= Ranks::kPatterns && (bits & (bits - 1)) == 0) {
      numbers[token] = static_cast<uint8_t>(__builtin_ctz(bits));
      return;
    }
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t number = first + static_cast<uint32_t>(__builtin_ctz(bits));
      const float cost = LeftRange(token, PatternOf(number));
      if (!(cost < costs[token])) continue;
      costs[token] = cost;
      numbers[token] = static_cast<uint8_t>(number);
    }
  }

  void FindLeastRanges() {
    const float scale =
        ScaleOf(largest_value > largest_of_patterns ? largest_value : largest_of_patterns);
    const float rounder = 0x1.8p23F / scale;
    OrderChannels(scale);
    for (uint32_t first = 0; first < tile.count; first += Ranks::kPatterns) {
      const uint32_t count = tile.count - first;
      const uint32_t there = count < Ranks::kPatterns ? (1U << count) - 1 : ~0U;
      FillTable(first, scale);
      for (uint32_t i = 0; i < token_count; i += 2) {
        const uint32_t two[2] = {tokens[i], tokens[i + 1 < token_count ? i + 1 : i]};
        for (uint32_t k = 0; k < 2; ++k) {
          for (uint32_t c = 0; c < tile.dim; c += 16) {
            PutValues(two[k], c, rounder, values[k] + c);
          }
        }
        Shorts32 ranges[2];
        Ranks::FindRanges(table, {values[0], values[1]}, {order, rest, tile.dim}, ranges);
        for (uint32_t k = 0; k < 2 && i + k < token_count; ++k) {
          TakeBest(two[k], first, Ranks::NearLeast(ranges[k], kSlack) & there);
        }
      }
    }
  }

  void FindNearest() {
    for (uint32_t i = 0; i < token_count; ++i) {
      const uint32_t token = tokens[i];
      float least = 0.0F;
      for (uint32_t number = 0; number < tile.count; ++number) {
        const float length = SquaredLength(token, PatternOf(number));
        if (number != 0 && !(length < least)) continue;
        least = length;
        numbers[token] = static_cast<uint8_t>(number);
      }
    }
  }

  [[nodiscard]] uint32_t GroupEnd(uint32_t first) const {
    const uint32_t group = tile.group == 0 ? tile.dim : tile.group;
    return tile.dim - first < group ? tile.dim : first + group;
  }
  // Writes the span of each group of a token. Returns the number of groups.
  uint32_t PutSpans(uint32_t token, Spans* target) const {
    uint32_t count = 0;
    for (uint32_t first = 0; first < tile.dim; first = GroupEnd(first)) {
      target[count++] = SpansOf(token, PatternOf(numbers[token]), first, GroupEnd(first));
    }
    return count;
  }
  // Returns whether the token takes its pattern. Adds the token to the rows if the rest cannot be
  // coded.
  [[nodiscard]] bool Takes(uint32_t token, const Spans* spans, uint32_t count) {
    GateSums sums;
    bool is_codable = true;
    uint32_t first = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t end = GroupEnd(first);
      is_codable = is_codable && IsCodable(spans[i].of[kLeft]);
      sums = AddGroup(sums, end - first, RangeOf(spans[i].of[kRaw]), RangeOf(spans[i].of[kLeft]));
      first = end;
    }
    const bool pays = tile.group == 0 || PassesGate(sums, kGateLevel);
    if (tile.group != 0 && tile.spans != nullptr) {
      Span* target = tile.spans + uint64_t{token} * count;
      for (uint32_t i = 0; i < count; ++i) target[i] = spans[i].of[pays ? kLeft : kRaw];
    }
    if (pays && !is_codable) rows[token / 64] |= uint64_t{1} << (token % 64);
    return pays && is_codable;
  }

  void Choose() {
    ListTokens();
    uint8_t kept[64 * kRowWords];
    __builtin_memcpy(kept, numbers, tile.tokens);
    FindLargest();
    if (tile.is_nearest) {
      FindNearest();
    } else {
      FindLeastRanges();
    }
    const bool are_all_taken = tile.group == 0 && !IsRowValue(largest_value + largest_of_patterns);
    // Several tokens at once, so that the core does not wait for each sum.
    constexpr uint32_t kAtOnce = 16;
    Spans spans[kAtOnce][kPatternDimMax / 16];
    for (uint32_t first = 0; first < token_count; first += kAtOnce) {
      const uint32_t count = token_count - first < kAtOnce ? token_count - first : kAtOnce;
      uint32_t groups = 0;
      for (uint32_t i = 0; i < count && !are_all_taken; ++i) {
        groups = PutSpans(tokens[first + i], spans[i]);
      }
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t token = tokens[first + i];
        const bool takes = are_all_taken || Takes(token, spans[i], groups);
        is_predicted[token / 64] |= uint64_t{takes ? 1U : 0U} << (token % 64);
        numbers[token] = takes ? numbers[token] : kept[token];
      }
    }
  }
};

template <DType kType>
void ChoosePatternsOf(const PatternedTile& tile, const uint8_t* source, uint64_t* rows,
                      uint8_t* numbers, uint64_t* is_predicted) {
  PatternChoice<kType>(tile, source, rows, numbers, is_predicted).Choose();
}

void ChoosePatterns(const PatternedTile& tile, const uint8_t* source, uint64_t* rows,
                    uint8_t* numbers, uint64_t* is_predicted) {
  if (tile.dim % 16 != 0 || tile.group % 16 != 0 || IsFp8(tile.dtype)) {
    reference::ChoosePatterns(tile, source, rows, numbers, is_predicted);
  } else if (tile.dtype == DType::kBf16) {
    ChoosePatternsOf<DType::kBf16>(tile, source, rows, numbers, is_predicted);
  } else if (tile.dtype == DType::kFp16) {
    ChoosePatternsOf<DType::kFp16>(tile, source, rows, numbers, is_predicted);
  } else {
    ChoosePatternsOf<DType::kFp32>(tile, source, rows, numbers, is_predicted);
  }
}

}  // namespace
}  // namespace cairn::codecs
