// SPDX-License-Identifier: Apache-2.0
// encode_step_strip of codecs/backend.h in the words of struct Strips and struct Blocks.
//
// Codes, symbols and low planes, a group of tokens at a time, which stays in the first-level cache;
// escapes, in the order of coding; then the stream, backwards, from where it is copied to its
// place. A room that may be too small on the way is left to the plain loops.

namespace cairn::codecs {
namespace {

struct StepCoding {
  alignas(64) uint8_t symbols[kProfileDimMax][kStripTokens];
  // Tokens whose codes are escapes, as bits, by the channel's place in the order of coding; and of
  // each group, for every place with some, all codes in the order of Groups::PlaceOf().
  uint32_t escaped[kProfileDimMax][kStripGroups];
  alignas(64) int16_t codes[kStripGroups][kProfileDimMax + 1][kCoderLanes];
  uint8_t stream[kProfileDimMax * kStripTokens + kStreamSlack];
  StripTokens rows;

  [[nodiscard]] uint32_t RowCount() const {
    return static_cast<uint32_t>(__builtin_popcountll(rows.words[0]) +
                                 __builtin_popcountll(rows.words[1]));
  }
};

// Channels to components of a basis, without their means.
void EnterBasis(const StepTile& tile, BlockValues* values) {
  BlockValues scaled;
  for (uint32_t c = 0; c < tile.dim; ++c) {
    const Floats16 mean = Blocks::Set(tile.channels[c].mean);
    const Floats16 scale = Blocks::Set(ScaleOf(tile.basis.scale, c));
    const Floats16 centred = Blocks::Sub(Blocks::Load(values->of[c]), mean);
    Blocks::Store(scaled.of[c], Blocks::Mul(centred, scale));
  }
  const auto factors = [&](uint32_t first, float(*of)[4]) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t j = first + i < tile.dim ? first + i : tile.dim - 1;
      for (uint32_t c = 0; c < tile.dim; ++c) of[c][i] = VectorOf(tile, c, j);
    }
  };
  MultiplyMatrix(tile.dim, tile.dim, factors, scaled, values);
}

[[gnu::noinline]] Halves16 CoarsenCodes(Halves16 codes, uint32_t level) {
  int16_t each[kBlockTokens];
  Blocks::StoreHalves(reinterpret_cast<uint8_t*>(each), codes);
  for (int16_t& code : each) code = static_cast<int16_t>(Coarsen(code, level));
  return Blocks::LoadHalves(reinterpret_cast<const uint8_t*>(each));
}

// The values of a block, as they are coded but for their means. Returns its tokens that have to be
// rows, as bits.
uint32_t TakeComponents(const StepTile& tile, const StepSource& source, uint32_t token,
                        BlockValues* values) {
  const uint32_t rows = TakeBlock(tile.dtype, source.bytes, source.tokens, tile.dim, token, values);
  if (tile.turning.count != 0) {
    OwnRotations own;
    // Of tokens that are not there, those of the block before.
    const uint32_t at = token < source.tokens ? token : token - kBlockTokens;
    const Rotations rotations =
        RotationsOf(tile, source.position, source.tokens, at, source.scratch, &own);
    Turn<false>(tile.turning, rotations, values);
  }
  if (tile.has_basis) EnterBasis(tile, values);
  return rows;
}

// Those of a group, likewise.
uint32_t TakeGroup(const StepTile& tile, const StepSource& source, uint32_t group,
                   BlockValues (*blocks)[2]) {
  const uint32_t token = group * kCoderLanes;
  const uint32_t rows = TakeComponents(tile, source, token, &(*blocks)[0]);
  return rows | TakeComponents(tile, source, token + kBlockTokens, &(*blocks)[1]) << kBlockTokens;
}

// The tokens of a block that have a magnitude too large for a code, or NaN, as bits.
//   largest  as Blocks::MaxMagnitude() has it
uint32_t TooLarge(Ints16 largest) {
  const Ints16 bound = Blocks::SetInts(static_cast<int32_t>(FloatBits(kStepCodeMax)));
  return Blocks::Bits(Blocks::Above(largest, bound));
}

// Symbols and low planes of a group whose tokens `coded` have codes. Returns the tokens that have a
// value which is too large for it, as bits.
//   low  where the strip's low planes are
uint32_t CodeGroup(const StepTile& tile, const BlockValues (&blocks)[2], uint32_t group,
                   uint32_t groups, uint32_t coded, StepCoding* coding, uint8_t* low) {
  auto* kept = reinterpret_cast<uint8_t*>(coding->codes[group]);
  Ints16 first_largest = Blocks::SetInts(0);
  Ints16 second_largest = Blocks::SetInts(0);
  low += uint64_t{4} * group;
  for (uint32_t place = 0; place < tile.dim; ++place) {
    const uint32_t c = tile.order[place];
    const StepChannel& channel = tile.channels[c];
    const CoderLookup& table = tile.lookups[channel.shape.table];
    const Floats16 mean = Blocks::Set(tile.has_basis ? 0.0F : channel.mean);
    const Floats16 inverse = Blocks::Set(channel.step_inverse);
    const auto quantize = [&](const BlockValues& block, Ints16* largest) {
      const Floats16 y = Blocks::Sub(Blocks::Load(block.of[c]), mean);
      const Floats16 position = Blocks::Mul(y, inverse);
      *largest = Blocks::MaxMagnitude(*largest, position);
      return Blocks::Pack(Blocks::Round(position));
    };
    Halves16 first = quantize(blocks[0], &first_largest);
    Halves16 second = quantize(blocks[1], &second_largest);
    if (tile.level != 0) {
      first = CoarsenCodes(first, tile.level);
      second = CoarsenCodes(second, tile.level);
    }
    Bytes32 low_bytes = Strips::Set(0);
    const uint32_t low_bits = channel.shape.low_bits;
    const Bytes32 near = low_bits == 0 ? Blocks::SymbolsOf(first, second)
                                       : Blocks::SymbolsOf(first, second, low_bits, &low_bytes);
    Bytes32 symbols = Strips::LookUp(table.symbol, near);
    const uint32_t escaped =
        Strips::Bits(Strips::Equal(symbols, Strips::Set(kEscapeSymbol))) & coded;
    if (coded != ~0U) {
      symbols = Strips::Choose(Strips::Spread(coded), symbols, Strips::Set(table.likeliest));
    }
    Strips::Store(coding->symbols[c] + group * kCoderLanes, symbols);
    coding->escaped[place][group] = escaped;
    Blocks::StoreHalves(kept, first);
    Blocks::StoreHalves(kept + sizeof(Halves16), second);
    kept += escaped != 0 ? 2 * sizeof(Halves16) : 0;
    for (uint32_t bit = 0; bit < low_bits; ++bit) {
      const uint32_t word = Blocks::BitsAt(low_bytes, bit) & coded & ~escaped;
      __builtin_memcpy(low, &word, 4);
      low += uint64_t{4} * groups;
    }
  }
  return TooLarge(first_largest) | TooLarge(second_largest) << kBlockTokens;
}

// K and V of a head have the same.
void AddSmallNormsOf(const StepTile& tile, const StepSource& source, StripTokens* rows) {
  StripTokens found;
  if (source.scratch != nullptr && source.scratch->v == source.v) {
    found = source.scratch->small_norms;
  } else {
    AddSmallNorms({source.tokens, tile.v_dim, tile.dtype, false}, source.v, &found);
  }
  if (source.scratch != nullptr) {
    source.scratch->v = source.v;
    source.scratch->small_norms = found;
  }
  for (uint32_t i = 0; i < 2; ++i) rows->words[i] |= found.words[i];
}

void CodeGroups(const StepTile& tile, const StepSource& source, StepCoding* coding, uint8_t* low) {
  if (source.position == 0) coding->rows.Add(0);
  if (source.v != nullptr) AddSmallNormsOf(tile, source, &coding->rows);
  const uint32_t groups = CoderGroups(source.tokens);
  for (uint32_t group = 0; group < groups; ++group) {
    BlockValues blocks[2];
    const uint32_t there = TokensThere(source.tokens, group);
    const uint32_t shift = group % 2 * kCoderLanes;
    uint64_t& word = coding->rows.words[group / 2];
    word |= uint64_t{TakeGroup(tile, source, group, &blocks) & there} << shift;
    const auto coded = [&] { return there & ~static_cast<uint32_t>(word >> shift); };
    const uint32_t far = CodeGroup(tile, blocks, group, groups, coded(), coding, low) & coded();
    if (far == 0) continue;
    word |= uint64_t{far} << shift;
    CodeGroup(tile, blocks, group, groups, coded(), coding, low);
  }
}

// The codes of escapes, in the order of coding, from `target` to at most `end`. Returns where they
// end; null where there may not be room for them.
uint8_t* PutEscapes(uint32_t dim, uint32_t groups, const StepCoding& coding, uint8_t* target,
                    const uint8_t* end) {
  uint32_t taken[kStripGroups] = {};
  for (uint32_t place = 0; place < dim; ++place) {
    for (uint32_t group = 0; group < groups; ++group) {
      uint32_t escaped = coding.escaped[place][group];
      if (escaped == 0) continue;
      if (end - target < 2 * int64_t{kCoderLanes}) return nullptr;
      const int16_t* codes = coding.codes[group][taken[group]++];
      for (; escaped != 0; escaped &= escaped - 1) {
        const auto token = static_cast<uint32_t>(__builtin_ctz(escaped));
        __builtin_memcpy(target, codes + Groups::PlaceOf(token), 2);
        target += 2;
      }
    }
  }
  return target;
}

void PutRows(const StepTile& tile, const StepSource& source, const StripTokens& rows, uint8_t* bits,
             uint8_t* positions) {
  const uint64_t row_bytes = uint64_t{tile.dim} * BytesOf(tile.dtype);
  for (uint32_t token = 0; token < source.tokens; ++token) {
    if (!rows.Has(token)) continue;
    __builtin_memcpy(bits, source.bytes + token * row_bytes, row_bytes);
    bits += row_bytes;
    *positions++ = static_cast<uint8_t>(token);
  }
}

// The stream of the symbols, in *coding: returns its start; *end is where it ends. Asks for the
// source of a strip that is coded soon, and for `target`, where the stream goes: at 2.3 bits about
// a sixth of the source.
const uint8_t* PutStepStream(const StepTile& tile, const StepSource& source, StepCoding* coding,
                             const uint8_t* target, const uint8_t** end) {
  const uint32_t groups = CoderGroups(source.tokens);
  const uint64_t ask_bytes = uint64_t{source.tokens} * BytesOf(tile.dtype);
  // With V there are two planes: the next strip has been read for its norms, or is asked for.
  const uint8_t* ahead = source.bytes + (source.v != nullptr ? 2 : 1) * ask_bytes * tile.dim;
  Halves32 states = Strips::SetHalves(kCoderStateMin);
  uint8_t* stream = coding->stream + sizeof(coding->stream);
  *end = stream;
  for (uint32_t place = tile.dim; place-- > 0;) {
    Strips::Ask(ahead, ask_bytes);
    ahead += ask_bytes;
    Strips::Ask(target, ask_bytes / 6);
    target += ask_bytes / 6;
    const uint32_t c = tile.order[place];
    const CoderLookup& table = tile.lookups[tile.channels[c].shape.table];
    for (uint32_t group = groups; group-- > 0;) {
      const Bytes32 symbols = Strips::Load(coding->symbols[c] + group * kCoderLanes);
      stream = PutSymbols(table, symbols, &states, stream);
    }
  }
  stream -= kCoderStatesBytes;
  Strips::PutHalves<false>(stream, states);
  return stream;
}

// Returns the strip's bytes; 0 where they are more than the room, or raw is not more.
uint64_t PutStepStrip(const StepTile& tile, const StepSource& source, StepCoding* coding,
                      uint8_t* target, uint64_t room) {
  const StripShape shape{source.tokens, tile.dim, tile.dtype, false};
  StepStripParts parts;
  parts.mode = StepStripMode::kCoded;
  parts.planes = tile.planes;
  PlaceStepParts(shape, &parts);
  if (parts.stream > room) return kLeftToReference;
  CodeGroups(tile, source, coding, target + parts.low);
  parts.rows = coding->RowCount();
  PlaceStepParts(shape, &parts);
  if (parts.stream > room) return kLeftToReference;
  const uint8_t* escapes_end = PutEscapes(tile.dim, CoderGroups(source.tokens), *coding,
                                          target + parts.escape, target + room);
  if (escapes_end == nullptr) return kLeftToReference;
  parts.escapes = static_cast<uint32_t>((escapes_end - target - parts.escape) / 2);
  const uint8_t* stream_end = nullptr;
  const uint8_t* stream = PutStepStream(tile, source, coding, target + parts.stream, &stream_end);
  parts.stream_bytes = static_cast<uint32_t>(stream_end - stream);
  PlaceStepParts(shape, &parts);
  if (parts.bytes > room || parts.bytes >= RawStripBytes(shape)) return 0;
  PutRows(tile, source, coding->rows, target + parts.row_bits, target + parts.position);
  __builtin_memcpy(target + parts.stream, stream, parts.stream_bytes);
  __builtin_memset(target + parts.end, 0, parts.bytes - parts.end);
  StoreStepHeader(parts, target);
  return parts.bytes;
}

uint64_t EncodeStepStrip(const StepTile& tile, const StepSource& source, uint8_t* target,
                         uint64_t room, uint32_t* rows) {
  StepCoding coding;
  const uint64_t bytes = PutStepStrip(tile, source, &coding, target, room);
  if (bytes == kLeftToReference) {
    return reference::EncodeStepStrip(tile, source, target, room, rows);
  }
  *rows = bytes == 0 ? 0 : coding.RowCount();
  if (bytes != 0) return bytes;
  return StoreRawStrip({source.tokens, tile.dim, tile.dtype, false}, source.bytes, target, room);
}

}  // namespace
}  // namespace cairn::codecs
