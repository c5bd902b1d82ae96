// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes attention over bf16 or fp16 source elements, for heads of 64 or 128 channels. The
// elements are in raw tiles, or in tails: pages of the engine's cache. As in attend_affine.h, a
// warp processes 32 tokens at a time, from every fourth part of its block's work item. Write the
// number of a lane as 4 g + p, where g is 0 to 7 and p is 0 to 3. Matrix products distribute their
// operands to lanes by g and p:
//
// - K: g selects one of 8 tokens, p selects 8 channels of each 32.
// - V: p selects two of 8 tokens, g selects 8 channels of each 64.
// - queries: g selects the rows g and g + 8, p selects the same channels as for K.

#include <cstdint>

#include "kernels/body/affine_decode.h"
#include "kernels/body/attend_any.h"
#include "kernels/body/attend_sums.h"

namespace cairn::kernels {

// A step: the data of 32 tokens, in shared memory. Its pieces of 16 bytes are placed so that lanes
// that load at the same time use different banks.
template <uint32_t kOfDim>
struct PlainStep {
  static constexpr uint32_t kDim = kOfDim, kRowBytes = 2 * kDim, kPieces = kRowBytes / 16;
  alignas(16) uint8_t k[kStepTokens * kRowBytes];
  alignas(16) uint8_t v[kStepTokens * kRowBytes];
  const uint8_t* places[2][kStepTokens];  // addresses of the tokens' K and V; null: no such token
  uint32_t there;                         // bit i is set if token i exists
  int32_t end;                            // end of the tail, or of the part
  uint32_t is_tail;
};

template <uint32_t kDim>
struct PlainAttendShared {
  static constexpr uint32_t kSteps = 2;     // copied at a time; 3 do not fit into a block on sm_80
  U32x4 queries[2][kDim / 32][kWarpLanes];  // rows g and g + 8; each lane reads a quarter of them
  float factors[kAttendRows];               // they convert a row's sums to scores
  float largest[kAttendWarps][kAttendRows];
  float sums[kAttendWarps][kAttendRows];
  union {
    PlainStep<kDim> steps[kAttendWarps][kSteps];
    float outputs[kAttendWarps][kAttendRows][kDim];
  };
};

template <uint32_t kDim>
CAIRN_DEVICE uint32_t PlainKAt(uint32_t token, uint32_t piece) {
  return token * PlainStep<kDim>::kRowBytes + 16 * (piece ^ (token & 1) << 2);
}
template <uint32_t kDim>
CAIRN_DEVICE uint32_t PlainVAt(uint32_t token, uint32_t piece) {
  return token * PlainStep<kDim>::kRowBytes + 16 * (piece ^ (token & 6));
}

// Returns the address of a token's elements. Returns null if the token does not exist, and sets
// *fault if its page is invalid.
template <uint32_t kDim>
CAIRN_DEVICE const uint8_t* PlainPlace(const AttendReader& reader, const AttendPart& part,
                                       const TileTask& task, uint32_t token, Fault* fault) {
  if (!part.is_tail) return task.source + (task.token_first + token) * PlainStep<kDim>::kRowBytes;
  return PlaceOf(reader.Plane(task.plane), task.target, task.token_first + token, fault);
}

// Starts to copy up to 32 tokens of a part; `token` is the first of them.
template <uint32_t kDim>
CAIRN_DEVICE void AskForPlain(const AttendArgs& args, const AttendReader& reader,
                              const AttendPart& part, const AttendQueries& queries, uint32_t token,
                              PlainStep<kDim>* step) {
  constexpr uint32_t kPieces = PlainStep<kDim>::kPieces, kRows = kWarpLanes / kPieces;  // per load
  const uint32_t lane = ThreadIndex() % kWarpLanes;
  Fault fault = Fault::kNone;
  const uint32_t tail_tokens = part.is_tail ? TailTokens(queries, &fault) : 0;
  // The last row may attend to the most tokens.
  const uint32_t seen = TokensSeen(queries, part, tail_tokens, queries.rows - 1);
  const uint8_t* k = nullptr;
  const uint8_t* v = nullptr;
  if (token + lane < seen) {
    k = PlainPlace<kDim>(reader, part, part.k, token + lane, &fault);
    v = PlainPlace<kDim>(reader, part, part.v, token + lane, &fault);
  }
  if (fault != Fault::kNone) AtomicMax(args.status + part.status, static_cast<uint32_t>(fault));
  step->places[0][lane] = k;
  step->places[1][lane] = v;
  const uint32_t there = Ballot(k != nullptr && v != nullptr);
  if (lane == 0) {
    step->there = there;
    const uint32_t end = part.is_tail ? tail_tokens - part.k.token_first : part.k.token_count;
    step->end = static_cast<int32_t>(end - token);
    step->is_tail = part.is_tail ? 1 : 0;
  }
  SyncWarp();
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kPieces; ++i) {
    const uint32_t row = kRows * i + lane / kPieces, piece = lane % kPieces;
    if ((there >> row & 1) != 0) {
      CopyAsync16(step->k + PlainKAt<kDim>(row, piece), step->places[0][row] + 16 * piece);
      CopyAsync16(step->v + PlainVAt<kDim>(row, piece), step->places[1][row] + 16 * piece);
    } else {  // the token has no weight, but must not be a NaN
      *reinterpret_cast<U32x4*>(step->v + PlainVAt<kDim>(row, piece)) = {0, 0, 0, 0};
    }
  }
}

// Starts the copies of the parts of a warp, 32 tokens at a time.
struct PlainAsker {
  uint32_t index, end;  // the next part, and the end of the parts
  uint32_t token;

  [[nodiscard]] CAIRN_DEVICE_MEMBER bool IsOver() const { return index >= end; }
  // REQUIRES: !IsOver().
  template <uint32_t kDim>
  CAIRN_DEVICE_MEMBER void Ask(const AttendArgs& args, const AttendReader& reader,
                               const AttendQueries& queries, PlainStep<kDim>* step) {
    const auto part = reader.Part<AttendPart>(index);
    AskForPlain(args, reader, part, queries, token, step);
    token += kStepTokens;
    if (token < part.k.token_count) return;
    token = 0;
    index += kAttendWarps;
  }
};

template <codecs::DType kDType>
CAIRN_DEVICE void MultiplyPlain(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kDType == codecs::DType::kBf16) {
    MmaBf16(d, a, b);
  } else {
    MmaHalves(d, a, b);
  }
}

// Computes the scores of 8 tokens; `first` is the first of them.
template <codecs::DType kDType, uint32_t kDim>
CAIRN_DEVICE void ScorePlain(const PlainStep<kDim>& step, uint32_t first,
                             const U32x4 (&queries)[2][kDim / 32], float (&scores)[4]) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 4; ++i) scores[i] = 0.0F;
  CAIRN_UNROLL
  for (uint32_t i = 0; i < kDim / 32; ++i) {
    const auto k = *reinterpret_cast<const U32x4*>(step.k + PlainKAt<kDim>(first + g, 4 * i + p));
    const U32x4& a = queries[0][i];
    const U32x4& b = queries[1][i];
    MultiplyPlain<kDType>(scores, {a.x, b.x, a.y, b.y}, {k.x, k.y});
    MultiplyPlain<kDType>(scores, {a.z, b.z, a.w, b.w}, {k.z, k.w});
  }
}

// Masks the scores of tokens that a row may not attend to.
//   behind  number of query tokens that follow the token of the rows g and g + 8
template <uint32_t kDim>
CAIRN_DEVICE void MaskPlain(const PlainStep<kDim>& step, const int32_t (&behind)[2],
                            float (&scores)[4][4]) {
  const uint32_t p = ThreadIndex() % 4;
  const int32_t ends[2] = {step.end - (step.is_tail != 0 ? behind[0] : 0),
                           step.end - (step.is_tail != 0 ? behind[1] : 0)};
  CAIRN_UNROLL
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t token = 8 * (i / 4) + 2 * p + i % 2;
    const bool is_seen =
        (step.there >> token & 1) != 0 && static_cast<int32_t>(token) < ends[i % 4 / 2];
    if (!is_seen) scores[i / 4][i % 4] = codecs::BitsFloat(kMinusInfinityBits);
  }
}

// Adds the outputs of 16 tokens; `first` is the first of them. `weights` has the weights of the
// first 8 tokens and then of the other 8.
template <codecs::DType kDType, uint32_t kDim>
CAIRN_DEVICE void AddPlain(const PlainStep<kDim>& step, uint32_t first,
                           const float (&weights)[2][4], LaneSums<kDim / kAttendVGroup>* sums) {
  constexpr uint32_t kOnes = kDType == codecs::DType::kBf16 ? 0x3F803F80U : 0x3C003C00U;
  const uint32_t lane = ThreadIndex() % kWarpLanes, g = lane / 4, p = lane % 4;
  const uint32_t pairs[4] = {PackPair<kDType>(weights[0][0], weights[0][1]),
                             PackPair<kDType>(weights[0][2], weights[0][3]),
                             PackPair<kDType>(weights[1][0], weights[1][1]),
                             PackPair<kDType>(weights[1][2], weights[1][3])};
  const uint32_t ones = g == 7 ? kOnes : 0;
  MultiplyPlain<kDType>(sums->extras, pairs, {ones, ones});
  CAIRN_UNROLL
  for (uint32_t group = 0; group < kDim / kAttendVGroup; ++group) {
    uint32_t of[2][8];  // channels, each word for two tokens
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t token = first + 8 * i + 2 * p;
      const auto even =
          *reinterpret_cast<const U32x4*>(step.v + PlainVAt<kDim>(token, 8 * group + g));
      const auto odd =
          *reinterpret_cast<const U32x4*>(step.v + PlainVAt<kDim>(token + 1, 8 * group + g));
      const uint32_t low[4] = {even.x, even.y, even.z, even.w};
      const uint32_t high[4] = {odd.x, odd.y, odd.z, odd.w};
      CAIRN_UNROLL
      for (uint32_t j = 0; j < 8; ++j) {
        of[i][j] = PermuteBytes(low[j / 2], high[j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
    CAIRN_UNROLL
    for (uint32_t j = 0; j < 8; ++j) {
      MultiplyPlain<kDType>(sums->outputs[group][j], pairs, {of[0][j], of[1][j]});
    }
  }
}

// Stores rows of queries in the layout in which lanes read them. Absent rows become zeros.
template <uint32_t kDim>
CAIRN_DEVICE void LayOutPlain(const AttendQueries& queries, const AttendWork& work,
                              PlainAttendShared<kDim>* shared) {
  constexpr uint32_t kPieces = PlainStep<kDim>::kPieces;
  for (uint32_t i = ThreadIndex(); i < kAttendRows * kPieces; i += kAttendThreads) {
    const uint32_t row = i / kPieces, piece = i % kPieces;
    U32x4 words{0, 0, 0, 0};
    if (row < RowCount(queries, work)) {
      const uint64_t at = uint64_t{QueryOf(queries, work, row)} * (2 * kDim) + 16 * piece;
      words = LoadGlobal<U32x4>(queries.queries + at);
    }
    shared->queries[row / 8][piece / 4][row % 8 * 4 + piece % 4] = words;
  }
  if (ThreadIndex() < kAttendRows) {
    shared->factors[ThreadIndex()] = codecs::Multiply(queries.scale, kLog2E);
  }
}

// Computes a warp's sums over a work item.
template <codecs::DType kDType, uint32_t kDim>
CAIRN_DEVICE void SumPlain(const AttendArgs& args, const AttendReader& reader,
                           const AttendWork& work, PlainAttendShared<kDim>* shared,
                           LaneSums<kDim / kAttendVGroup>* sums) {
  constexpr uint32_t kSteps = PlainAttendShared<kDim>::kSteps;
  const uint32_t warp = WarpOfBlock(), lane = ThreadIndex() % kWarpLanes;
  const AttendQueries queries = reader.Queries(work.queries);
  PlainAsker asker{work.part_first + warp, work.part_first + work.part_count, 0};
  U32x4 rows[2][kDim / 32];
  int32_t behind[2];
  CAIRN_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    CAIRN_UNROLL
    for (uint32_t i = 0; i < kDim / 32; ++i) rows[half][i] = shared->queries[half][i][lane];
    const uint32_t row = work.row_first + lane / 4 + 8 * half;
    const bool is_behind = queries.is_causal && row < queries.rows;
    behind[half] =
        is_behind ? static_cast<int32_t>((queries.rows - 1 - row) / queries.rows_of_token) : 0;
  }
  uint32_t under_way = 0, at = 0;
  CAIRN_NO_UNROLL
  for (uint32_t round = 0; under_way != 0 || !asker.IsOver(); ++round) {
    if (!asker.IsOver()) {
      asker.Ask(args, reader, queries, &shared->steps[warp][at]);
      ++under_way;
    }
    CopyCommit();
    at = at == kSteps - 1 ? 0 : at + 1;
    if (round + 1 < kSteps) continue;
    const PlainStep<kDim>& step = shared->steps[warp][at];
    CopyWait<kSteps - 1>();
    SyncWarp();
    float scores[4][4];
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) ScorePlain<kDType>(step, 8 * i, rows, scores[i]);
    MaskPlain(step, behind, scores);
    WeighTokens(shared->factors, kStepTokens, scores, sums);
    CAIRN_UNROLL
    for (uint32_t i = 0; i < 4; i += 2) {
      const float weights[2][4] = {
          {scores[i][0], scores[i][1], scores[i][2], scores[i][3]},
          {scores[i + 1][0], scores[i + 1][1], scores[i + 1][2], scores[i + 1][3]}};
      AddPlain<kDType>(step, 8 * i, weights, sums);
    }
    SyncWarp();  // no lane reads the step any more
    --under_way;
  }
  CopyWait<0>();
}

template <codecs::DType kDType, uint32_t kDim>
CAIRN_KERNEL CAIRN_BOUNDS(kAttendThreads, 1) AttendPlain(AttendArgs args) {
  CAIRN_SHARED(PlainAttendShared<kDim>, shared);
  const AttendReader reader(args.plan, AttendPlainList(kDType, kDim));
  for (uint32_t i = BlockIndex(); i < reader.WorkCount(); i += GridBlocks()) {
    const AttendWork work = reader.Work(i);
    LayOutPlain(reader.Queries(work.queries), work, &shared);
    SyncBlock();
    LaneSums<kDim / kAttendVGroup> sums{};
    sums.largest[0] = sums.largest[1] = kNoScore;
    SumPlain<kDType>(args, reader, work, &shared, &sums);
    SyncBlock();  // outputs are stored where steps were
    LeaveSums(
        sums, [](uint32_t) { return 1.0F; }, &shared);
    SyncBlock();
    JoinWarps(reader.SlotFloats(), shared, RowCount(reader.Queries(work.queries), work),
              SlotOf(args, reader.SlotFloats(), work.slot));
    SyncBlock();  // shared memory is reused for the next work
  }
}

}  // namespace cairn::kernels
