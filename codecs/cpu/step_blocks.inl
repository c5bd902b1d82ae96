// SPDX-License-Identifier: Apache-2.0
// Strips whose symbols are known to elements, in the words of struct Groups and struct Blocks: a
// group of 32 tokens at a time is dequantized, turned, rounded, transposed. Where all fits, a value
// is in registers from its symbol until it is rounded, and one that does not turn is looked up
// rounded; the others go through blocks of floats.

namespace cairn::codecs {
namespace {

constexpr uint32_t kStreamRoom = 192;  // that may be read past the end of a stream
constexpr uint32_t kStripGroups = kStripTokens / kCoderLanes;

// A strip that is being decoded. What is of channels is in tables that strips share.
struct StepDecoding {
  const StepStripJob* job;
  Halves32 states;
  const uint8_t* stream;
  const uint8_t* stream_end;
  uint32_t coded[kStripGroups];       // tokens that have codes, as bits
  uint8_t (*symbols)[kStripTokens];   // of a channel
  uint32_t (*escaped)[kStripGroups];  // tokens of a channel whose codes are escapes, as bits
  uint32_t* escapes;                  // those of the channels before, and those taken
  const uint8_t** low;                // the low planes of a channel
  uint8_t (*tables)[64];              // of a channel's symbols, where it has no low bits: planes
  bool* turns;                        // whether a channel does
  bool has_groups;                    // all fits, as above

  // False where rows or first states are none.
  [[nodiscard]] bool Start(const StepStripJob& of, uint8_t* copy) {
    job = &of;
    StripTokens rows;
    if (of.parts.planes != of.tile->planes ||
        !reference::LoadStepRows(of.tokens, of.parts, of.strip, &rows)) {
      return false;
    }
    for (uint32_t group = 0; group < CoderGroups(of.tokens); ++group) {
      const auto kept = static_cast<uint32_t>(rows.words[group / 2] >> (group % 2 * 32));
      coded[group] = TokensThere(of.tokens, group) & ~kept;
    }
    __builtin_memcpy(copy, of.strip + of.parts.stream, of.parts.stream_bytes);
    __builtin_memset(copy + of.parts.stream_bytes, 0, kStreamRoom);
    states = Strips::LoadHalves(copy);
    stream = copy + kCoderStatesBytes;
    stream_end = copy + of.parts.stream_bytes;
    return AreStates(states);
  }
  [[nodiscard]] bool IsEnded() const { return AreLastStates(states) && stream == stream_end; }
};

// What the 16 symbols of a table stand for, before the step: made when first asked for.
struct SymbolCodes {
  alignas(64) float of[kProfileTables][16];
  uint32_t made = 0;  // tables, as bits

  // Of a channel without low bits.
  const float* Of(const StepChannel& channel) {
    static_assert(kProfileTables <= 32);
    const uint32_t table = channel.shape.table;
    if ((made >> table & 1) == 0) {
      for (uint32_t symbol = 0; symbol < kEscapeSymbol; ++symbol) {
        of[table][symbol] = StepCodeOf(channel, static_cast<int32_t>(symbol) - 7);
      }
      of[table][kEscapeSymbol] = 0.0F;
      made |= 1U << table;
    }
    return of[table];
  }
};

// The values of a channel's 16 symbols, of which the last is none.
Floats16 ValuesOf(const StepTile& tile, const StepChannel& channel, const float* codes) {
  const Floats16 scaled = Blocks::Mul(Blocks::Load(codes), Blocks::Set(channel.step));
  return tile.has_basis ? scaled : Blocks::Add(scaled, Blocks::Set(channel.mean));
}

template <DType kType>
void PutRoundedTable(Floats16 values, uint8_t* planes) {
  Groups::PutPlanes(Elements16<kType>::Round(values), planes);
}

// Where the escapes and low bits of each channel are, and its values: rounded, where groups are put
// and it does not turn. False where escapes are not as many as stated.
bool IndexChannels(StepDecoding* strip) {
  const StepStripJob& job = *strip->job;
  const StepTile& tile = *job.tile;
  const uint32_t groups = CoderGroups(job.tokens);
  strip->has_groups = FillsColumns(tile);
  MarkTurning(tile.turning, tile.dim, strip->turns);
  SymbolCodes codes;
  uint32_t escapes = 0;
  const uint8_t* low = job.strip + job.parts.low;
  for (uint32_t i = 0; i < tile.dim; ++i) {
    const uint32_t c = tile.order[i];
    const StepChannel& channel = tile.channels[c];
    strip->escapes[c] = escapes;
    strip->low[c] = low;
    for (uint32_t group = 0; group < groups; ++group) {
      escapes += static_cast<uint32_t>(__builtin_popcount(strip->escaped[c][group]));
    }
    low += uint64_t{channel.shape.low_bits} * LowPlaneBytes(job.tokens);
    if (channel.shape.low_bits != 0) continue;
    const Floats16 values = ValuesOf(tile, channel, codes.Of(channel));
    if (!strip->has_groups || strip->turns[c]) {
      Groups::PutPlanes(values, strip->tables[c]);
    } else if (tile.dtype == DType::kFp16) {
      PutRoundedTable<DType::kFp16>(values, strip->tables[c]);
    } else {
      PutRoundedTable<DType::kBf16>(values, strip->tables[c]);
    }
  }
  return escapes == job.parts.escapes;
}

// Codes with low bits to values. There are no offsets then.
Floats32 WideValues(const StepDecoding& strip, uint32_t c, uint32_t group, Bytes32 symbols) {
  const StepTile& tile = *strip.job->tile;
  const StepChannel& channel = tile.channels[c];
  const uint32_t low_bits = channel.shape.low_bits;
  const uint8_t* plane = strip.low[c] + 4 * group;
  Bytes32 low = Strips::Set(0);
  for (uint32_t bit = 0; bit < low_bits; ++bit, plane += LowPlaneBytes(strip.job->tokens)) {
    uint32_t bits = 0;
    __builtin_memcpy(&bits, plane, 4);
    low = Strips::Add(low, Strips::And(Strips::Spread(bits), Strips::Set(1U << bit)));
  }
  const auto by = static_cast<uint16_t>(1 | 256U << low_bits);
  const Halves32 above = Strips::Dot(by, Strips::Pair(Groups::Arrange(low), symbols));
  const auto less = static_cast<uint32_t>(-StepCode(0, 0, low_bits));
  const Halves32 code = Strips::Sub(above, Strips::SetHalves(less));
  const Floats32 scaled = Groups::Mul(Groups::ToFloats(code), Groups::Set(channel.step));
  return tile.has_basis ? scaled : Groups::Add(scaled, Groups::Set(channel.mean));
}

// Calls put(token, value) for a channel's escapes in a group. They are taken in its order.
template <typename Put>
void TakeGroupEscapes(const StepDecoding& strip, uint32_t c, uint32_t bits, Put put) {
  const StepStripJob& job = *strip.job;
  const StepChannel& channel = job.tile->channels[c];
  for (; bits != 0; bits &= bits - 1) {
    int16_t code = 0;
    const uint64_t index = strip.escapes[c]++;
    __builtin_memcpy(&code, job.strip + job.parts.escape + 2 * index, 2);
    const float value = StepValue(channel, code);
    put(static_cast<uint32_t>(__builtin_ctz(bits)),
        job.tile->has_basis ? value : value + channel.mean);
  }
}

Bytes32 SymbolsAt(const StepDecoding& strip, uint32_t c, uint32_t group) {
  return Groups::Arrange(Strips::Load(strip.symbols[c] + group * kCoderLanes));
}

// The values of a channel in a group; its table is not rounded.
[[gnu::always_inline]] inline Floats32 GroupValues(const StepDecoding& strip, uint32_t c,
                                                   uint32_t group) {
  const bool is_wide = strip.job->tile->channels[c].shape.low_bits != 0;
  const Bytes32 symbols = SymbolsAt(strip, c, group);
  Floats32 values =
      is_wide ? WideValues(strip, c, group, symbols) : Groups::LookUp(strip.tables[c], symbols);
  if (strip.escaped[c][group] != 0) {
    alignas(32) float some[kCoderLanes];
    Groups::Store(some, some + kBlockTokens, values);
    TakeGroupEscapes(strip, c, strip.escaped[c][group],
                     [&](uint32_t token, float value) { some[token] = value; });
    values = Groups::Load(some, some + kBlockTokens);
  }
  return values;
}

// The blocks of a group.
void Dequantize(const StepDecoding& strip, uint32_t group, BlockValues (*blocks)[2]) {
  for (uint32_t c = 0; c < strip.job->tile->dim; ++c) {
    Groups::Store((*blocks)[0].of[c], (*blocks)[1].of[c], GroupValues(strip, c, group));
  }
}

// Components of a basis to channels.
void LeaveBasis(const StepTile& tile, BlockValues* values) {
  BlockValues products;
  const auto factors = [&](uint32_t first, float(*of)[4]) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t c = first + i < tile.dim ? first + i : tile.dim - 1;
      for (uint32_t j = 0; j < tile.dim; ++j) of[j][i] = VectorOf(tile, c, j);
    }
  };
  MultiplyMatrix(tile.dim, tile.dim, factors, *values, &products);
  for (uint32_t c = 0; c < tile.dim; ++c) {
    const Floats16 scale = Blocks::Set(ScaleOf(tile.basis.scale_inverse, c));
    const Floats16 x = Blocks::Mul(Blocks::Load(products.of[c]), scale);
    Blocks::Store(values->of[c], Blocks::Add(x, Blocks::Set(tile.channels[c].mean)));
  }
}

// All of a group that goes through blocks.
[[gnu::noinline]] void PutBlocks(const StepDecoding& strip, uint32_t group) {
  const StepStripJob& job = *strip.job;
  const StepTile& tile = *job.tile;
  BlockValues blocks[2];
  OwnRotations own;
  Dequantize(strip, group, &blocks);
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t token = group * kCoderLanes + i * kBlockTokens;
    if (token >= job.tokens) return;
    if (tile.has_basis) LeaveBasis(tile, &blocks[i]);
    if (tile.turning.count != 0) {
      const Rotations rotations =
          RotationsOf(tile, job.position, job.tokens, token, job.scratch, &own);
      Turn<true>(tile.turning, rotations, &blocks[i]);
    }
    if (IsStreamed(tile, job)) {
      PutBlock<true>(tile.dtype, blocks[i], job.tokens, tile.dim, token, job.target);
    } else {
      PutBlock<false>(tile.dtype, blocks[i], job.tokens, tile.dim, token, job.target);
    }
  }
}

// A group of a channel, rounded: tokens in the order of Groups::PlaceOf().
struct GroupHalves {
  alignas(64) uint16_t of[kProfileDimMax][kCoderLanes];
};

// Channels that do not turn.
template <DType kType>
void TakeStill(const StepDecoding& strip, uint32_t group, GroupHalves* halves) {
  using Type = Elements16<kType>;
  const StepTile& tile = *strip.job->tile;
  if (tile.turning.count * 2 == tile.dim) return;
  for (uint32_t c = 0; c < tile.dim; ++c) {
    if (strip.turns[c]) continue;
    if (tile.channels[c].shape.low_bits != 0) {
      Groups::StoreHalves(halves->of[c], Type::Round(GroupValues(strip, c, group)));
      continue;
    }
    Groups::StoreHalves(halves->of[c],
                        Groups::LookUpHalves(strip.tables[c], SymbolsAt(strip, c, group)));
    if (strip.escaped[c][group] == 0) continue;
    TakeGroupEscapes(strip, c, strip.escaped[c][group], [&](uint32_t token, float value) {
      reference::StoreElement(kType, reinterpret_cast<uint8_t*>(halves->of[c]),
                              Groups::PlaceOf(token), value);
    });
  }
}

// Channels that turn, as TurnForth() says.
template <DType kType>
void TakeTurned(const StepDecoding& strip, uint32_t group, GroupHalves* halves) {
  using Type = Elements16<kType>;
  const StepStripJob& job = *strip.job;
  const StepPairs& pairs = job.tile->turning;
  const uint32_t token = group * kCoderLanes;
  const uint32_t next = token + kBlockTokens < job.tokens ? token + kBlockTokens : token;
  OwnRotations own[2];
  const Rotations by[2] = {
      RotationsOf(*job.tile, job.position, job.tokens, token, job.scratch, &own[0]),
      RotationsOf(*job.tile, job.position, job.tokens, next, job.scratch, &own[1])};
  for (uint32_t i = 0; i < pairs.count; ++i) {
    const uint32_t first = pairs.first + i * pairs.step;
    const Floats32 a = GroupValues(strip, first, group);
    const Floats32 b = GroupValues(strip, first + pairs.distance, group);
    const Floats32 c = Groups::Load(by[0].cosine[i], by[1].cosine[i]);
    const Floats32 s = Groups::Load(by[0].sine[i], by[1].sine[i]);
    const Floats32 turned = Groups::Sub(Groups::Mul(a, c), Groups::Mul(b, s));
    Groups::StoreHalves(halves->of[first], Type::Round(turned));
    const Floats32 other = Groups::Add(Groups::Mul(a, s), Groups::Mul(b, c));
    Groups::StoreHalves(halves->of[first + pairs.distance], Type::Round(other));
  }
}

template <DType kType>
[[gnu::noinline]] void PutGroup(const StepDecoding& strip, uint32_t group) {
  const StepStripJob& job = *strip.job;
  GroupHalves halves;
  TakeStill<kType>(strip, group, &halves);
  if (job.tile->turning.count != 0) TakeTurned<kType>(strip, group, &halves);
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t token = group * kCoderLanes + i * kBlockTokens;
    if (token >= job.tokens) return;
    const uint16_t* rows = halves.of[0] + i * kBlockTokens;
    uint8_t* target = job.target + uint64_t{token} * job.tile->dim * 2;
    if (IsStreamed(*job.tile, job)) {
      PutColumns<true, kCoderLanes>(job.tile->dim, job.tokens - token, Groups::kTokenAt, rows,
                                    target);
    } else {
      PutColumns<false, kCoderLanes>(job.tile->dim, job.tokens - token, Groups::kTokenAt, rows,
                                     target);
    }
  }
}

// All of strips of one shape once their symbols are known.
void PutStrips(const StepDecoding* strips, uint32_t count) {
  for (uint32_t group = 0; group < CoderGroups(strips[0].job->tokens); ++group) {
    for (uint32_t s = 0; s < count; ++s) {
      if (!strips[s].has_groups) {
        PutBlocks(strips[s], group);
      } else if (strips[s].job->tile->dtype == DType::kFp16) {
        PutGroup<DType::kFp16>(strips[s], group);
      } else {
        PutGroup<DType::kBf16>(strips[s], group);
      }
    }
  }
}

}  // namespace
}  // namespace cairn::codecs
