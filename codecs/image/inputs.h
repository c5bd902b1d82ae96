// SPDX-License-Identifier: Apache-2.0
#pragma once
// What coding may need beside the payload or the image. All of it is borrowed for the call, and
// what a recipe has no use for is not read.
//
// Thread-safety: values.

#include <span>

#include "codecs/image/image.h"
#include "codecs/side/bank.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {

struct EncodeInputs {
  // Those that the spec names, where the recipe needs one.
  const Profile* profile = nullptr;
  const Bank* bank = nullptr;
  // Of the queries that read a KV head, over all of its query heads: mean |q| of each channel of K
  // as it is read, that is after RoPE. [layer][head][k_dim] of the slice, finite and not negative;
  // empty where there is none.
  std::span<const float> query_magnitudes = {};
  // logquant: tokens of the chain that the block is read in; less than up to the block's end counts
  // as that.
  uint64_t chain_tokens = 0;
  // arkv: what each token of the slice is worth to its readers; infinite, it is kept at full
  // precision. [layer][head][token] of the slice; NaN and what is not above 0 count as 0, for "not
  // known", which all are where it is empty.
  std::span<const float> token_scores = {};
  // arkv:paper: a TokenState of codecs/stages/select/token_plan.h for each token of the slice; past
  // those it is original. [layer][head][token] of the slice; all are low where it is empty.
  std::span<const uint8_t> token_states = {};
  // ott: the images of the block before, parsed and verified, that together have the slice; where
  // they do not, the rows are chosen as ott/local does.
  std::span<const ImageView> parents = {};
};

// To encode with what the image will name, and nothing else so far.
[[nodiscard]] inline EncodeInputs EncodeWith(const DecodeInputs& side) {
  return {.profile = side.profile, .bank = side.bank};
}

}  // namespace cairn::codecs
