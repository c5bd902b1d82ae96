// SPDX-License-Identifier: Apache-2.0
// decode_step_strips of codecs/backend.h in the words of struct Strips and struct Blocks.
//
// Symbols of up to four strips in turns, as strip_decode.inl does; then values, a block of tokens
// at a time: dequantized, turned, rounded, transposed.
//
// What a strip holds decides no address that is written. Its stream is decoded from a copy with
// room behind it, since it may be read up to 176 bytes past its end before its cursor is compared.

namespace cairn::codecs {
namespace {

constexpr uint32_t kStepDims = kProfileDimMax;  // of all strips at once
constexpr uint32_t kStreamRoom = 192;           // that may be read past the end of a stream
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
  Floats16* values;                   // of a channel's symbols, where it has no low bits

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

// Decodes the symbols of strips of one shape. False where a stream runs out.
template <uint32_t kCount>
bool TakeSteps(StepDecoding* strips) {
  const uint32_t groups = CoderGroups(strips[0].job->tokens);
  Halves32 states[kCount];
  const uint8_t* stream[kCount];
  for (uint32_t s = 0; s < kCount; ++s) {
    states[s] = strips[s].states;
    stream[s] = strips[s].stream;
  }
  bool is_ok = true;
  for (uint32_t i = 0; i < strips[0].job->tile->dim && is_ok; ++i) {
    const CoderLookup* table[kCount];
    uint32_t channel[kCount];
    for (uint32_t s = 0; s < kCount; ++s) {
      const StepTile& tile = *strips[s].job->tile;
      channel[s] = tile.order[i];
      table[s] = tile.lookups + tile.channels[channel[s]].shape.table;
    }
    for (uint32_t group = 0; group < groups; ++group) {
      for (uint32_t s = 0; s < kCount; ++s) {
        const Bytes32 symbol = TakeSymbols<true>(*table[s], &states[s]);
        stream[s] = Renormalize(stream[s], &states[s]);
        Strips::Store(strips[s].symbols[channel[s]] + group * kCoderLanes, symbol);
        strips[s].escaped[channel[s]][group] =
            Strips::Bits(Strips::Equal(symbol, Strips::Set(kEscapeSymbol))) &
            strips[s].coded[group];
      }
    }
    for (uint32_t s = 0; s < kCount; ++s) is_ok &= stream[s] <= strips[s].stream_end;
  }
  for (uint32_t s = 0; s < kCount; ++s) {
    strips[s].states = states[s];
    strips[s].stream = stream[s];
  }
  return is_ok;
}

// The values of a channel's 16 symbols, of which the last is none.
Floats16 ValuesOf(const StepTile& tile, const StepChannel& channel) {
  const Ints16 code = Blocks::Sub(Blocks::Indices(), Blocks::SetInts(7));
  const Ints16 sign = Blocks::Left<31>(Blocks::Right<31>(code));
  const auto is = [&](int32_t magnitude) {
    return Blocks::Or(Blocks::Equal(code, Blocks::SetInts(magnitude)),
                      Blocks::Equal(code, Blocks::SetInts(-magnitude)));
  };
  const auto offset_of = [&](uint32_t i) {
    return Blocks::BitsOf(Blocks::Set(channel.offsets[i]));
  };
  const Ints16 offset =
      Blocks::Or(Blocks::And(is(1), offset_of(0)), Blocks::And(is(2), offset_of(1)));
  const Floats16 value =
      Blocks::Add(Blocks::ToFloats(code), Blocks::OfBits(Blocks::Xor(offset, sign)));
  const Floats16 scaled = Blocks::Mul(value, Blocks::Set(channel.step));
  return tile.has_basis ? scaled : Blocks::Add(scaled, Blocks::Set(channel.mean));
}

// Where the escapes and low bits of each channel are, and its values. False where escapes are not
// as many as stated.
bool IndexChannels(StepDecoding* strip) {
  const StepStripJob& job = *strip->job;
  const uint32_t groups = CoderGroups(job.tokens);
  uint32_t escapes = 0;
  const uint8_t* low = job.strip + job.parts.low;
  for (uint32_t i = 0; i < job.tile->dim; ++i) {
    const uint32_t c = job.tile->order[i];
    const StepChannel& channel = job.tile->channels[c];
    strip->escapes[c] = escapes;
    strip->low[c] = low;
    for (uint32_t group = 0; group < groups; ++group) {
      escapes += static_cast<uint32_t>(__builtin_popcount(strip->escaped[c][group]));
    }
    low += uint64_t{channel.shape.low_bits} * LowPlaneBytes(job.tokens);
    if (channel.shape.low_bits == 0) strip->values[c] = ValuesOf(*job.tile, channel);
  }
  return escapes == job.parts.escapes;
}

// Codes with low bits to values. There are no offsets then.
Floats16 WideValues(const StepDecoding& strip, uint32_t c, uint32_t block, Ints16 symbols) {
  const StepTile& tile = *strip.job->tile;
  const StepChannel& channel = tile.channels[c];
  const uint32_t low_bits = channel.shape.low_bits;
  Ints16 code = Blocks::Left(Blocks::Sub(symbols, Blocks::SetInts(7)), low_bits);
  code = Blocks::Sub(code, Blocks::SetInts(StepHalf(low_bits)));
  const uint8_t* plane = strip.low[c] + 2 * block;
  for (uint32_t bit = 0; bit < low_bits; ++bit, plane += LowPlaneBytes(strip.job->tokens)) {
    uint16_t bits = 0;
    __builtin_memcpy(&bits, plane, 2);
    code = Blocks::Add(code, Blocks::And(Blocks::Spread(bits), Blocks::SetInts(1 << bit)));
  }
  const Floats16 scaled = Blocks::Mul(Blocks::ToFloats(code), Blocks::Set(channel.step));
  return tile.has_basis ? scaled : Blocks::Add(scaled, Blocks::Set(channel.mean));
}

// The values of a channel's escapes in a block.
void TakeBlockEscapes(const StepDecoding& strip, uint32_t c, uint32_t bits, float* values) {
  const StepStripJob& job = *strip.job;
  const StepChannel& channel = job.tile->channels[c];
  for (; bits != 0; bits &= bits - 1) {
    int16_t code = 0;
    const uint64_t index = strip.escapes[c]++;
    __builtin_memcpy(&code, job.strip + job.parts.escape + 2 * index, 2);
    const float value = StepValue(channel, code);
    values[__builtin_ctz(bits)] = job.tile->has_basis ? value : value + channel.mean;
  }
}

void Dequantize(const StepDecoding& strip, uint32_t block, BlockValues* values) {
  const StepTile& tile = *strip.job->tile;
  for (uint32_t c = 0; c < tile.dim; ++c) {
    const Ints16 symbols = Blocks::FromBytes(strip.symbols[c] + block * kBlockTokens);
    const bool is_wide = tile.channels[c].shape.low_bits != 0;
    Blocks::Store(values->of[c], is_wide ? WideValues(strip, c, block, symbols)
                                         : Blocks::LookUp(strip.values[c], symbols));
    const uint32_t escaped = strip.escaped[c][block / 2] >> (block % 2 * 16) & 0xFFFF;
    if (escaped != 0) TakeBlockEscapes(strip, c, escaped, values->of[c]);
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

bool IsStreamed(const StepStripJob& job) {
  const uint64_t row_bytes = uint64_t{job.tile->dim} * BytesOf(job.tile->dtype);
  return job.is_streamed && job.tile->dtype != DType::kFp32 && row_bytes % 64 == 0 &&
         reinterpret_cast<uintptr_t>(job.target) % 64 == 0;
}

// All of strips of one shape once their symbols are known.
void PutStrips(StepDecoding* strips, uint32_t count) {
  BlockValues values;
  OwnRotations own;
  const uint32_t tokens = strips[0].job->tokens;
  for (uint32_t token = 0; token < tokens; token += kBlockTokens) {
    for (uint32_t s = 0; s < count; ++s) {
      const StepStripJob& job = *strips[s].job;
      const StepTile& tile = *job.tile;
      Dequantize(strips[s], token / kBlockTokens, &values);
      if (tile.has_basis) LeaveBasis(tile, &values);
      if (tile.turning.count != 0) {
        const Rotations rotations =
            RotationsOf(tile, job.position, tokens, token, job.scratch, &own);
        Turn<true>(tile.turning, rotations, &values);
      }
      if (IsStreamed(job)) {
        PutBlock<true>(tile.dtype, values, tokens, tile.dim, token, job.target);
      } else {
        PutBlock<false>(tile.dtype, values, tokens, tile.dim, token, job.target);
      }
    }
  }
}

// What is of channels, of all strips at once; and their streams.
struct StepTables {
  alignas(64) uint8_t symbols[kStepDims][kStripTokens];
  uint32_t escaped[kStepDims][kStripGroups];
  uint32_t escapes[kStepDims];
  const uint8_t* low[kStepDims];
  Floats16 values[kStepDims];
  uint8_t streams[kStepDims * kStripTokens + kStripsAtOnce * (kCoderStatesBytes + kStreamRoom)];
};

// Strips of one shape.
template <uint32_t kCount>
bool DecodeSteps(const StepStripJob* const* jobs) {
  StepTables tables;
  StepDecoding strips[kCount];
  const uint32_t dim = jobs[0]->tile->dim;
  bool is_ok = true;
  for (uint32_t s = 0; s < kCount && is_ok; ++s) {
    const uint32_t first = s * dim;
    strips[s].symbols = tables.symbols + first;
    strips[s].escaped = tables.escaped + first;
    strips[s].escapes = tables.escapes + first;
    strips[s].low = tables.low + first;
    strips[s].values = tables.values + first;
    const uint64_t room = uint64_t{dim} * kStripTokens + kCoderStatesBytes + kStreamRoom;
    is_ok = strips[s].Start(*jobs[s], tables.streams + s * room);
  }
  is_ok = is_ok && TakeSteps<kCount>(strips);
  for (uint32_t s = 0; s < kCount && is_ok; ++s) {
    is_ok = strips[s].IsEnded() && IndexChannels(strips + s);
  }
  if (is_ok) PutStrips(strips, kCount);
  return is_ok;
}

bool DecodeStepsAlike(const StepStripJob* const* jobs, uint32_t count) {
  const uint32_t at_once = kStepDims / jobs[0]->tile->dim;
  if (count >= 4 && at_once >= 4) return DecodeSteps<4>(jobs);
  uint32_t done = 0;
  bool is_ok = true;
  for (; count - done >= 2 && at_once >= 2; done += 2) is_ok = is_ok && DecodeSteps<2>(jobs + done);
  for (; done < count; ++done) is_ok = is_ok && DecodeSteps<1>(jobs + done);
  return is_ok;
}

bool DecodeStepStrips(const StepStripJob* jobs, uint32_t count) {
  bool is_ok = true;
  bool is_done[kStripsAtOnce] = {};
  for (uint32_t i = 0; i < count && is_ok; ++i) {
    const StepStripJob& job = jobs[i];
    if (is_done[i]) continue;
    if (job.parts.mode == StepStripMode::kRaw || !job.tile->has_exact_lookups) {
      is_ok = reference::DecodeStepStrip(job);
      is_done[i] = true;
      continue;
    }
    const StepStripJob* alike[kStripsAtOnce];
    uint32_t found = 0;
    for (uint32_t other = i; other < count; ++other) {
      const StepStripJob& o = jobs[other];
      if (is_done[other] || o.parts.mode == StepStripMode::kRaw || !o.tile->has_exact_lookups ||
          o.tokens != job.tokens || o.tile->dim != job.tile->dim) {
        continue;
      }
      alike[found++] = &o;
      is_done[other] = true;
    }
    is_ok = DecodeStepsAlike(alike, found);
    if (job.is_streamed) Strips::EndStreams();
    for (uint32_t k = 0; k < found && is_ok; ++k) reference::StoreStepRows(*alike[k]);
  }
  return is_ok;
}

}  // namespace
}  // namespace cairn::codecs
