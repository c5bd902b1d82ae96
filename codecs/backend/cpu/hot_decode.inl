// SPDX-License-Identifier: Apache-2.0
// decode_hot_strip of codecs/backend/backend.h, with the primitives of struct Blocks and struct
// Spreads. It converts the codes of 16 tokens to bytes, and bytes to values with one table per
// channel. If the shape allows, a value stays in registers until it is rounded, and a value that is
// not rotated is looked up already rounded, as in step_blocks.inl. Otherwise values go through
// blocks of floats.

namespace cairn::codecs {
namespace {

constexpr uint32_t kTableEntries = 16;
constexpr uint32_t kTableWidth = 4;  // of codes that have tables

// Levels of both signs by width, in the order of codes.
struct HotLevelTables {
  alignas(64) float of[kHotWidthMax + 1][1 << kHotWidthMax];
};
constexpr HotLevelTables kHotLevelTables = [] {
  HotLevelTables tables{};
  for (uint32_t width = 1; width <= kHotWidthMax; ++width) {
    for (uint32_t code = 0; code < 1U << width; ++code) {
      tables.of[width][code] = HotLevel(code, width);
    }
  }
  return tables;
}();

// The data for decoding a strip.
struct HotDecoding {
  const HotStripJob& job;
  const StepTile& step;
  HotEights eights;
  bool turns[kProfileDimMax];
  bool has_halves;  // the shape allows values in registers, as above
  float scales[kProfileDimMax];
  // The values of the codes of channels with at most kTableWidth bits. They are rounded, 16 bits
  // each, if the channel is not rotated and has_halves is set.
  alignas(64) float tables[kProfileDimMax][kTableEntries];

  explicit HotDecoding(const HotStripJob& of) : job(of), step(of.tile->step), eights(*of.tile) {
    has_halves = FillsColumns(step);
    MarkTurning(step.turning, step.dim, turns);
    for (uint32_t c = 0; c < step.dim; ++c) {
      const HotChannel& channel = of.tile->channels[c];
      const int32_t correction = HotCorrectionAt(*of.tile, of.corrections, c);
      scales[c] = Exp2(HotScaleLog(channel.spread_log, correction));
      const Floats16 values = ValuesOf(c, Blocks::Load(kHotLevelTables.of[channel.width]));
      if (!has_halves || turns[c]) {
        Blocks::Store(tables[c], values);
      } else {
        const bool is_fp16 = step.dtype == DType::kFp16;
        Blocks::StoreHalves(Bytes(tables[c]),
                            is_fp16 ? Blocks::ToFp16(values) : Blocks::ToBf16(values));
      }
    }
  }

  [[nodiscard]] bool HasTable(uint32_t c) const {
    return job.tile->channels[c].width <= kTableWidth;
  }
  // Returns the values of levels. The mean is added if the tile has no basis.
  [[nodiscard]] Floats16 ValuesOf(uint32_t c, Floats16 levels) const {
    const Floats16 values = Blocks::Mul(levels, Blocks::Set(scales[c]));
    if (step.has_basis) return values;
    return Blocks::Add(values, Blocks::Set(step.channels[c].mean));
  }
  // For channels without a table, or with one that is not rounded.
  [[nodiscard]] Floats16 LookUp(uint32_t c, Halves16 codes) const {
    const Ints16 index = Spreads::Widen(codes);
    const uint32_t width = job.tile->channels[c].width;
    if (width < kTableWidth) return Spreads::LookUpEight(tables[c], index);
    if (width == kTableWidth) return Blocks::LookUp(Blocks::Load(tables[c]), index);
    return ValuesOf(c, Spreads::LookUp(kHotLevelTables.of[width], index));
  }

  // Loads the codes of a block of 16 tokens, in the order of Groups::kTokenAt. Missing tokens get
  // zeros.
  void TakeCodes(uint32_t first, HotPairs* pairs) const {
    const uint32_t row_bytes = job.tile->row_bytes;
    const uint8_t* rows = job.codes + uint64_t{first} * row_bytes;
    const uint64_t left = uint64_t{job.tokens - first} * row_bytes;
    uint8_t copy[kBlockTokens * kHotRowBytesMax + kWordBytes];  // used if the bytes after the codes
                                                                // are not ours
    const uint32_t needed = kBlockTokens * row_bytes + kWordBytes;
    if (left < needed) {
      __builtin_memcpy(copy, rows, left);
      __builtin_memset(copy + left, 0, needed - left);
      rows = copy;
    }
    alignas(64) uint8_t bytes[kBlockTokens * kProfileDimMax];
    for (uint32_t channel = 0; channel < eights.channels; channel += 8) {
      const HotEight eight = eights.of[channel / 8];
      for (uint32_t i = 0; i < kBlockTokens; ++i) {
        uint64_t bits = 0;
        __builtin_memcpy(&bits, rows + i * row_bytes + eight.byte, kWordBytes);
        bits = Spreads::Deal(bits >> eight.shift, eight.mask);
        __builtin_memcpy(bytes + i * eights.channels + channel, &bits, kWordBytes);
      }
    }
    pairs->Take(bytes, eights.channels, Groups::kTokenAt);
  }
};

// Computes the values of a block.
void TakeHotValues(const HotDecoding& strip, const HotPairs& codes, BlockValues* values) {
  for (uint32_t c = 0; c < strip.step.dim; ++c) {
    Blocks::Store(values->of[c], strip.LookUp(c, codes.Of(c)));
  }
}

// Computes the elements of a block.
template <DType kType>
void TakeHotHalves(const HotDecoding& strip, const HotPairs& codes, const Rotations& by,
                   BlockHalves* halves) {
  using Type = Elements16<kType>;
  const StepPairs& pairs = strip.step.turning;
  for (uint32_t i = 0; i < pairs.count; ++i) {
    const uint32_t first = pairs.first + i * pairs.step;
    const uint32_t second = first + pairs.distance;
    const Floats16 a = strip.LookUp(first, codes.Of(first));
    const Floats16 b = strip.LookUp(second, codes.Of(second));
    const Floats16 c = Blocks::Load(by.cosine[i]);
    const Floats16 s = Blocks::Load(by.sine[i]);
    const Floats16 turned = Blocks::Sub(Blocks::Mul(a, c), Blocks::Mul(b, s));
    const Floats16 other = Blocks::Add(Blocks::Mul(a, s), Blocks::Mul(b, c));
    const Halves32 rounded = Type::Round(Floats32{{turned.a, turned.b, other.a, other.b}});
    halves->Put(first, rounded.a);
    halves->Put(second, rounded.b);
  }
  for (uint32_t c = 0; c < strip.step.dim && pairs.count * 2 != strip.step.dim; ++c) {
    if (strip.turns[c]) continue;
    if (strip.HasTable(c)) {
      halves->Put(c, Spreads::LookUpHalves(Bytes(strip.tables[c]), codes.Of(c)));
    } else {
      const Floats16 x = strip.LookUp(c, codes.Of(c));
      halves->Put(c, Type::Round(Floats32{{x.a, x.b, x.a, x.b}}).a);
    }
  }
}

template <bool kStreams>
void DecodeHotBlock(const HotDecoding& strip, uint32_t token) {
  const HotStripJob& job = strip.job;
  const StepTile& tile = strip.step;
  HotPairs codes;
  strip.TakeCodes(token, &codes);
  OwnRotations own;
  Rotations rotations{};
  if (tile.turning.count != 0) {
    rotations = RotationsOf(tile, job.position, job.tokens, token, job.scratch, &own);
  }
  if (strip.has_halves) {
    BlockHalves halves;
    if (tile.dtype == DType::kFp16) {
      TakeHotHalves<DType::kFp16>(strip, codes, rotations, &halves);
    } else {
      TakeHotHalves<DType::kBf16>(strip, codes, rotations, &halves);
    }
    PutColumns<kStreams, kBlockTokens>(tile.dim, job.tokens - token, Groups::kTokenAt, halves.of[0],
                                       job.target + uint64_t{2} * token * tile.dim);
    return;
  }
  BlockValues values;
  TakeHotValues(strip, codes, &values);
  if (tile.has_basis) LeaveBasis(tile, &values);
  if (tile.turning.count != 0) Turn<true>(tile.turning, rotations, &values);
  PutBlock<kStreams>(tile.dtype, values, job.tokens, tile.dim, token, job.target);
}

void DecodeHotStrip(const HotStripJob& job) {
  const HotDecoding strip(job);
  const bool is_streamed = IsStreamed(strip.step, job);
  for (uint32_t token = 0; token < job.tokens; token += kBlockTokens) {
    if (is_streamed) {
      DecodeHotBlock<true>(strip, token);
    } else {
      DecodeHotBlock<false>(strip, token);
    }
  }
  if (is_streamed) Strips::EndStreams();
}

}  // namespace
}  // namespace cairn::codecs
