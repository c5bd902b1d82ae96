// SPDX-License-Identifier: Apache-2.0
// encode_step_strip of codecs/backend.h in the words of struct Strips and struct Blocks.
//
// Codes, a block of tokens at a time; then symbols, low planes and escapes, channel after channel
// in the order of coding; then the stream, backwards. A room that may be too small on the way is
// left to the plain loops.

namespace cairn::codecs {
namespace {

struct StepCoding {
  alignas(64) int16_t codes[kProfileDimMax][kStripTokens];
  alignas(64) uint8_t symbols[kProfileDimMax][kStripTokens];
  StripTokens rows;
  uint32_t coded[kStripGroups];  // tokens that have codes, as bits

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

void CoarsenCodes(uint32_t level, int16_t* codes) {
  for (uint32_t i = 0; i < kBlockTokens; ++i) {
    codes[i] = static_cast<int16_t>(Coarsen(codes[i], level));
  }
}

// Codes of a block; its tokens that have to be rows are added.
void QuantizeBlock(const StepTile& tile, const StepSource& source, uint32_t token,
                   StepCoding* coding) {
  BlockValues values;
  const uint64_t block_bytes = uint64_t{kBlockTokens} * tile.dim * BytesOf(tile.dtype);
  for (uint64_t at = 0; at < block_bytes; at += 64) {
    __builtin_prefetch(source.bytes + (token / kBlockTokens + 1) * block_bytes + at);
  }
  uint64_t rows = TakeBlock(tile.dtype, source.bytes, source.tokens, tile.dim, token, &values);
  if (tile.turning.count != 0) {
    OwnRotations own;
    const Rotations rotations =
        RotationsOf(tile, source.position, source.tokens, token, source.scratch, &own);
    Turn<false>(tile.turning, rotations, &values);
  }
  if (tile.has_basis) EnterBasis(tile, &values);
  Ints16 is_within = Blocks::SetInts(-1);
  for (uint32_t c = 0; c < tile.dim; ++c) {
    const StepChannel& channel = tile.channels[c];
    Floats16 y = Blocks::Load(values.of[c]);
    if (!tile.has_basis) y = Blocks::Sub(y, Blocks::Set(channel.mean));
    const Floats16 position = Blocks::Mul(y, Blocks::Set(channel.step_inverse));
    is_within = Blocks::And(is_within, Blocks::IsWithin(position, Blocks::Set(kStepCodeMax)));
    int16_t* codes = coding->codes[c] + token;
    Blocks::StoreHalves(reinterpret_cast<uint8_t*>(codes), Blocks::Narrow(Blocks::Round(position)));
    if (tile.level != 0) CoarsenCodes(tile.level, codes);
  }
  rows |= Blocks::Bits(is_within) ^ 0xFFFF;
  coding->rows.words[token / 64] |= rows << (token % 64);
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

void QuantizeStrip(const StepTile& tile, const StepSource& source, StepCoding* coding) {
  if (source.position == 0) coding->rows.Add(0);
  if (source.v != nullptr) AddSmallNormsOf(tile, source, &coding->rows);
  for (uint32_t token = 0; token < source.tokens; token += kBlockTokens) {
    QuantizeBlock(tile, source, token, coding);
  }
  for (uint32_t group = 0; group < kStripGroups; ++group) {
    const bool is_there = group < CoderGroups(source.tokens);
    const uint32_t there = is_there ? TokensThere(source.tokens, group) : 0;
    uint64_t& word = coding->rows.words[group / 2];
    const uint32_t shift = group % 2 * 32;
    word &= ~(uint64_t{~there} << shift);
    coding->coded[group] = there & ~static_cast<uint32_t>(word >> shift);
  }
}

// Where symbols' parts go to.
struct StepWriter {
  uint8_t* low;
  uint8_t* escape;
  uint8_t* escapes_end;
};

// Symbols, low planes and escapes of a channel. False where there is no room for escapes.
bool PutChannelCodes(const StepTile& tile, uint32_t c, uint32_t groups, StepCoding* coding,
                     StepWriter* writer) {
  const StepShape shape = tile.channels[c].shape;
  const CoderLookup& table = tile.lookups[shape.table];
  for (uint32_t group = 0; group < groups; ++group) {
    const int16_t* codes = coding->codes[c] + group * kCoderLanes;
    const uint32_t coded = coding->coded[group];
    Bytes32 low;
    const Bytes32 near = Blocks::SymbolsOf(codes, shape.low_bits, &low);
    Bytes32 symbols = Strips::LookUp(table.symbol, near);
    uint32_t escaped = Strips::Bits(Strips::Equal(symbols, Strips::Set(kEscapeSymbol))) & coded;
    if (coded != ~0U) {
      symbols = Strips::Choose(Strips::Spread(coded), symbols, Strips::Set(table.likeliest));
    }
    Strips::Store(coding->symbols[c] + group * kCoderLanes, symbols);
    for (uint32_t bit = 0; bit < shape.low_bits; ++bit) {
      const uint32_t word = Blocks::BitsAt(low, bit) & coded & ~escaped;
      __builtin_memcpy(writer->low + 4 * (bit * groups + group), &word, 4);
    }
    if (escaped == 0) continue;
    if (writer->escapes_end - writer->escape < 2 * int64_t{kCoderLanes}) return false;
    for (; escaped != 0; escaped &= escaped - 1) {
      __builtin_memcpy(writer->escape, codes + __builtin_ctz(escaped), 2);
      writer->escape += 2;
    }
  }
  writer->low += uint64_t{4} * groups * shape.low_bits;
  return true;
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

// The stream of the symbols, which ends at `end`. Null where there may not be room for it.
uint8_t* PutStepStream(const StepTile& tile, uint32_t groups, const StepCoding& coding,
                       const uint8_t* begin, uint8_t* end) {
  Halves32 states = Strips::SetHalves(kCoderStateMin);
  uint8_t* stream = end;
  for (uint32_t i = tile.dim; i-- > 0;) {
    if (stream - begin < static_cast<int64_t>(kStreamSlack)) return nullptr;
    const uint32_t c = tile.order[i];
    const CoderLookup& table = tile.lookups[tile.channels[c].shape.table];
    for (uint32_t group = groups; group-- > 0;) {
      const Bytes32 symbols = Strips::Load(coding.symbols[c] + group * kCoderLanes);
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
  const uint32_t groups = CoderGroups(source.tokens);
  StepStripParts parts;
  parts.mode = StepStripMode::kCoded;
  parts.rows = coding->RowCount();
  parts.planes = tile.planes;
  PlaceStepParts(shape, &parts);
  if (parts.stream > room) return kLeftToReference;
  StepWriter writer{target + parts.low, target + parts.escape, target + room};
  for (uint32_t i = 0; i < tile.dim; ++i) {
    if (!PutChannelCodes(tile, tile.order[i], groups, coding, &writer)) return kLeftToReference;
  }
  parts.escapes = static_cast<uint32_t>((writer.escape - target - parts.escape) / 2);
  PlaceStepParts(shape, &parts);
  if (parts.stream > room) return kLeftToReference;
  PutRows(tile, source, coding->rows, target + parts.row_bits, target + parts.position);
  const uint64_t stream_max = StreamBytesMax(source.tokens, tile.dim) + kStreamSlack;
  uint8_t* begin = target + parts.stream;
  uint8_t* end = begin + (room - parts.stream < stream_max ? room - parts.stream : stream_max);
  const uint8_t* stream = PutStepStream(tile, groups, *coding, begin, end);
  if (stream == nullptr) return kLeftToReference;
  parts.stream_bytes = static_cast<uint32_t>(end - stream);
  PlaceStepParts(shape, &parts);
  if (parts.bytes > room || parts.bytes >= RawStripBytes(shape)) return 0;
  __builtin_memmove(begin, stream, parts.stream_bytes);
  __builtin_memset(target + parts.end, 0, parts.bytes - parts.end);
  StoreStepHeader(parts, target);
  return parts.bytes;
}

uint64_t EncodeStepStrip(const StepTile& tile, const StepSource& source, uint8_t* target,
                         uint64_t room, uint32_t* rows) {
  StepCoding coding;
  QuantizeStrip(tile, source, &coding);
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
