// SPDX-License-Identifier: Apache-2.0
#pragma once
// A recipe as a pipeline: one choice for each stage, applied to one tile at a time.
//
//   select -> predict -> allocate -> quantize (into the pack stage's layout)
//
// The first three stages fill in a TilePlan; quantize executes the plan with the backend's
// operations. To add a recipe, add a function of one of these types in the stage's folder and an
// entry in StagesOf(). A recipe that stores something new also needs a tile form, see
// codecs/forms/form.h. There is no function type for allocation: AffineOf() gives every channel the
// recipe's bits.
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

// For ott: the pool of a head, which has the smallest key norms of the chain so far.
inline constexpr uint32_t kChainRows = 3;
inline constexpr uint32_t kDisplacedMax = 32;  // the paper's "additional pool"
struct ChainHead {
  float norms[kChainRows] = {};  // the first `count`, ascending
  uint8_t count = 0;
  uint8_t displaced = 0;  // tokens that have left the pool; at kDisplacedMax no token enters any
                          // more
};

// The state that the K tile and the V tile of one head share while they are encoded. K is encoded
// first.
struct HeadWork {
  std::array<uint64_t, kRowWords> rows{};  // ott: rows that the selection for K chose
  ChainHead chain;                         // ott: the pool before the block. The selection of rows
                                           // for K changes it to the pool after the block
};

// The encoder's input for one tile.
struct TileSource {
  TileGeometry geometry;
  const uint8_t* bytes = nullptr;  // geometry.SourceBytes(), borrowed
  uint64_t first_position = 0;     // position of the tile's first token in its chain
  ProfileHead at = {};             // layer and head in the group
  // For recipes with a profile: the profile, and the elements of V of the same head (null for
  // latents).
  const Profile* profile = nullptr;
  const uint8_t* v = nullptr;
  uint64_t chain_tokens = 0;                // logquant: length of the chain that determines the
                                            // rows
  const float* query_magnitudes = nullptr;  // one per channel of K; null if there are none
  const float* token_scores = nullptr;      // arkv: one per token; null if there are none
  const uint8_t* token_states = nullptr;    // arkv:paper: a TokenState per token; null if there are
                                            // none
  const Bank* bank = nullptr;               // for recipes with a bank; REQUIRES: it has the head
                                            // `at`
  HeadWork* head = nullptr;                 // set if the recipe shares state between K and V
  StepScratch* scratch = nullptr;           // shared by the strips of the image; may be null
};

struct TilePlan {
  std::array<uint64_t, kRowWords> rows{};  // bit t: token t is a row
  AffineTile affine{};
  // The patterns of the bank, fp16. Before a token is coded, the pattern that `numbers` gives for
  // it is subtracted.
  const uint8_t* patterns = nullptr;
  std::array<uint64_t, kRowWords> predicted{};
  std::array<uint8_t, kTokensPerBlockMax> pattern{};
  // For V: the range of each group of a token after subtraction. Not kept if a tile has more groups
  // than fit.
  std::array<Span, kTokensPerBlockMax> spans;
  bool has_spans = false;

  [[nodiscard]] Span* Spans() { return has_spans ? spans.data() : nullptr; }
  void AddRow(uint32_t token) { rows[token / 64] |= uint64_t{1} << (token % 64); }
  [[nodiscard]] bool IsRow(uint32_t token) const { return (rows[token / 64] >> (token % 64)) & 1; }
  // Returns false for rows, even if they had a pattern before they became rows.
  [[nodiscard]] bool IsPredicted(uint32_t token) const {
    return !IsRow(token) && ((predicted[token / 64] >> (token % 64)) & 1) != 0;
  }
  [[nodiscard]] uint32_t RowCount() const;
};

using SelectStage = void (*)(const Backend&, const TileSource&, TilePlan*);
// Chooses the patterns that are subtracted before quantization. Null: no patterns.
using PredictStage = void (*)(const Backend&, const TileSource&, TilePlan*);
// Writes codes and parameters; may add rows to the plan. Returns false if the tile must be stored
// raw.
using QuantizeStage = bool (*)(const Backend&, const TileSource&, TilePlan*, uint8_t* codes,
                               uint8_t* params);

struct Stages {
  SelectStage select = nullptr;
  PredictStage predict = nullptr;
  QuantizeStage quantize = nullptr;
};

// REQUIRES: the recipe codes tiles as kAffine or kPatterned.
[[nodiscard]] const Stages& StagesOf(const Recipe& recipe);

}  // namespace cairn::codecs
