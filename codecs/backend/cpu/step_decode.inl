// SPDX-License-Identifier: Apache-2.0
// decode_step_strips of codecs/backend/backend.h, with the primitives of struct Strips. It decodes
// the symbols of up to four strips alternately, as strip_decode.inl does; step_blocks.inl then
// converts them to elements.
//
// The content of a strip never determines an address that is written. Its stream is decoded from a
// padded copy, because up to 176 bytes past its end may be read before its cursor is checked.

namespace cairn::codecs {
namespace {

constexpr uint32_t kStepDims = kProfileDimMax;  // of all strips at once

// The stream of a strip, and the data of its channels, indexed by their places in the coding order.
template <uint32_t kDims>
struct StepTables {
  alignas(64) uint8_t symbols[kDims][kStripTokens];
  uint32_t escaped[kDims][kStripGroups];
  uint32_t escapes[kDims];
  const uint8_t* low[kDims];
  alignas(64) uint8_t tables[kDims][64];
  uint16_t numbers[kDims];
  uint8_t stream[kDims * kStripTokens + kCoderStatesBytes + kStreamRoom];
};

// Decodes the symbols of strips of one shape. Returns false if a stream is too short.
template <uint32_t kCount, uint32_t kDims>
bool TakeSteps(StepDecoding* strips, StepTables<kDims>* tables) {
  const uint32_t groups = CoderGroups(strips[0].job->tokens);
  const uint32_t dim = strips[0].job->tile->dim;
  Halves32 states[kCount];
  const uint8_t* stream[kCount];
  for (uint32_t s = 0; s < kCount; ++s) {
    states[s] = strips[s].states;
    stream[s] = strips[s].stream;
  }
  bool is_ok = true;
  for (uint32_t place = 0; place < dim && is_ok; ++place) {
    const CoderLookup* table[kCount];
    for (uint32_t s = 0; s < kCount; ++s) {
      const StepTile& tile = *strips[s].job->tile;
      table[s] = tile.shared.lookups + tile.channels[tile.order[place]].shape.table;
    }
    AskBehind(strips, kCount, place, dim);
    for (uint32_t group = 0; group < groups; ++group) {
      uint32_t lacking[kCount];
#pragma GCC unroll 4
      for (uint32_t s = 0; s < kCount; ++s) {
        const Bytes32 symbol = TakeSymbols<true>(*table[s], &states[s]);
        lacking[s] = LackingBits(states[s]);
        Strips::Store(tables[s].symbols[place] + group * kCoderLanes, symbol);
        tables[s].escaped[place][group] =
            Strips::Bits(Strips::Equal(symbol, Strips::Set(kEscapeSymbol))) &
            strips[s].coded[group];
      }
#pragma GCC unroll 4
      for (uint32_t s = 0; s < kCount; ++s) {
        stream[s] = Renormalize(stream[s], lacking[s], &states[s]);
      }
    }
    for (uint32_t s = 0; s < kCount; ++s) {
      for (uint32_t group = groups; group < kStripGroups; ++group) {
        tables[s].escaped[place][group] = 0;
      }
      is_ok &= stream[s] <= strips[s].stream_end;
    }
  }
  for (uint32_t s = 0; s < kCount; ++s) {
    strips[s].states = states[s];
    strips[s].stream = stream[s];
  }
  return is_ok;
}

// Decodes strips of one shape.
template <uint32_t kCount>
bool DecodeSteps(const StepStripJob* const* jobs) {
  StepTables<kStepDims / kCount> tables[kCount];
  StepDecoding strips[kCount];
  bool is_ok = true;
  for (uint32_t s = 0; s < kCount && is_ok; ++s) {
    strips[s].symbols = tables[s].symbols;
    strips[s].escaped = tables[s].escaped;
    strips[s].escapes = tables[s].escapes;
    strips[s].low = tables[s].low;
    strips[s].tables = tables[s].tables;
    is_ok = strips[s].Start(*jobs[s], tables[s].stream);
  }
  is_ok = is_ok && TakeSteps<kCount>(strips, tables);
  for (uint32_t s = 0; s < kCount && is_ok; ++s) {
    is_ok = strips[s].IsEnded() && IndexChannels(strips + s, tables[s].numbers);
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
    if (job.parts.mode == StepStripMode::kRaw || !job.tile->shared.has_exact_lookups) {
      is_ok = reference::DecodeStepStrip(job);
      is_done[i] = true;
      continue;
    }
    const StepStripJob* alike[kStripsAtOnce];
    uint32_t found = 0;
    for (uint32_t other = i; other < count; ++other) {
      const StepStripJob& o = jobs[other];
      if (is_done[other] || o.parts.mode == StepStripMode::kRaw ||
          !o.tile->shared.has_exact_lookups || o.tokens != job.tokens ||
          o.tile->dim != job.tile->dim) {
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
