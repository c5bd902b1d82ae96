// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/select/scores.h"

#include "codecs/stages/select/select.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

uint16_t ScoreOf(const TileSource& source, uint32_t token) {
  if (source.first_position + token == 0) return kScoreInfinite;
  return source.token_scores == nullptr ? uint16_t{0} : StoredScore(source.token_scores[token]);
}

}  // namespace

void SelectProtected(const Backend& backend, const TileSource& source, TilePlan* plan) {
  SelectNone(backend, source, plan);
  for (uint32_t token = 0; token < source.geometry.rows; ++token) {
    if (ScoreOf(source, token) == kScoreInfinite) plan->AddRow(token);
  }
}

void StoreScores(const TileSource& source, uint8_t* target) {
  for (uint32_t token = 0; token < source.geometry.rows; ++token) {
    Store(target + sizeof(uint16_t) * token, ScoreOf(source, token));
  }
}

bool AreScores(uint64_t first_position, uint32_t tokens, const uint8_t* scores,
               const uint8_t* positions, uint32_t rows) {
  uint32_t row = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    const auto score = Load<uint16_t>(scores + sizeof(uint16_t) * token);
    while (row < rows && Load<uint16_t>(positions + sizeof(uint16_t) * row) < token) ++row;
    const bool is_row = row < rows && Load<uint16_t>(positions + sizeof(uint16_t) * row) == token;
    if (score > kScoreInfinite || (score == kScoreInfinite && !is_row)) return false;
    if (first_position + token == 0 && score != kScoreInfinite) return false;
  }
  return true;
}

}  // namespace cairn::codecs
