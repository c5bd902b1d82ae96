// SPDX-License-Identifier: Apache-2.0
// Converts strips with known symbols to elements, with the primitives of struct Groups and struct
// Blocks. It dequantizes, rotates, rounds and transposes a group of 32 tokens at a time. If the
// shape allows, a value stays in registers from its symbol until it is rounded, and a value that is
// not rotated is looked up already rounded. Otherwise values go through blocks of floats.

namespace cairn::codecs {
namespace {

constexpr uint32_t kStreamRoom = 192;  // bytes that may be read past the end of a stream
constexpr uint32_t kStripGroups = kStripTokens / kCoderLanes;

// A list of numbers with the plain ones first: a branch for each number would be unpredictable.
struct PlainFirst {
  uint16_t* of;
  uint32_t plain;
  uint32_t count;
  uint32_t others_first;  // once all are added: plain

  void Start(uint16_t* numbers, uint32_t all) {
    of = numbers;
    plain = 0;
    count = others_first = all;
  }
  void Add(uint32_t number, bool is_plain) {
    others_first -= is_plain ? 0 : 1;
    of[is_plain ? plain : others_first] = static_cast<uint16_t>(number);
    plain += is_plain ? 1 : 0;
  }
};

// A strip that is being decoded. Data of channels is indexed by their places in the coding order.
struct StepDecoding {
  const StepStripJob* job;
  Halves32 states;
  const uint8_t* stream;
  const uint8_t* stream_end;
  uint32_t coded[kStripGroups];       // tokens that have codes, as bits
  uint8_t (*symbols)[kStripTokens];   // of a channel
  uint32_t (*escaped)[kStripGroups];  // tokens of a channel whose codes are escapes, as bits
  uint32_t* escapes;                  // number of escapes of earlier channels, and of consumed ones
  const uint8_t** low;                // the low planes of a channel, or null: it is plain
  uint8_t (*tables)[64];              // table of a plain channel's symbols, as planes of bytes
  bool has_groups;                    // the shape allows values in registers, as above
  // Rotated pairs, and the places of channels that are not rotated.
  PlainFirst turning;
  PlainFirst still;

  // Returns false if the rows or the first states are invalid.
  [[nodiscard]] bool Start(const StepStripJob& of, uint8_t* copy) {
    job = &of;
    StripTokens rows = {};
    if (of.parts.planes != of.tile->planes ||
        !reference::LoadStepRows(of.tokens, of.parts, of.strip, &rows)) {
      return false;
    }
    for (uint32_t group = 0; group < CoderGroups(of.tokens); ++group) {
      coded[group] = CodedTokens(of.tokens, group, rows);
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

// Fills the table of a plain place.
void PutTable(const StepDecoding& strip, uint32_t place, bool is_rounded) {
  const StepTile& tile = *strip.job->tile;
  const StepChannel& channel = tile.channels[tile.order[place]];
  const float* codes = tile.shared.symbol_codes[channel.shape.table];
  Floats16 values = Blocks::Mul(Blocks::Load(codes), Blocks::Set(channel.step));
  if (!tile.has_basis) values = Blocks::Add(values, Blocks::Set(channel.mean));
  if (!is_rounded) {
    Groups::PutPlanes(values, strip.tables[place]);
  } else if (tile.dtype == DType::kFp16) {
    Groups::PutPlanes(Elements16<DType::kFp16>::Round(values), strip.tables[place]);
  } else {
    Groups::PutPlanes(Elements16<DType::kBf16>::Round(values), strip.tables[place]);
  }
}

// Fills the tables of all plain places. They are rounded if groups are used and the channel is not
// rotated.
void PutTables(const StepDecoding& strip) {
  for (uint32_t i = 0; i < strip.still.plain; ++i) {
    PutTable(strip, strip.still.of[i], strip.has_groups);
  }
  for (uint32_t i = 0; i < strip.turning.count; ++i) {
    for (uint32_t place = 2U * strip.turning.of[i]; place < 2U * strip.turning.of[i] + 2; ++place) {
      if (strip.low[place] == nullptr) PutTable(strip, place, false);
    }
  }
}

// Finds the escapes and low bits of each channel, and the plain channels. Returns false if the
// number of escapes differs from the header's.
//   numbers  room for one number per channel
bool IndexChannels(StepDecoding* strip, uint16_t* numbers) {
  const StepStripJob& job = *strip->job;
  const StepTile& tile = *job.tile;
  strip->has_groups = FillsColumns(tile);
  const uint32_t pairs = tile.has_basis ? 0 : tile.turning.count;
  strip->turning.Start(numbers, pairs);
  strip->still.Start(numbers + pairs, tile.dim - 2 * pairs);
  uint32_t escapes = 0;
  const uint8_t* low = job.strip + job.parts.low;
  for (uint32_t place = 0; place < tile.dim; ++place) {
    const uint32_t low_bits = tile.channels[tile.order[place]].shape.low_bits;
    strip->escapes[place] = escapes;
    for (const uint32_t bits : strip->escaped[place]) {
      escapes += static_cast<uint32_t>(__builtin_popcount(bits));
    }
    strip->low[place] = low_bits == 0 ? nullptr : low;
    low += uint64_t{low_bits} * LowPlaneBytes(job.tokens);
  }
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    strip->turning.Add(pair,
                       strip->low[2 * pair] == nullptr && strip->low[2 * pair + 1] == nullptr);
  }
  for (uint32_t place = 2 * pairs; place < tile.dim; ++place) {
    strip->still.Add(place, strip->low[place] == nullptr);
  }
  return escapes == job.parts.escapes;
}

Bytes32 SymbolsAt(const StepDecoding& strip, uint32_t place, uint32_t group) {
  return Groups::Arrange(Strips::Load(strip.symbols[place] + group * kCoderLanes));
}

// Converts codes with low bits to values. Such codes have no offsets.
[[gnu::always_inline]] inline Floats32 WideValues(const StepDecoding& strip, uint32_t place,
                                                  uint32_t group) {
  const StepTile& tile = *strip.job->tile;
  const StepChannel& channel = tile.channels[tile.order[place]];
  const uint32_t low_bits = channel.shape.low_bits;
  const uint8_t* plane = strip.low[place] + 4 * group;
  Bytes32 low = Strips::Set(0);
  for (uint32_t bit = 0; bit < low_bits; ++bit, plane += LowPlaneBytes(strip.job->tokens)) {
    uint32_t bits = 0;
    __builtin_memcpy(&bits, plane, 4);
    low = Strips::Add(low, Strips::And(Strips::Spread(bits), Strips::Set(1U << bit)));
  }
  const auto by = static_cast<uint16_t>(1 | 256U << low_bits);
  const Halves32 above =
      Strips::Dot(by, Strips::Pair(Groups::Arrange(low), SymbolsAt(strip, place, group)));
  const auto less = static_cast<uint32_t>(-StepCode(0, 0, low_bits));
  const Halves32 code = Strips::Sub(above, Strips::SetHalves(less));
  const Floats32 scaled = Groups::Mul(Groups::ToFloats(code), Groups::Set(channel.step));
  return tile.has_basis ? scaled : Groups::Add(scaled, Groups::Set(channel.mean));
}

// Calls put(token, value) for the escapes of a place in a group, in the group's order.
template <typename Put>
[[gnu::noinline]] void TakeGroupEscapes(const StepDecoding& strip, uint32_t place, uint32_t bits,
                                        Put put) {
  const StepStripJob& job = *strip.job;
  const uint32_t channel = job.tile->order[place];
  for (; bits != 0; bits &= bits - 1) {
    int16_t code = 0;
    const uint64_t index = strip.escapes[place]++;
    __builtin_memcpy(&code, job.strip + job.parts.escape + 2 * index, 2);
    const float value = ValueOf(*job.tile, channel, code);
    put(static_cast<uint32_t>(__builtin_ctz(bits)),
        job.tile->has_basis ? value : value + job.tile->channels[channel].mean);
  }
}

// Returns the values of a place in a group. REQUIRES: its table is not rounded.
template <bool kIsPlain>
[[gnu::always_inline]] inline Floats32 GroupValues(const StepDecoding& strip, uint32_t place,
                                                   uint32_t group) {
  Floats32 values = kIsPlain || strip.low[place] == nullptr
                        ? Groups::LookUp(strip.tables[place], SymbolsAt(strip, place, group))
                        : WideValues(strip, place, group);
  if (strip.escaped[place][group] != 0) {
    alignas(32) float some[kCoderLanes];
    Groups::Store(some, some + kBlockTokens, values);
    TakeGroupEscapes(strip, place, strip.escaped[place][group],
                     [&](uint32_t token, float value) { some[token] = value; });
    values = Groups::Load(some, some + kBlockTokens);
  }
  return values;
}

// Fills the blocks of a group.
void Dequantize(const StepDecoding& strip, uint32_t group, BlockValues (*blocks)[2]) {
  const StepTile& tile = *strip.job->tile;
  for (uint32_t place = 0; place < tile.dim; ++place) {
    const uint32_t c = tile.order[place];
    Groups::Store((*blocks)[0].of[c], (*blocks)[1].of[c], GroupValues<false>(strip, place, group));
  }
}

// Transforms components of a basis to channels.
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

// Decodes a group through blocks of floats.
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

// A group of a channel, rounded, with tokens in the order of Groups::PlaceOf().
struct GroupHalves {
  alignas(64) uint16_t of[kProfileDimMax][kCoderLanes];
};

// Decodes channels that are not rotated.
template <DType kType>
void TakeStill(const StepDecoding& strip, uint32_t group, GroupHalves* halves) {
  using Type = Elements16<kType>;
  const StepTile& tile = *strip.job->tile;
  const PlainFirst& still = strip.still;
  for (uint32_t i = 0; i < still.plain; ++i) {
    const uint32_t place = still.of[i];
    uint16_t* of = halves->of[tile.order[place]];
    Groups::StoreHalves(of,
                        Groups::LookUpHalves(strip.tables[place], SymbolsAt(strip, place, group)));
    if (strip.escaped[place][group] == 0) continue;
    TakeGroupEscapes(strip, place, strip.escaped[place][group], [&](uint32_t token, float value) {
      reference::StoreElement(kType, reinterpret_cast<uint8_t*>(of), Groups::PlaceOf(token), value);
    });
  }
  for (uint32_t i = still.plain; i < still.count; ++i) {
    const uint32_t place = still.of[i];
    Groups::StoreHalves(halves->of[tile.order[place]],
                        Type::Round(GroupValues<false>(strip, place, group)));
  }
}

// Decodes a range of the rotated pairs, as ApplyRope() does.
template <DType kType, bool kIsPlain>
void TurnPairs(const StepDecoding& strip, uint32_t group, const Rotations (&by)[2], uint32_t first,
               uint32_t end, GroupHalves* halves) {
  using Type = Elements16<kType>;
  const StepPairs& pairs = strip.job->tile->turning;
  for (uint32_t i = first; i < end; ++i) {
    const uint32_t pair = strip.turning.of[i];
    const uint32_t channel = pairs.first + pair * pairs.step;
    const Floats32 a = GroupValues<kIsPlain>(strip, 2 * pair, group);
    const Floats32 b = GroupValues<kIsPlain>(strip, 2 * pair + 1, group);
    const Floats32 c = Groups::Load(by[0].cosine[pair], by[1].cosine[pair]);
    const Floats32 s = Groups::Load(by[0].sine[pair], by[1].sine[pair]);
    const Floats32 turned = Groups::Sub(Groups::Mul(a, c), Groups::Mul(b, s));
    Groups::StoreHalves(halves->of[channel], Type::Round(turned));
    const Floats32 other = Groups::Add(Groups::Mul(a, s), Groups::Mul(b, c));
    Groups::StoreHalves(halves->of[channel + pairs.distance], Type::Round(other));
  }
}

// Decodes channels that are rotated.
template <DType kType>
void TakeTurned(const StepDecoding& strip, uint32_t group, GroupHalves* halves) {
  const StepStripJob& job = *strip.job;
  const uint32_t token = group * kCoderLanes;
  const uint32_t next = token + kBlockTokens < job.tokens ? token + kBlockTokens : token;
  OwnRotations own[2];
  const Rotations by[2] = {
      RotationsOf(*job.tile, job.position, job.tokens, token, job.scratch, &own[0]),
      RotationsOf(*job.tile, job.position, job.tokens, next, job.scratch, &own[1])};
  const PlainFirst& turning = strip.turning;
  TurnPairs<kType, true>(strip, group, by, 0, turning.plain, halves);
  TurnPairs<kType, false>(strip, group, by, turning.plain, turning.count, halves);
}

template <DType kType>
[[gnu::noinline]] void PutGroup(const StepDecoding& strip, uint32_t group) {
  const StepStripJob& job = *strip.job;
  GroupHalves halves;
  TakeStill<kType>(strip, group, &halves);
  if (strip.turning.count != 0) TakeTurned<kType>(strip, group, &halves);
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

// Decodes strips of one shape once their symbols are known.
void PutStrips(const StepDecoding* strips, uint32_t count) {
  for (uint32_t s = 0; s < count; ++s) PutTables(strips[s]);
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
