// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/select/log_rows.h"

#include <algorithm>

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

LogVariant VariantOf(const Recipe& recipe) { return static_cast<LogVariant>(recipe.variant); }

uint16_t LoadPosition(const uint8_t* positions, uint32_t index) {
  return Load<uint16_t>(positions + sizeof(uint16_t) * index);
}

}  // namespace

void SelectLogRows(const Recipe& recipe, uint32_t tokens, uint64_t first_position,
                   uint64_t chain_tokens, const TilePlan& plan, LogRows* rows) {
  const uint64_t chain = std::max(chain_tokens, first_position + tokens);
  const auto stays = [&](uint32_t token) {
    return plan.IsRow(token) || first_position + token == 0;
  };
  rows->count = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    if (stays(token)) rows->positions[rows->count++] = static_cast<uint16_t>(token | kRowStays);
  }
  struct Row {
    uint64_t until;
    uint16_t token;
  };
  std::array<Row, kTokensPerBlockMax> others;
  uint32_t count = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    const uint64_t until = RowUntil(first_position + token, VariantOf(recipe));
    if (!stays(token) && until >= chain) others[count++] = {until, static_cast<uint16_t>(token)};
  }
  std::sort(others.begin(), others.begin() + count, [](const Row& a, const Row& b) {
    return a.until != b.until ? a.until > b.until : a.token < b.token;
  });
  for (uint32_t i = 0; i < count; ++i) rows->positions[rows->count++] = others[i].token;
}

uint32_t CountLogRows(const Recipe& recipe, uint64_t first_position, uint64_t chain_tokens,
                      const uint8_t* positions, uint32_t count) {
  uint32_t kept = 0;
  for (; kept < count; ++kept) {
    const uint16_t position = LoadPosition(positions, kept);
    if ((position & kRowStays) != 0) continue;
    if (RowUntil(first_position + position, VariantOf(recipe)) < chain_tokens) break;
  }
  return kept;
}

bool AreLogRows(const Recipe& recipe, uint32_t tokens, uint64_t first_position,
                const uint8_t* positions, uint32_t count) {
  TilePlan plan;
  for (uint32_t i = 0; i < count; ++i) {
    const uint16_t position = LoadPosition(positions, i);
    if ((position & kRowStays) == 0) break;
    const uint32_t token = position & ~kRowStays;
    if (token >= tokens) return false;
    plan.AddRow(token);
  }
  // The rows that an encoder keeps; a longer chain has the first of them.
  LogRows known;
  SelectLogRows(recipe, tokens, first_position, 0, plan, &known);
  if (count > known.count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (LoadPosition(positions, i) != known.positions[i]) return false;
  }
  // Rows with kRowStays are there in every chain.
  return count == known.count || (known.positions[count] & kRowStays) == 0;
}

}  // namespace cairn::codecs
