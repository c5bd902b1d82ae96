// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes tiles from an engine's paged cache to codes, one (min, range) for each group of elements,
// as codecs/forms/affine.cc does. It also writes the rows (tokens stored as source elements), the
// params and the zeros between the parts of a tile. One block per tile, one element per thread.
// Accepts every shape and dtype.

#include <cstdint>

#include "codecs/numbers/affine.h"
#include "codecs/numbers/math.h"
#include "codecs/numbers/score.h"
#include "codecs/pack/dense.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/traced_rows.h"

namespace cairn::kernels {

using codecs::Extremes;

// Calls visit(value) for each value of a group, except for values of rows. A group is some tokens
// of a channel of K, or some channels of a token of V.
//   value_at(token, channel)  in this file, returns the value of an element that is to be coded
template <typename ValueAt, typename Visit>
CAIRN_DEVICE void ForEachOfGroup(const EncodeTile& tile, const EncodeShared& shared, uint32_t group,
                                 uint32_t across, ValueAt value_at, Visit visit) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t first = group * plane.group,
                 left = (plane.is_v ? plane.dim : plane.tokens) - first;
  const uint32_t end = first + (left < plane.group ? left : plane.group);
  CAIRN_NO_UNROLL
  for (uint32_t along = first; along < end; ++along) {
    const uint32_t token = plane.is_v ? across : along, channel = plane.is_v ? along : across;
    if (IsMarked(shared.is_row, token)) continue;
    visit(value_at(token, channel));
  }
}

template <typename ValueAt>
CAIRN_DEVICE Extremes ExtremesOf(const EncodeTile& tile, const EncodeShared& shared, uint32_t group,
                                 uint32_t across, ValueAt value_at) {
  Extremes extremes;
  ForEachOfGroup(tile, shared, group, across, value_at, [&](float value) { extremes.Add(value); });
  extremes.MakeZerosPositive();
  return extremes;
}

template <typename ValueAt>
CAIRN_DEVICE codecs::AffineParams ParamsOf(const EncodeTile& tile, const EncodeShared& shared,
                                           uint32_t group, uint32_t across, const Extremes& of,
                                           ValueAt value_at) {
  const uint32_t count = (tile.task.rules & kRuleClipped) != 0
                             ? codecs::ClipCount(tile.plane.bits, !tile.plane.is_v)
                             : 1;
  return codecs::ChooseParams(tile.plane.bits, count, of, [&](auto visit) {
    ForEachOfGroup(tile, shared, group, across, value_at, visit);
  });
}

CAIRN_DEVICE void StorePair(const EncodeTile& tile, uint32_t pair, codecs::AffineParams params) {
  StoreGlobal(tile.task.slot + tile.params_at + 4 * pair,
              params.min | static_cast<uint32_t>(params.range) << 16);
}

// Stores the params of K. Returns true if the tile must be stored raw. This is so if all values of
// a group are equal to a number that is no fp16 number, because no code restores that number.
template <typename ValueAt>
CAIRN_DEVICE bool StoreParamsOfChannels(const EncodeTile& tile, const EncodeShared& shared,
                                        ValueAt value_at) {
  const uint32_t dim = tile.plane.dim;
  const uint32_t groups = (tile.plane.tokens + tile.plane.group - 1) / tile.plane.group;
  bool is_raw = false;
  for (uint32_t pair = ThreadIndex(); pair < groups * dim; pair += kBlockThreads) {
    const Extremes of = ExtremesOf(tile, shared, pair / dim, pair % dim, value_at);
    is_raw |= codecs::IsInexactConstant(of.low, of.high);
    StorePair(tile, pair, ParamsOf(tile, shared, pair / dim, pair % dim, of, value_at));
  }
  return is_raw;
}

// Stores the params of V. Marks the tokens that must be rows, and stores zeros as their params.
template <typename ValueAt>
CAIRN_DEVICE void StoreParamsOfTokens(const EncodeTile& tile, EncodeShared* shared,
                                      ValueAt value_at) {
  const uint32_t groups = (tile.plane.dim + tile.plane.group - 1) / tile.plane.group;
  const uint32_t pairs = groups * tile.plane.tokens;
  for (uint32_t pair = ThreadIndex(); pair < pairs; pair += kBlockThreads) {
    const uint32_t token = pair / groups;
    if (IsMarked(shared->is_row, token)) continue;
    const Extremes of = ExtremesOf(tile, *shared, pair % groups, token, value_at);
    if (codecs::IsInexactConstant(of.low, of.high)) {
      AtomicOrShared(&shared->is_found[token / 32], 1U << token % 32);
    }
    StorePair(tile, pair, ParamsOf(tile, *shared, pair % groups, token, of, value_at));
  }
  AddFound(shared);
  for (uint32_t pair = ThreadIndex(); pair < pairs; pair += kBlockThreads) {
    if (IsMarked(shared->is_row, pair / groups)) StorePair(tile, pair, {});
  }
}

// Returns the code of a value. Reads the params that the block has stored before.
CAIRN_DEVICE uint32_t CodeOf(const EncodeTile& tile, uint32_t pair, uint32_t bits, float value) {
  const auto params = LoadRecord<uint32_t>(tile.task.slot + tile.params_at + 4 * pair);
  return codecs::AffineCode(
      value, {static_cast<uint16_t>(params), static_cast<uint16_t>(params >> 16)}, bits);
}

template <typename ValueAt>
CAIRN_DEVICE void StoreCodes(const EncodeTile& tile, const EncodeShared& shared, ValueAt value_at) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t row_bytes = codecs::CodeRowBytes(plane.dim, plane.bits);
  const uint32_t of_byte = 8 / plane.bits;
  for (uint32_t i = ThreadIndex(); i < plane.tokens * row_bytes; i += kBlockThreads) {
    const uint32_t token = i / row_bytes, first = i % row_bytes * of_byte;
    uint32_t byte = 0;
    for (uint32_t c = 0; c < of_byte && first + c < plane.dim; ++c) {
      if (IsMarked(shared.is_row, token)) break;
      const float value = value_at(token, first + c);
      const uint32_t pair = PairOf(plane, token, first + c);
      byte |= CodeOf(tile, pair, plane.bits, value) << (c * plane.bits);
    }
    StoreGlobal(tile.task.slot + i, static_cast<uint8_t>(byte));
  }
}

// Returns the score of a token, as arkv stores it.
CAIRN_DEVICE uint16_t ScoreAt(const EncodeTile& tile, uint32_t token) {
  if (token == 0 && (tile.task.rules & kRuleFirstIsRow) != 0) return codecs::kScoreInfinite;
  if (tile.task.scores == nullptr) return 0;
  return codecs::StoredScore(LoadGlobal<float>(tile.task.scores + 4 * token));
}

// Marks the tokens that are rows for a reason other than their values.
CAIRN_DEVICE void MarkKept(const EncodeTile& tile, EncodeShared* shared) {
  if (ThreadIndex() == 0 && (tile.task.rules & kRuleFirstIsRow) != 0) {
    AtomicOrShared(&shared->is_row[0], 1);
  }
  if (tile.task.scores == nullptr) return;
  for (uint32_t token = ThreadIndex(); token < tile.plane.tokens; token += kBlockThreads) {
    if (ScoreAt(tile, token) != codecs::kScoreInfinite) continue;
    AtomicOrShared(&shared->is_row[token / 32], 1U << token % 32);
  }
}

// Computes the places of those parts of a tile that do not depend on the number of its rows.
CAIRN_DEVICE void PlaceCodes(EncodeTile* tile) {
  const PlaneRecord& plane = tile->plane;
  const uint32_t groups = plane.is_v ? plane.tokens * ((plane.dim + plane.group - 1) / plane.group)
                                     : (plane.tokens + plane.group - 1) / plane.group * plane.dim;
  tile->codes_bytes = plane.tokens * codecs::CodeRowBytes(plane.dim, plane.bits);
  tile->params_at = Align16(tile->codes_bytes);
  tile->chain_at = tile->params_at + 4 * groups;
  tile->chain_bytes = (tile->task.rules & kRuleTraced) != 0 && !plane.is_v ? kPoolBytes : 0;
  tile->row_bits_at = tile->chain_at + tile->chain_bytes;
  tile->scales_bytes = (tile->task.rules & kRuleScores) != 0 ? 2 * plane.tokens : 0;
}

// Encodes a tile. The rows that are known so far must be marked. The result is that of `encode` in
// EncodeTiles().
template <typename ValueAt>
CAIRN_DEVICE bool EncodeGroups(const EncodeReader& reader, EncodeTile* tile, EncodeShared* shared,
                               ValueAt value_at) {
  PlaceCodes(tile);
  // If the tile has few tokens, its params can be larger than the source elements. The slot has no
  // room for such params.
  const uint32_t least = Align16(tile->row_bits_at + tile->scales_bytes + tile->map_bytes);
  bool is_raw = least >= RawBytes(tile->plane);
  if (!is_raw && tile->plane.is_v) {
    StoreParamsOfTokens(*tile, shared, value_at);
  } else if (!is_raw) {
    is_raw = StoreParamsOfChannels(*tile, *shared, value_at);
  }
  if (SyncBlockOr(is_raw)) return false;
  StoreCodes(*tile, *shared, value_at);
  SyncBlock();
  ListRows(reader, *tile, shared);
  if (!PlaceTile(*shared, tile)) return false;
  for (uint32_t at = ThreadIndex(); 2 * at < tile->scales_bytes; at += kBlockThreads) {
    StoreGlobal(tile->task.slot + tile->scales_at + 2 * at, ScoreAt(*tile, at));
  }
  StoreRowsOf(*tile, *shared);
  return true;
}

struct AffineEncodeShared {
  EncodeShared tile;
  TracedRows traced;
};

CAIRN_DEVICE bool EncodeAffine(const EncodeReader& reader, EncodeTile* tile,
                               AffineEncodeShared* shared, Fault* fault) {
  MarkUncodable(*tile, &shared->tile);
  if ((tile->task.rules & kRuleTraced) != 0) {
    MarkTraced(reader, *tile, &shared->traced, shared->tile.is_row, fault);
  } else {
    MarkKept(*tile, &shared->tile);
  }
  SyncBlock();
  const bool is_coded =
      EncodeGroups(reader, tile, &shared->tile, [&](uint32_t token, uint32_t channel) {
        return LoadValue(tile->plane.dtype, shared->tile.places[token], channel);
      });
  if (is_coded && tile->chain_bytes != 0 && ThreadIndex() == 0) {
    StorePool(shared->traced.pool, tile->task.slot + tile->chain_at);
  }
  return is_coded;
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 4) EncodeAffineAny(EncodeArgs args) {
  CAIRN_SHARED(AffineEncodeShared, shared);
  EncodeTiles(args, &shared.tile, [&](const EncodeReader& reader, EncodeTile* tile, Fault* fault) {
    return EncodeAffine(reader, tile, &shared, fault);
  });
}

}  // namespace cairn::kernels
