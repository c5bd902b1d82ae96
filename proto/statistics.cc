// SPDX-License-Identifier: Apache-2.0
#include "proto/statistics.h"

namespace cairn::proto {

const char* Name(Statistic kind) {
  switch (kind) {
    case Statistic::kQuerySquares:
      return "query_squares";
    case Statistic::kQueryMagnitudes:
      return "query_magnitudes";
    case Statistic::kTokenScores:
      return "token_scores";
  }
  return "statistics";
}

const char* ShapeOf(Statistic kind) {
  return kind == Statistic::kTokenScores ? "layers x heads x tokens" : "layers x heads x k_dim";
}

uint64_t CountOf(Statistic kind, const codecs::TileShape& tile, const codecs::Slice& slice,
                 uint32_t tokens) {
  if (tile.dtype == codecs::DType::kBytes) {
    return 0;
  }
  const uint32_t of_head = kind == Statistic::kTokenScores ? tokens : tile.k_dim;
  return uint64_t{slice.layer_count} * slice.head_count * of_head;
}

bool IsCodedWith(const codecs::Recipe& recipe, Statistic kind) {
  switch (kind) {
    case Statistic::kQuerySquares:
      return false;
    case Statistic::kQueryMagnitudes:
      return recipe.Traits().encoded_with == codecs::EncodedWith::kQueryMagnitudes;
    case Statistic::kTokenScores:
      return recipe.HasScores();
  }
  return false;
}

}  // namespace cairn::proto
