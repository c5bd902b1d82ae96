// SPDX-License-Identifier: Apache-2.0
#pragma once
// A recipe as a pipeline: one choice for each stage, applied to one tile at a time.
//
//   select -> predict -> allocate -> quantize (into the pack stage's layout)
//
// The first three fill in a TilePlan; quantize carries it out with the backend's functions. A new
// recipe adds a function of one of these types in the stage's folder and a row in StagesOf(). If it
// stores something new, it adds a tile form too, see codecs/forms/form.h. Allocation here is
// uniform: AffineOf() gives every channel the recipe's bits.
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
inline constexpr uint32_t kDisplacedMax = 32;  // the paper's "additional pool"
struct ChainHead {
  float norms[kChainRows] = {};  // the first `count`, ascending
  uint8_t count = 0;
  uint8_t displaced = 0;  // that have left the pool; kDisplacedMax: none enters any more
};

// The state that the tiles of one head share while they are encoded. K is encoded first.
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
  // Patterns of the bank, fp16, of which each token has the one with this number subtracted before
  // it is coded.
  const uint8_t* patterns = nullptr;
  std::array<uint64_t, kRowWords> predicted{};
  std::array<uint8_t, kTokensPerBlockMax> pattern{};
  // V: the range of each group of a token after subtraction. Not kept where a tile has more groups
  // than fit.
  std::array<Span, kTokensPerBlockMax> spans;
  bool has_spans = false;

  [[nodiscard]] Span* Spans() { return has_spans ? spans.data() : nullptr; }
  void AddRow(uint32_t token) { rows[token / 64] |= uint64_t{1} << (token % 64); }
  [[nodiscard]] bool IsRow(uint32_t token) const { return (rows[token / 64] >> (token % 64)) & 1; }
  // Returns false for rows, also for those that had a pattern before they became rows.
  [[nodiscard]] bool IsPredicted(uint32_t token) const {
    return !IsRow(token) && ((predicted[token / 64] >> (token % 64)) & 1) != 0;
  }
  [[nodiscard]] uint32_t RowCount() const;
};

using SelectStage = void (*)(const Backend&, const TileSource&, TilePlan*);
// Chooses the patterns that are subtracted before quantization. Null: none are.
using PredictStage = void (*)(const Backend&, const TileSource&, TilePlan*);
// Writes codes and parameters; may add rows to the plan. Returns false where the tile has to stay
// raw.
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
