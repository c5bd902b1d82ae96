// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs that coding may need in addition to the payload or the image. All are borrowed for the
// call. A recipe reads only the inputs that it uses.
//
// Thread-safety: values.

#include <span>

#include "codecs/image/image.h"
#include "codecs/side/bank.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {

struct EncodeInputs {
  // The side objects that the spec names, if the recipe needs one.
  const Profile* profile = nullptr;
  const Bank* bank = nullptr;
  // For each channel of K, the mean of |q| after RoPE, over all query heads that read the KV head.
  // [layer][head][k_dim] of the slice. Values are finite and not negative. Empty means unknown.
  std::span<const float> query_magnitudes = {};
  // For logquant: length of the chain in which the block is read. It is at least the end of the
  // block; smaller values count as that.
  uint64_t chain_tokens = 0;
  // For arkv: the score of each token. [layer][head][token] of the slice. A token with an infinite
  // score is kept at full precision. NaN and scores not above 0 count as 0, which means unknown. If
  // empty, all scores are 0.
  std::span<const float> token_scores = {};
  // For arkv:paper: the TokenState (codecs/stages/select/token_plan.h) of each token.
  // [layer][head][token] of the slice. Unknown values count as kOriginal. If empty, all tokens are
  // kLow.
  std::span<const uint8_t> token_states = {};
  // For ott: images of the previous block, parsed and verified, that together cover the slice. If
  // they do not cover it, rows are chosen as with ott/local.
  std::span<const ImageView> parents = {};
};

// Returns encoder inputs that have only the side objects of `side`.
[[nodiscard]] inline EncodeInputs EncodeWith(const DecodeInputs& side) {
  return {.profile = side.profile, .bank = side.bank};
}

}  // namespace cairn::codecs
