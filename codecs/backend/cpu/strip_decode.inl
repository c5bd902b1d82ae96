// SPDX-License-Identifier: Apache-2.0
// decode_strips of codecs/backend/backend.h, with the primitives of struct Strips.
//
// One iteration of lanes32 decodes 32 lanes of one channel. The dependency chain between states
// takes longer than the work, so up to four strips of a shape are decoded alternately. Exponents of
// 32 channels are collected, then transposed and joined with the other fields, token by token.
//
// The content of a strip never determines an address that is written. There are two read cursors.
// The cursor of the stream is checked once per channel. It may then be up to 136 bytes past the
// stream's end, which is still inside the plane of at least 256 bytes, or inside the low bits of
// 8-bit floats, of at least 192. The cursor of the escapes is checked before each read.

namespace cairn::codecs {
namespace {

// A strip that is being decoded. The escapes of a panel, in the coding order: their bits and their
// addresses.
struct StripDecoding {
  const StripJob* job;
  Halves32 states;
  const uint8_t* stream;
  const uint8_t* stream_end;
  uint32_t escapes;  // read
  uint32_t escaped_count;
  uint32_t escaped_bits[kPanelWide * kStripTokens / kCoderLanes];
  uint16_t escaped_at[kPanelWide * kStripTokens / kCoderLanes];
  PanelExponents exponents;

  // Returns false if a first state is invalid.
  [[nodiscard]] bool Start(const StripJob& of) {
    job = &of;
    states = Strips::LoadHalves(of.strip + of.parts.coded);
    stream = of.strip + of.parts.coded + kCoderStatesBytes;
    stream_end = of.strip + of.parts.coded + of.parts.stream_bytes;
    escapes = 0;
    return AreStates(states);
  }
  [[nodiscard]] bool IsEnded() const {
    return AreLastStates(states) && stream == stream_end && escapes == job->parts.escapes;
  }

  // Puts the escape bytes into the panel. Returns false if there are too few.
  [[nodiscard]] bool TakeEscapes() {
    const uint8_t* bytes = job->strip + job->parts.escape;
    for (uint32_t i = 0; i < escaped_count; ++i) {
      for (uint32_t bits = escaped_bits[i]; bits != 0; bits &= bits - 1) {
        if (escapes == job->parts.escapes) return false;
        (&exponents.of[0][0])[escaped_at[i] + __builtin_ctz(bits)] = bytes[escapes++];
      }
    }
    return true;
  }
};

// Decodes `channels` channels of each strip into its exponents. Returns false if a stream is too
// short.
template <uint32_t kCount>
bool DecodePanel(StripDecoding* strips, uint32_t channel_first, uint32_t channels) {
  const uint32_t tokens = strips[0].job->shape.tokens;
  const uint32_t groups = CoderGroups(tokens);
  Halves32 states[kCount];
  const uint8_t* stream[kCount];
  uint32_t escaped[kCount] = {};
  for (uint32_t s = 0; s < kCount; ++s) {
    states[s] = strips[s].states;
    stream[s] = strips[s].stream;
  }
  bool is_ok = true;
  for (uint32_t c = 0; c < channels && is_ok; ++c) {
    const CoderLookup* table[kCount];
    Bytes32 top[kCount];
    for (uint32_t s = 0; s < kCount; ++s) {
      const uint32_t par = strips[s].job->strip[strip::kPar + channel_first + c];
      table[s] = &kExponentLookups.of[par >> 4];
      top[s] = Strips::Set(TopOf(strips[s].job->parts.top, par));
    }
    AskBehind(strips, kCount, channel_first + c, strips[0].job->shape.dim);
    for (uint32_t group = 0; group < groups; ++group) {
      const uint32_t there = TokensThere(tokens, group);
      uint32_t lacking[kCount];
#pragma GCC unroll 4
      for (uint32_t s = 0; s < kCount; ++s) {
        const Bytes32 symbol = TakeSymbols<false>(*table[s], &states[s]);
        lacking[s] = LackingBits(states[s]);
        Strips::Store(strips[s].exponents.of[c] + group * kCoderLanes, Strips::Sub(top[s], symbol));
        const uint32_t bits =
            Strips::Bits(Strips::Equal(symbol, Strips::Set(kEscapeSymbol))) & there;
        strips[s].escaped_bits[escaped[s]] = bits;
        strips[s].escaped_at[escaped[s]] =
            static_cast<uint16_t>(c * kStripTokens + group * kCoderLanes);
        escaped[s] += bits != 0 ? 1 : 0;
      }
#pragma GCC unroll 4
      for (uint32_t s = 0; s < kCount; ++s) {
        stream[s] = Renormalize(stream[s], lacking[s], &states[s]);
      }
    }
    for (uint32_t s = 0; s < kCount; ++s) is_ok &= stream[s] <= strips[s].stream_end;
  }
  for (uint32_t s = 0; s < kCount; ++s) {
    strips[s].states = states[s];
    strips[s].stream = stream[s];
    strips[s].escaped_count = escaped[s];
  }
  return is_ok;
}

// Returns the plane bytes of 32 elements; nothing where the dtype has none.
template <typename Type>
Bytes32 PlaneAt(const StripJob& job, uint64_t index) {
  if constexpr (Type::kHasPlane) return Strips::Load(job.strip + job.parts.plane + index);
  return Strips::Set(0);
}

// Writes the elements of a panel of 32 channels.
template <typename Type, bool kStreams>
void JoinPanel(const StripJob& job, const PanelExponents& panel, uint32_t channel_first) {
  const StripShape& shape = job.shape;
  for (uint32_t token = 0; token < shape.tokens; token += 16) {
    Bytes32 rows[16];
    for (uint32_t i = 0; i < 16; ++i) {
      rows[i] = Strips::LoadTwo(panel.of[i] + token, panel.of[16 + i] + token);
    }
    Strips::Transpose(rows);
    const uint32_t count = shape.tokens - token < 16 ? shape.tokens - token : 16;
    uint64_t index = uint64_t{token} * shape.dim + channel_first;
    for (uint32_t i = 0; i < count; ++i, index += shape.dim) {
      Type::template Join<kStreams>(rows[i], PlaneAt<Type>(job, index), job.strip + job.parts.low,
                                    index, job.target + index * Type::kBytes);
    }
  }
}

// The same for any number of channels, and for low bits at any offset.
void JoinPlainly(const StripJob& job, const PanelExponents& panel, uint32_t channel_first,
                 uint32_t channels) {
  for (uint32_t token = 0; token < job.shape.tokens; ++token) {
    const uint64_t index = uint64_t{token} * job.shape.dim + channel_first;
    for (uint32_t c = 0; c < channels; ++c) {
      reference::JoinElement(job, index + c, panel.of[c][token]);
    }
  }
}

// Returns whether rows of elements, or all rows together, can be written in whole cache lines. A
// line of which a part is streamed, and the rest later, costs several times an ordinary store.
template <typename Type>
bool IsStreamed(const StripJob& job, uint64_t row_elements) {
  return job.is_streamed && HasLines(row_elements * Type::kBytes, job.target);
}

void JoinAny(const StripJob& job, const PanelExponents& panel, uint32_t channel_first,
             uint32_t channels) {
  const bool has_runs = HasLowRuns(job.shape.dtype) || job.shape.dtype == DType::kFp8E4m3;
  if (channels < kPanelWide || (has_runs && job.shape.dim % kChunk != 0)) {
    JoinPlainly(job, panel, channel_first, channels);
    return;
  }
  WithElements32(job.shape.dtype, [&]<typename Type>(Type) {
    constexpr bool kFillsLines = kPanelWide * Type::kBytes % kLineBytes == 0;
    if (kFillsLines && IsStreamed<Type>(job, job.shape.dim)) {
      JoinPanel<Type, kFillsLines>(job, panel, channel_first);
    } else {
      JoinPanel<Type, false>(job, panel, channel_first);
    }
  });
}

// Decodes strips of one shape, in mode lanes32.
template <uint32_t kCount>
bool DecodeLanes32(const StripJob* const* jobs) {
  StripDecoding strips[kCount];
  bool is_ok = true;
  for (uint32_t s = 0; s < kCount; ++s) is_ok &= strips[s].Start(*jobs[s]);
  const uint32_t dim = jobs[0]->shape.dim;
  for (uint32_t first = 0; first < dim && is_ok; first += kPanelWide) {
    const uint32_t channels = dim - first < kPanelWide ? dim - first : kPanelWide;
    is_ok = DecodePanel<kCount>(strips, first, channels);
    for (uint32_t s = 0; s < kCount && is_ok; ++s) {
      is_ok = strips[s].TakeEscapes();
      JoinAny(*jobs[s], strips[s].exponents, first, channels);
    }
  }
  for (const StripDecoding& strip : strips) is_ok = is_ok && strip.IsEnded();
  return is_ok;
}

// ---- Planes ----

constexpr uint32_t kRunsAtOnce = 16;
constexpr uint32_t kElementsAtOnce = kRunsAtOnce * kRun;

// The nibbles and raw bytes of a strip, as they are consumed.
struct PlanesEscapes {
  const StripJob& job;
  uint32_t escapes = 0;
  uint32_t raws = 0;

  // Puts the escapes of a run into its exponents, at the codes of 7. Returns false if there are too
  // few.
  [[nodiscard]] bool TakeRun(uint64_t bits, uint8_t* exponents) {
    for (; bits != 0; bits &= bits - 1) {
      if (escapes == job.parts.escapes) return false;
      const uint8_t pair = job.strip[job.parts.escape + escapes / 2];
      const uint32_t nibble = pair >> (escapes % 2 * 4) & 15;
      ++escapes;
      uint32_t distance = 0;
      if (nibble != kRawNibble) {
        distance = DistanceOf(nibble);
      } else {
        if (raws == job.parts.raws) return false;
        distance = job.strip[job.parts.raw + raws++];
      }
      uint8_t& exponent = exponents[__builtin_ctzll(bits)];
      exponent = static_cast<uint8_t>(exponent + kPlanesReach - distance);
    }
    return true;
  }
};

template <typename Type, bool kStreams>
bool DecodePlanesAs(const StripJob& job) {
  const Tops tops(job.shape, job.parts.top, job.strip + strip::kPar);
  const uint64_t elements = ElementCount(job.shape);
  const uint8_t* runs = job.strip + job.parts.coded;
  PlanesEscapes escapes{job};
  uint32_t channel = 0;
  alignas(32) uint8_t exponents[kElementsAtOnce];
  for (uint64_t first = 0; first < elements; first += kElementsAtOnce) {
    const uint64_t rest = elements - first;
    const uint32_t count = rest < kElementsAtOnce ? static_cast<uint32_t>(rest) : kElementsAtOnce;
    // The strip after this one is most likely next. It has three bytes for two elements.
    Strips::Ask(job.behind + first * 3 / 2, uint64_t{count} * 3 / 2);
    for (uint32_t i = 0; i < count; i += kChunk) {
      const Bytes32 codes = Elements32<DType::kFp16>::LoadRunCodes(runs, first + i);
      Strips::Store(exponents + i, Strips::Sub(Strips::Load(tops.of + channel), codes));
      channel += kChunk;
      if (channel >= job.shape.dim) channel %= job.shape.dim;
    }
    for (uint32_t i = 0; i < count; i += kRun) {
      uint64_t words[3];
      __builtin_memcpy(words, runs + (first + i) / kRun * kRunBytes, kRunBytes);
      const uint64_t there = count - i < kRun ? (uint64_t{1} << (count - i)) - 1 : ~uint64_t{0};
      if (!escapes.TakeRun(words[0] & words[1] & words[2] & there, exponents + i)) return false;
    }
    const uint32_t whole = count / kChunk * kChunk;
    for (uint32_t i = 0; i < whole; i += kChunk) {
      const uint64_t index = first + i;
      Type::template Join<kStreams>(Strips::Load(exponents + i), PlaneAt<Type>(job, index),
                                    job.strip + job.parts.low, index,
                                    job.target + index * Type::kBytes);
    }
    for (uint32_t i = whole; i < count; ++i) reference::JoinElement(job, first + i, exponents[i]);
  }
  return escapes.escapes == job.parts.escapes && escapes.raws == job.parts.raws;
}

bool DecodePlanes(const StripJob& job) {
  return WithElements32(job.shape.dtype, [&]<typename Type>(Type) {
    return IsStreamed<Type>(job, kChunk) ? DecodePlanesAs<Type, true>(job)
                                         : DecodePlanesAs<Type, false>(job);
  });
}

// ---- All modes ----

bool DecodeAlike(const StripJob* const* jobs, uint32_t count) {
  switch (count) {
    case 1:
      return DecodeLanes32<1>(jobs);
    case 2:
      return DecodeLanes32<2>(jobs);
    case 3:
      return DecodeLanes32<2>(jobs) && DecodeLanes32<1>(jobs + 2);
    default:
      return DecodeLanes32<4>(jobs);
  }
}

bool IsAlike(const StripJob& a, const StripJob& b) {
  return b.parts.mode == StripMode::kLanes32 && a.shape.dim == b.shape.dim &&
         a.shape.tokens == b.shape.tokens && a.shape.dtype == b.shape.dtype;
}

bool DecodeStrips(const StripJob* jobs, uint32_t count) {
  bool is_ok = true;
  bool is_done[kStripsAtOnce] = {};
  for (uint32_t i = 0; i < count; ++i) {
    if (is_done[i]) continue;
    const StripJob& job = jobs[i];
    if (job.parts.mode == StripMode::kRaw) {
      __builtin_memcpy(job.target, job.strip + job.parts.coded, job.parts.end - job.parts.coded);
    } else if (job.parts.mode == StripMode::kPlanes) {
      is_ok &= DecodePlanes(job);
    } else {
      const StripJob* alike[kStripsAtOnce];
      uint32_t found = 0;
      for (uint32_t other = i; other < count; ++other) {
        if (is_done[other] || !IsAlike(job, jobs[other])) continue;
        alike[found++] = jobs + other;
        is_done[other] = true;
      }
      is_ok &= DecodeAlike(alike, found);
    }
  }
  if (jobs[0].is_streamed) Strips::EndStreams();
  return is_ok;
}

}  // namespace
}  // namespace cairn::codecs
