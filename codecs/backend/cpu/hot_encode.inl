// SPDX-License-Identifier: Apache-2.0
// encode_hot_strip of codecs/backend/backend.h, with the primitives of struct Blocks and struct
// Spreads. It centres the whole strip, then finds every channel's scale, then computes codes by
// counting bounds, and packs them.

namespace cairn::codecs {
namespace {

// The bounds between positive levels, by width.
struct HotBounds {
  float of[kHotWidthMax + 1][(1 << (kHotWidthMax - 1)) - 1];
};
constexpr HotBounds kHotBounds = [] {
  HotBounds bounds{};
  for (uint32_t width = 1; width <= kHotWidthMax; ++width) {
    const float* levels = HotLevelsOf(width);
    for (uint32_t i = 0; i + 1 < 1U << (width - 1); ++i) {
      bounds.of[width][i] = (levels[i] + levels[i + 1]) * 0.5F;
    }
  }
  return bounds;
}();

constexpr uint32_t kStripBlocks = kStripTokens / kBlockTokens;

struct HotCoding {
  const HotTile& tile;
  const StepSource& source;
  StripTokens* rows;
  BlockValues blocks[kStripBlocks];

  HotCoding(const HotTile& of, const StepSource& from, StripTokens* found)
      : tile(of), source(from), rows(found) {}

  // Sets all bits of the tokens of a block that have codes.
  [[nodiscard]] Ints16 CodedOf(uint32_t block) const {
    return Blocks::Spread(BlockBits(CodedTokens(source.tokens, block / 2, *rows), block));
  }

  // Transforms the elements of a block to components. Adds tokens that cannot be coded to the rows.
  void Centre(uint32_t block) {
    const StepTile& step = tile.step;
    BlockValues* values = &blocks[block];
    const uint32_t found = TakeComponents(step, source, block * kBlockTokens, values);
    Ints16 largest = Blocks::SetInts(0);
    for (uint32_t c = 0; c < step.dim; ++c) {
      Floats16 y = Blocks::Load(values->of[c]);
      if (!step.has_basis) y = Blocks::Sub(y, Blocks::Set(step.channels[c].mean));
      Blocks::Store(values->of[c], y);
      const Floats16 size = Blocks::Mul(y, Blocks::Set(Exp2(-tile.channels[c].spread_log)));
      largest = Blocks::MaxMagnitude(largest, size);
    }
    AddRowsOf(block, found | TooLarge(largest), source.tokens, rows);
  }

  [[nodiscard]] uint32_t CodedCount() const { return source.tokens - rows->Count(); }

  // Number of channels whose corrections are computed at once. Each sum has its order, so different
  // channels are added side by side.
  static constexpr uint32_t kAtOnce = 8;
  void FindCorrections(uint32_t first, uint32_t count, int32_t* corrections) const {
    float sums[kAtOnce] = {};
    for (uint32_t block = 0; block < BlockCount(source.tokens); ++block) {
      const Ints16 coded = CodedOf(block);
      alignas(64) float squares[kAtOnce][kBlockTokens] = {};
      for (uint32_t i = 0; i < count; ++i) {
        const Floats16 inverse = Blocks::Set(Exp2(-tile.channels[first + i].spread_log));
        const Floats16 size = Blocks::Mul(Blocks::Load(blocks[block].of[first + i]), inverse);
        const Ints16 square = Blocks::And(Blocks::BitsOf(Blocks::Mul(size, size)), coded);
        Blocks::Store(squares[i], Blocks::OfBits(square));
      }
      for (uint32_t token = 0; token < kBlockTokens; ++token) {
        for (uint32_t i = 0; i < kAtOnce; ++i) sums[i] = Add(sums[i], squares[i][token]);
      }
    }
    const uint32_t coded = CodedCount();
    for (uint32_t i = 0; i < count; ++i) {
      corrections[i] = coded == 0 ? 0 : HotCorrection(Divide(sums[i], static_cast<float>(coded)));
    }
  }

  // Computes HotCode() of a channel in a block; 0 for tokens without a code.
  [[nodiscard]] Ints16 CodesOf(uint32_t block, uint32_t c, float inverse, Ints16 coded) const {
    const uint32_t width = tile.channels[c].width;
    const uint32_t bounds = (1U << (width - 1)) - 1;
    const Floats16 z = Blocks::Mul(Blocks::Load(blocks[block].of[c]), Blocks::Set(inverse));
    const Ints16 magnitude = Blocks::And(Blocks::BitsOf(z), Blocks::SetInts(0x7FFFFFFF));
    Ints16 above = Blocks::SetInts(0);  // counts, negative
    for (uint32_t i = 0; i < bounds; ++i) {
      const Floats16 bound = Blocks::Set(kHotBounds.of[width][i]);
      above = Blocks::Add(above, Spreads::IsNotLess(Blocks::OfBits(magnitude), bound));
    }
    const auto half = static_cast<int32_t>(bounds + 1);
    const Ints16 positive = Blocks::Sub(Blocks::SetInts(half), above);
    const Ints16 negative = Blocks::Add(Blocks::SetInts(half - 1), above);
    const Ints16 is_positive = Spreads::IsNotLess(z, Blocks::Set(0.0F));  // and zeros
    const Floats16 code =
        Blocks::Choose(is_positive, Blocks::OfBits(positive), Blocks::OfBits(negative));
    return Blocks::And(Blocks::BitsOf(code), coded);
  }

  // Packs the codes of a token, one byte per channel, into its bits.
  void PackToken(const HotEights& eights, uint32_t token, const uint8_t* bytes,
                 uint8_t* codes) const {
    const uint32_t row_bytes = tile.row_bytes;
    uint8_t* row = codes + uint64_t{token} * row_bytes;
    uint8_t copy[kHotRowBytesMax + kWordBytes];  // used if the bytes after the row are not ours
    const bool is_copied = uint64_t{source.tokens - token - 1} * row_bytes < kWordBytes;
    uint8_t* next = is_copied ? copy : row;
    uint64_t bits = 0;
    uint32_t count = 0;  // of them, below 8
    for (uint32_t i = 0; i < eights.channels / 8; ++i) {
      uint64_t eight = 0;
      __builtin_memcpy(&eight, bytes + uint64_t{8} * i, kWordBytes);
      bits |= Spreads::Collect(eight, eights.of[i].mask) << count;
      count += static_cast<uint32_t>(__builtin_popcountll(eights.of[i].mask));
      __builtin_memcpy(next, &bits, kWordBytes);
      next += count / 8;
      bits >>= count / 8 * 8;
      count %= 8;
    }
    if (is_copied) __builtin_memcpy(row, copy, row_bytes);
  }

  void PutBlock(const HotEights& eights, uint32_t block, const float* inverses,
                uint8_t* codes) const {
    const Ints16 coded = CodedOf(block);
    const auto codes_of = [&](uint32_t c) {
      const bool has_codes = c < tile.step.dim && tile.channels[c].width != 0;
      return has_codes ? CodesOf(block, c, inverses[c], coded) : Blocks::SetInts(0);
    };
    HotPairs pairs;
    for (uint32_t c = 0; c < eights.channels; c += 2) {
      Blocks::StoreHalves(pairs.At(c / 2), Spreads::Pair(codes_of(c), codes_of(c + 1)));
    }
    alignas(64) uint8_t bytes[kBlockTokens * kProfileDimMax];
    pairs.Put(eights.channels, bytes);
    for (uint32_t i = 0; i < kBlockTokens; ++i) {
      const uint32_t token = block * kBlockTokens + i;
      if (token < source.tokens) PackToken(eights, token, bytes + i * eights.channels, codes);
    }
  }
};

void EncodeHotStrip(const HotTile& tile, const StepSource& source, uint8_t* codes,
                    uint8_t* corrections, StripTokens* rows) {
  HotCoding strip(tile, source, rows);
  if (source.position == 0) rows->Add(0);
  if (source.v != nullptr) AddSmallNormsOf(tile.step, source, rows);
  for (uint32_t block = 0; block < BlockCount(source.tokens); ++block) strip.Centre(block);
  const uint32_t dim = tile.step.dim;
  if (tile.is_corrected) __builtin_memset(corrections, 0, HotCorrectionBytes(dim));
  float inverses[kProfileDimMax];
  for (uint32_t first = 0; first < dim; first += HotCoding::kAtOnce) {
    const uint32_t count = dim - first < HotCoding::kAtOnce ? dim - first : HotCoding::kAtOnce;
    int32_t found[HotCoding::kAtOnce] = {};
    if (tile.is_corrected) strip.FindCorrections(first, count, found);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t c = first + i;
      inverses[c] = Exp2(-HotScaleLog(tile.channels[c].spread_log, found[i]));
      if (!tile.is_corrected) continue;
      const auto nibble = static_cast<uint32_t>(found[i] - kHotCorrectionMin);
      corrections[c / 2] = static_cast<uint8_t>(corrections[c / 2] | nibble << (4 * (c % 2)));
    }
  }
  const HotEights eights(tile);
  for (uint32_t block = 0; block < BlockCount(source.tokens); ++block) {
    strip.PutBlock(eights, block, inverses, codes);
  }
}

}  // namespace
}  // namespace cairn::codecs
