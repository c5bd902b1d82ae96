// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pipeline that a recipe is: one choice at each stage, run over a tile at a time.
//
//   select -> predict -> allocate -> quantize (into the pack stage's layout)
//
// The first three fill in a TilePlan; quantize carries it out through the backend's steps. A later
// recipe adds a choice, that is a function of one of these types in the stage's folder and a row in
// StagesOf(), and, if it stores something new, a tile form. Allocation here is always uniform:
// AffineOf() gives every channel the recipe's bits.
//
// Thread-safety: everything here is a value or a pure function.

#include <array>
#include <cstdint>

#include "codecs/backend/backend.h"
#include "codecs/format/tile_layout.h"
#include "codecs/recipe/recipe.h"
#include "codecs/side/bank.h"
#include "codecs/side/profile.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// ott: the pool of a head, the smallest key norms of the chain so far.
inline constexpr uint32_t kChainRows = 3;
struct ChainHead {
  float norms[kChainRows] = {};  // the first `count`, ascending
  uint8_t count = 0;
  uint8_t displaced = 0;  // that have left the pool; 32: none enters any more
};

// What the tiles of a head share while they are encoded. K comes first.
struct HeadWork {
  std::array<uint64_t, kRowWords> rows{};  // ott: those that K's selection chose
  ChainHead chain;                         // ott: before K is selected; after it, as it leaves
};

// A tile as the encoder gets it.
struct TileSource {
  TileGeometry geometry;
  const uint8_t* bytes = nullptr;  // geometry.SourceBytes(), borrowed
  uint64_t first_position = 0;     // of the tile's first token in its chain
  ProfileHead at = {};             // layer and head in the group
  // For recipes with a profile: it, and the elements of V of the tile's head, null for latents.
  const Profile* profile = nullptr;
  const uint8_t* v = nullptr;
  uint64_t chain_tokens = 0;                // logquant: of the chain for whose length rows are kept
  const float* query_magnitudes = nullptr;  // of the channels of K; null where there are none
  const float* token_scores = nullptr;      // arkv: of the tokens; null where there are none
  const uint8_t* token_states = nullptr;    // arkv:paper: likewise, a TokenState each
  const Bank* bank = nullptr;               // for recipes with a bank; `at` is one of its heads
  HeadWork* head = nullptr;                 // where the recipe shares something between K and V
  StepScratch* scratch = nullptr;           // of the image; may be null
};

struct TilePlan {
  std::array<uint64_t, kRowWords> rows{};  // bit t: token t is a row
  AffineTile affine{};
  // What is taken from tokens before they are coded: patterns of the bank, fp16, and the number of
  // each token's.
  const uint8_t* patterns = nullptr;
  std::array<uint64_t, kRowWords> predicted{};
  std::array<uint8_t, kTokensPerBlockMax> pattern{};
  // V: what is left of each group of a token spans this; where there are more groups, it is not
  // kept.
  std::array<Span, kTokensPerBlockMax> spans;
  bool has_spans = false;

  [[nodiscard]] Span* Spans() { return has_spans ? spans.data() : nullptr; }
  void AddRow(uint32_t token) { rows[token / 64] |= uint64_t{1} << (token % 64); }
  [[nodiscard]] bool IsRow(uint32_t token) const { return (rows[token / 64] >> (token % 64)) & 1; }
  // A row is not, whatever was taken from it before it became one.
  [[nodiscard]] bool IsPredicted(uint32_t token) const {
    return !IsRow(token) && ((predicted[token / 64] >> (token % 64)) & 1) != 0;
  }
  [[nodiscard]] uint32_t RowCount() const;
};

using SelectStage = void (*)(const Backend&, const TileSource&, TilePlan*);
// What is subtracted before quantization; null: nothing.
using PredictStage = void (*)(const Backend&, const TileSource&, TilePlan*);
// Codes and parameters; may add rows to the plan. False: the tile has to stay raw.
using QuantizeStage = bool (*)(const Backend&, const TileSource&, TilePlan*, uint8_t* codes,
                               uint8_t* params);

struct Stages {
  SelectStage select = nullptr;
  PredictStage predict = nullptr;
  QuantizeStage quantize = nullptr;
};

// REQUIRES: its tiles are coded as kAffine or kPatterned.
[[nodiscard]] const Stages& StagesOf(const Recipe& recipe);

}  // namespace cairn::codecs
