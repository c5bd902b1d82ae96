// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes attention over tiles of every form in which each code has a fixed place, over source
// elements, and over tails of caches. A tail is the last tokens of a sequence, which are not
// encoded yet. A block has one work item. It decodes 16 tokens at a time to shared memory, with the
// same rounding as the decode kernels. Sums are fp32. This kernel is slow; the kernels of
// attend_affine.h, attend_fp8.h and attend_plain.h are fast.

#include <cstdint>

#include "kernels/body/attend_values.h"

namespace cairn::kernels {

// The sums of a row of queries. The threads of the row keep them: thread 16 r + i belongs to row r.
struct RowSums {
  float largest = kNoScore;
  float sum = 0.0F;
};

// Returns how many tokens of a part a row of queries may attend to.
CAIRN_DEVICE uint32_t TokensSeen(const AttendQueries& queries, const AttendPart& part,
                                 uint32_t tail_tokens, uint32_t row) {
  if (!part.is_tail) return part.k.token_count;
  uint32_t seen = tail_tokens;
  if (queries.is_causal) {
    const uint32_t behind = (queries.rows - 1 - row) / queries.rows_of_token;
    seen = seen > behind ? seen - behind : 0;
  }
  const uint32_t first = part.k.token_first;
  const uint32_t left = seen > first ? seen - first : 0;
  return left < part.k.token_count ? left : part.k.token_count;
}

// Computes the scores of a part's tokens. A thread computes every sixteenth token of one row.
template <typename Shared>
CAIRN_DEVICE void FindScores(const AttendQueries& queries, const AttendTile& k, uint32_t tokens,
                             uint32_t rows, uint32_t seen, Shared* shared, Fault* fault) {
  const uint32_t row = ThreadIndex() / kValueTokens, token = ThreadIndex() % kValueTokens;
  for (uint32_t first = 0; first < tokens; first += kValueTokens) {
    FindValues(k, first, tokens, queries.k_dim, shared, fault);
    SyncBlock();
    if (row < rows) {
      float sum = 0.0F;
      for (uint32_t c = 0; c < queries.k_dim; ++c) {
        sum = FusedMultiplyAdd(shared->queries[row][c], shared->values[token][c], sum);
      }
      const uint32_t at = first + token;
      const bool is_hole = at < tokens && k.is_tail && shared->places.of[at] == nullptr;
      shared->weights[row][at] = at < seen && !is_hole ? sum : 2 * kNoScore;
    }
    SyncBlock();
  }
}

// Converts a row's scores to weights.
template <typename Shared>
CAIRN_DEVICE void Weigh(uint32_t tokens, Shared* shared, RowSums* sums) {
  const uint32_t row = ThreadIndex() / kValueTokens, token = ThreadIndex() % kValueTokens;
  float* weights = shared->weights[row];
  float largest = sums->largest;
  for (uint32_t at = token; at < tokens; at += kValueTokens) {
    largest = Larger(largest, weights[at]);
  }
  CAIRN_UNROLL
  for (uint32_t lanes = 1; lanes < kValueTokens; lanes *= 2) largest = LargerAcross(largest, lanes);
  float sum = 0.0F;
  for (uint32_t at = token; at < tokens; at += kValueTokens) {
    weights[at] = Exp2Near(codecs::Add(weights[at], -largest));
    sum = codecs::Add(sum, weights[at]);
  }
  CAIRN_UNROLL
  for (uint32_t lanes = 1; lanes < kValueTokens; lanes *= 2) {
    sum = codecs::Add(sum, codecs::BitsFloat(ShuffleXor(codecs::FloatBits(sum), lanes)));
  }
  const float shrink = Exp2Near(codecs::Add(sums->largest, -largest));
  sums->sum = FusedMultiplyAdd(sums->sum, shrink, sum);
  sums->largest = largest;
  if (token == 0) shared->shrink[row] = shrink;
}

// Adds the values of a part, with one thread per channel.
template <typename Shared>
CAIRN_DEVICE void AddPart(const AttendQueries& queries, const AttendTile& v, uint32_t tokens,
                          uint32_t rows, Shared* shared, Fault* fault) {
  for (uint32_t first = 0; first < tokens; first += kValueTokens) {
    FindValues(v, first, tokens, queries.v_dim, shared, fault);
    SyncBlock();
    const uint32_t count = tokens - first < kValueTokens ? tokens - first : kValueTokens;
    for (uint32_t c = ThreadIndex(); c < queries.v_dim; c += kBlockThreads) {
      for (uint32_t row = 0; row < rows; ++row) {
        float sum = shared->outputs[row][c];
        if (first == 0) sum = codecs::Multiply(sum, shared->shrink[row]);
        for (uint32_t i = 0; i < count; ++i) {
          sum = FusedMultiplyAdd(shared->weights[row][first + i], shared->values[i][c], sum);
        }
        shared->outputs[row][c] = sum;
      }
    }
    SyncBlock();
  }
}

// Prepares the K or V of a part. Returns false if it cannot be read. REQUIRES: SyncBlock() before.
template <typename Shared>
CAIRN_DEVICE bool ReadyTile(AttendTile* tile, Shared* shared, Fault* fault) {
  FindForm(tile, &shared->forms, fault);
  FindSources(*tile, &shared->places, fault);
  return !SyncBlockOr(*fault != Fault::kNone);
}

// Returns the number of tokens of the tail.
CAIRN_DEVICE uint32_t TailTokens(const AttendQueries& queries, Fault* fault) {
  if (queries.tail_tokens == nullptr) return queries.tail_tokens_max;
  const auto tokens = static_cast<uint32_t>(LoadGlobal<int32_t>(queries.tail_tokens));
  if (tokens <= queries.tail_tokens_max) return tokens;
  *fault = Worse(*fault, Fault::kBadPage);
  return 0;
}

template <typename Shared>
CAIRN_DEVICE Fault AttendToPart(const AttendReader& reader, const AttendPart& part,
                                const AttendQueries& queries, const AttendWork& work,
                                Shared* shared, RowSums* sums) {
  Fault fault = Fault::kNone;
  const uint32_t tail_tokens = part.is_tail ? TailTokens(queries, &fault) : 0;
  const uint32_t rows = RowCount(queries, work);
  const uint32_t row = ThreadIndex() / kValueTokens;
  const uint32_t seen =
      row < rows ? TokensSeen(queries, part, tail_tokens, work.row_first + row) : 0;
  AttendTile tile{part.k, reader.Plane(part.k.plane), part.k_form, part.is_tail, {}};
  // The last row may attend to the most tokens.
  const uint32_t tokens = TokensSeen(queries, part, tail_tokens, work.row_first + rows - 1);
  tile.task.token_count = static_cast<uint16_t>(tokens);
  if (tokens == 0 || !ReadyTile(&tile, shared, &fault)) return fault;
  FindScores(queries, tile, tokens, rows, seen, shared, &fault);
  Weigh(tokens, shared, sums);
  tile = {part.v, reader.Plane(part.v.plane), part.v_form, part.is_tail, {}};
  tile.task.token_count = static_cast<uint16_t>(tokens);
  if (!ReadyTile(&tile, shared, &fault)) return fault;
  AddPart(queries, tile, tokens, rows, shared, &fault);
  return fault;
}

template <typename Shared>
CAIRN_DEVICE void ReadyQueries(const AttendQueries& queries, const AttendWork& work,
                               Shared* shared) {
  const float scale = codecs::Multiply(queries.scale, kLog2E);
  const uint32_t rows = RowCount(queries, work);
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t query = QueryOf(queries, work, row);
    for (uint32_t c = ThreadIndex(); c < queries.k_dim; c += kBlockThreads) {
      shared->queries[row][c] = codecs::Multiply(LoadQuery(queries, query, c), scale);
    }
    for (uint32_t c = ThreadIndex(); c < queries.v_dim; c += kBlockThreads) {
      shared->outputs[row][c] = 0.0F;
    }
  }
}

template <typename Shared>
CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 1) AttendAny(AttendArgs args) {
  CAIRN_SHARED(Shared, shared);
  const AttendReader reader(args.plan, args.list);
  for (uint32_t i = BlockIndex(); i < reader.WorkCount(); i += GridBlocks()) {
    const AttendWork work = reader.Work(i);
    const AttendQueries queries = reader.Queries(work.queries);
    ReadyQueries(queries, work, &shared);
    RowSums sums;
    SyncBlock();
    for (uint32_t at = 0; at < work.part_count; ++at) {
      const auto part = reader.Part<AttendPart>(work.part_first + at);
      const Fault fault = AttendToPart(reader, part, queries, work, &shared, &sums);
      if (fault != Fault::kNone) AtomicMax(args.status + part.status, static_cast<uint32_t>(fault));
      SyncBlock();
    }
    const uint32_t rows = RowCount(queries, work);
    float* slot = SlotOf(args, reader.SlotFloats(), work.slot);
    const uint32_t row = ThreadIndex() / kValueTokens;
    if (ThreadIndex() % kValueTokens == 0) {
      shared.shrink[row] = sums.sum == 0.0F ? 0.0F : codecs::Divide(1.0F, sums.sum);
      if (row < rows) {
        StoreGlobal(LogSumsOf(reader.SlotFloats(), slot) + row, LogSumOf(sums.largest, sums.sum));
      }
    }
    SyncBlock();
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = ThreadIndex(); c < queries.v_dim; c += kBlockThreads) {
        StoreGlobal(slot + r * queries.v_dim + c,
                    codecs::Multiply(shared.outputs[r][c], shared.shrink[r]));
      }
    }
    SyncBlock();  // shared memory is reused for the next work
  }
}

}  // namespace cairn::kernels
