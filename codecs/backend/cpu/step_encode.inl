// SPDX-License-Identifier: Apache-2.0
// encode_step_strip of codecs/backend/backend.h, with the primitives of struct Strips and struct
// Blocks.
//
// Elements of 16 bits are transposed. Then channels are quantized and coded backwards, two at a
// time in the coding order, in which the two channels of a pair are adjacent. Their codes thus stay
// in the first-level cache: symbols, low planes and the stream, which is copied to its place at the
// end. Escapes follow. Strips with a basis, a level or elements of 32 bits are quantized first, in
// blocks of floats. If the room might be too small during encoding, the reference loops process the
// strip.

namespace cairn::codecs {
namespace {

struct StepCoding {
  // By channel: codes, which replace elements of 16 bits. Tokens of a group are in the order of
  // Groups::PlaceOf().
  alignas(64) uint8_t codes[kProfileDimMax][2 * kStripTokens];
  // Tokens whose codes are escapes, as bits, indexed by the channel's place in the coding order.
  uint32_t escaped[kProfileDimMax][kStripGroups];
  uint8_t stream[kProfileDimMax * kStripTokens + kStreamSlack];
  StripTokens rows = {};

  // Returns the codes of a block of 16 tokens.
  [[nodiscard]] uint8_t* CodesOf(uint32_t channel, uint32_t block) {
    return codes[channel] + 2 * kBlockTokens * block;
  }
};

// Transforms channels, without their means, to components of a basis.
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

// Computes the values of a block as they are coded, except for the means. Returns the tokens that
// must be rows, as bits.
uint32_t TakeComponents(const StepTile& tile, const StepSource& source, uint32_t token,
                        BlockValues* values) {
  const uint32_t rows = TakeBlock(tile.dtype, source.bytes, source.tokens, tile.dim, token, values);
  if (tile.turning.count != 0) {
    OwnRotations own;
    const Rotations rotations =
        RotationsOf(tile, source.position, source.tokens, token, source.scratch, &own);
    Turn<false>(tile.turning, rotations, values);
  }
  if (tile.has_basis) EnterBasis(tile, values);
  return rows;
}

// Returns the tokens of a block with a magnitude too large for a code, or NaN, as bits.
//   largest  as Blocks::MaxMagnitude() computes it
uint32_t TooLarge(Ints16 largest) {
  const Ints16 bound = Blocks::SetInts(static_cast<int32_t>(FloatBits(kStepCodeMax)));
  return Blocks::Bits(Blocks::Above(largest, bound));
}

// Computes the codes of all blocks. Tokens that cannot be coded become rows.
void QuantizeBlocks(const StepTile& tile, const StepSource& source, StepCoding* coding) {
  for (uint32_t token = 0; token < source.tokens; token += kBlockTokens) {
    const uint32_t block = token / kBlockTokens;
    BlockValues values;
    const uint32_t rows = TakeComponents(tile, source, token, &values);
    Ints16 largest = Blocks::SetInts(0);
    for (uint32_t c = 0; c < tile.dim; ++c) {
      const StepChannel& channel = tile.channels[c];
      const Floats16 mean = Blocks::Set(tile.has_basis ? 0.0F : channel.mean);
      const Floats16 y = Blocks::Sub(Blocks::Load(values.of[c]), mean);
      const Floats16 position = Blocks::Mul(y, Blocks::Set(channel.step_inverse));
      largest = Blocks::MaxMagnitude(largest, position);
      Halves16 codes = Blocks::Pack(Blocks::Round(position));
      if (tile.level != 0) codes = CoarsenCodes(codes, tile.level);
      Blocks::StoreHalves(coding->CodesOf(c, block), codes);
    }
    AddRowsOf(block, rows | TooLarge(largest), source.tokens, &coding->rows);
  }
}

// Returns whether a strip is quantized while it is coded.
bool IsCodedAtOnce(const StepTile& tile, const StepSource& source) {
  const bool can_turn = source.scratch != nullptr && tile.turning.count <= StepScratch::kPairsMax;
  return BytesOf(tile.dtype) == 2 && !tile.has_basis && tile.level == 0 && tile.dim % 2 == 0 &&
         (tile.turning.count == 0 || can_turn);
}

// Loads the elements of a strip for quantization. Tokens with an IsRowValue() become rows.
template <DType kType>
void TakeElements(const StepTile& tile, const StepSource& source, StepCoding* coding) {
  for (uint32_t token = 0; token < source.tokens; token += kBlockTokens) {
    const uint32_t block = token / kBlockTokens;
    uint32_t places =
        TransposeBlock<kType>(source.bytes, source.tokens, tile.dim, token, Groups::kTokenAt,
                              [&](uint32_t channel, Halves16 elements) {
                                Blocks::StoreHalves(coding->CodesOf(channel, block), elements);
                              });
    uint32_t rows = 0;
    for (; places != 0; places &= places - 1) {
      rows |= 1U << Groups::kTokenAt[__builtin_ctz(places)];
    }
    AddRowsOf(block, rows, source.tokens, &coding->rows);
  }
}

// Replaces the elements of two channels at adjacent places with codes. A code that is too large is
// saturated; the code of NaN is the smallest.
//   by  rotations of the first block, in a StepScratch; the other blocks' follow
template <DType kType, bool kTurns>
void QuantizeTwo(const StepTile& tile, const Rotations& by, uint32_t place, uint32_t blocks,
                 StepCoding* coding) {
  const uint32_t channels[2] = {tile.order[place], tile.order[place + 1]};
  const StepChannel& first = tile.channels[channels[0]];
  const StepChannel& second = tile.channels[channels[1]];
  uint8_t* at[2] = {coding->CodesOf(channels[0], 0), coding->CodesOf(channels[1], 0)};
  const float* cosine = kTurns ? by.cosine[place / 2] : nullptr;
  const float* sine = kTurns ? by.sine[place / 2] : nullptr;
  const auto codes_of = [](const StepChannel& channel, Floats16 x) {
    const Floats16 y = Blocks::Sub(x, Blocks::Set(channel.mean));
    return Blocks::Pack(Blocks::Round(Blocks::Mul(y, Blocks::Set(channel.step_inverse))));
  };
  for (uint32_t block = 0; block < blocks; ++block) {
    Floats16 x = Elements16<kType>::Unpack(Blocks::LoadHalves(at[0]));
    Floats16 y = Elements16<kType>::Unpack(Blocks::LoadHalves(at[1]));
    if constexpr (kTurns) {
      TurnPair<false>(Blocks::Load(cosine), Blocks::Load(sine), &x, &y);
      cosine += StepScratch::kPairsMax * kBlockTokens;
      sine += StepScratch::kPairsMax * kBlockTokens;
    }
    Blocks::StoreHalves(at[0], codes_of(first, x));
    Blocks::StoreHalves(at[1], codes_of(second, y));
    at[0] += 2 * kBlockTokens;
    at[1] += 2 * kBlockTokens;
  }
}

// A channel that is being coded.
struct ChannelCoding {
  const CoderLookup* table;
  uint32_t low_bits;
  uint32_t plane_bytes;
  const uint8_t* codes;
  uint32_t* escaped;
  uint8_t* low;  // its low planes
};

// Computes symbols, low planes and escapes of a group of codes, except for tokens that are not
// `coded`.
[[gnu::always_inline]] inline Bytes32 TakeCodes(const ChannelCoding& of, uint64_t group,
                                                uint32_t coded) {
  const uint8_t* codes = of.codes + 2 * kCoderLanes * group;
  const Halves16 first = Blocks::LoadHalves(codes);
  const Halves16 second = Blocks::LoadHalves(codes + 2 * kBlockTokens);
  Bytes32 low_bytes = Strips::Set(0);
  const Bytes32 near = of.low_bits == 0 ? Blocks::SymbolsOf(first, second)
                                        : Blocks::SymbolsOf(first, second, of.low_bits, &low_bytes);
  Bytes32 symbols = Strips::LookUp(of.table->symbol, near);
  const uint32_t escaped = Strips::Bits(Strips::Equal(symbols, Strips::Set(kEscapeSymbol))) & coded;
  of.escaped[group] = escaped;
  if (coded != ~0U) {
    symbols = Strips::Choose(Strips::Spread(coded), symbols, Strips::Set(of.table->likeliest));
  }
  uint8_t* low = of.low + 4 * group;
  for (uint32_t bit = 0; bit < of.low_bits; ++bit, low += of.plane_bytes) {
    const uint32_t word = Blocks::BitsAt(low_bytes, bit) & coded & ~escaped;
    __builtin_memcpy(low, &word, 4);
  }
  return symbols;
}

// Codes a strip without its escapes. Returns the start of the stream, which ends with
// coding->stream. Prefetches the source of the next strip and the memory for the stream, which at
// 2.3 bits is about a sixth of the source.
//   low       address of the low planes
//   quantize  quantize(place) is called before the channels at an even place and the next one are
//             coded
template <typename Quantize>
const uint8_t* PutStepStream(const StepTile& tile, const StepSource& source, StepCoding* coding,
                             uint8_t* low, Quantize quantize) {
  const uint32_t groups = CoderGroups(source.tokens);
  const uint32_t plane_bytes = LowPlaneBytes(source.tokens);
  const uint64_t ask_bytes = uint64_t{source.tokens} * BytesOf(tile.dtype);
  // With V there are two planes: the next strip was already read for its norms, or is prefetched.
  const uint8_t* ahead = source.bytes + (source.v != nullptr ? 2 : 1) * ask_bytes * tile.dim;
  low += uint64_t{plane_bytes} * tile.planes;
  const uint8_t* target = low;
  uint32_t coded[kStripGroups];
  for (uint32_t group = 0; group < groups; ++group) {
    coded[group] = CodedTokens(source.tokens, group, coding->rows);
  }
  Halves32 states = Strips::SetHalves(kCoderStateMin);
  uint8_t* stream = coding->stream + sizeof(coding->stream);
  for (uint32_t place = tile.dim; place-- > 0;) {
    if (place % 2 == 1) quantize(place - 1);
    Strips::Ask(ahead, ask_bytes);
    ahead += ask_bytes;
    Strips::Ask(target, ask_bytes / 6);
    target += ask_bytes / 6;
    const uint32_t c = tile.order[place];
    const StepShape& shape = tile.channels[c].shape;
    low -= uint64_t{plane_bytes} * shape.low_bits;
    const ChannelCoding channel{tile.shared.lookups + shape.table,
                                shape.low_bits,
                                plane_bytes,
                                coding->CodesOf(c, 0),
                                coding->escaped[place],
                                low};
    for (uint64_t group = groups; group-- > 0;) {
      const Bytes32 symbols = TakeCodes(channel, group, coded[group]);
      stream = PutSymbols(*channel.table, symbols, &states, stream);
    }
  }
  stream -= kCoderStatesBytes;
  Strips::PutHalves<false>(stream, states);
  return stream;
}

// Computes the codes and the stream of a strip that is quantized while it is coded.
template <DType kType>
[[gnu::noinline]] const uint8_t* CodeAtOnce(const StepTile& tile, const StepSource& source,
                                            StepCoding* coding, uint8_t* low) {
  TakeElements<kType>(tile, source, coding);
  Rotations by{};
  if (tile.turning.count != 0) {
    by = RotationsOf(tile, source.position, source.tokens, 0, source.scratch, nullptr);
  }
  const uint32_t blocks = BlockCount(source.tokens);
  return PutStepStream(tile, source, coding, low, [&](uint32_t place) {
    if (place < 2 * tile.turning.count) {
      QuantizeTwo<kType, true>(tile, by, place, blocks, coding);
    } else {
      QuantizeTwo<kType, false>(tile, by, place, blocks, coding);
    }
  });
}

[[gnu::noinline]] const uint8_t* QuantizeAndCode(const StepTile& tile, const StepSource& source,
                                                 StepCoding* coding, uint8_t* low) {
  QuantizeBlocks(tile, source, coding);
  return PutStepStream(tile, source, coding, low, [](uint32_t) {});
}

// K and V of a head have the same small norms.
void AddSmallNormsOf(const StepTile& tile, const StepSource& source, StripTokens* rows) {
  StripTokens found = {};
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

// Writes the codes of escapes, in the coding order, from `target` to at most `end`. Returns the end
// of the escapes; null if there may not be enough room.
//   largest  set to the largest magnitude of the escapes
uint8_t* PutEscapes(const StepTile& tile, uint32_t groups, const StepCoding& coding,
                    uint8_t* target, const uint8_t* end, int32_t* largest) {
  *largest = 0;
  for (uint32_t place = 0; place < tile.dim; ++place) {
    for (uint32_t group = 0; group < groups; ++group) {
      uint32_t escaped = coding.escaped[place][group];
      if (escaped == 0) continue;
      if (end - target < 2 * int64_t{kCoderLanes}) return nullptr;
      const uint8_t* codes = coding.codes[tile.order[place]] + 2 * kCoderLanes * group;
      for (; escaped != 0; escaped &= escaped - 1) {
        int16_t code = 0;
        __builtin_memcpy(&code, codes + 2 * Groups::PlaceOf(__builtin_ctz(escaped)), 2);
        const int32_t size = code < 0 ? -code : code;
        *largest = size > *largest ? size : *largest;
        __builtin_memcpy(target, &code, 2);
        target += 2;
      }
    }
  }
  return target;
}

void PutRows(const StepTile& tile, const StepSource& source, const StripTokens& rows, uint8_t* bits,
             uint8_t* positions) {
  const uint64_t row_bytes = uint64_t{tile.dim} * BytesOf(tile.dtype);
  for (uint32_t word = 0; word < 2; ++word) {
    for (uint64_t left = rows.words[word]; left != 0; left &= left - 1) {
      const uint64_t token = 64 * word + static_cast<uint64_t>(__builtin_ctzll(left));
      __builtin_memcpy(bits, source.bytes + token * row_bytes, row_bytes);
      bits += row_bytes;
      *positions++ = static_cast<uint8_t>(token);
    }
  }
}

const uint8_t* CodeStrip(const StepTile& tile, const StepSource& source, bool is_at_once,
                         StepCoding* coding, uint8_t* low) {
  if (!is_at_once) return QuantizeAndCode(tile, source, coding, low);
  return tile.dtype == DType::kFp16 ? CodeAtOnce<DType::kFp16>(tile, source, coding, low)
                                    : CodeAtOnce<DType::kBf16>(tile, source, coding, low);
}

// Returns the strip's size; 0 if it exceeds the room or is not smaller than raw.
uint64_t PutStepStrip(const StepTile& tile, const StepSource& source, StepCoding* coding,
                      uint8_t* target, uint64_t room) {
  const StripShape shape{source.tokens, tile.dim, tile.dtype, false};
  StepStripParts parts = {};
  parts.mode = StepStripMode::kCoded;
  parts.planes = tile.planes;
  PlaceStepParts(shape, &parts);
  if (parts.stream > room) return kLeftToReference;
  if (source.position == 0) coding->rows.Add(0);
  if (source.v != nullptr) AddSmallNormsOf(tile, source, &coding->rows);
  const uint8_t* stream = nullptr;
  for (bool is_at_once = IsCodedAtOnce(tile, source);; is_at_once = false) {
    stream = CodeStrip(tile, source, is_at_once, coding, target + parts.low);
    parts.rows = coding->rows.Count();
    PlaceStepParts(shape, &parts);
    if (parts.stream > room) return kLeftToReference;
    int32_t largest = 0;
    const uint8_t* end = PutEscapes(tile, CoderGroups(source.tokens), *coding,
                                    target + parts.escape, target + room, &largest);
    if (end == nullptr) return kLeftToReference;
    parts.escapes = static_cast<uint32_t>((end - target - parts.escape) / 2);
    // A value too large for a code, whose token is a row, is an escape of at least this size.
    if (!is_at_once || largest < static_cast<int32_t>(kStepCodeMax)) break;
  }
  parts.stream_bytes = static_cast<uint32_t>(coding->stream + sizeof(coding->stream) - stream);
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
  *rows = bytes == 0 ? 0 : coding.rows.Count();
  if (bytes != 0) return bytes;
  return StoreRawStrip({source.tokens, tile.dim, tile.dtype, false}, source.bytes, target, room);
}

}  // namespace
}  // namespace cairn::codecs
