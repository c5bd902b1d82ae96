// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs that coding may need besides the payload or the image. All are borrowed for the call.
// A recipe reads only those that it uses.
//
// Thread-safety: values.

#include <span>

#include "codecs/image/image.h"
#include "codecs/side/bank.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/side/profile.h"

namespace cairn::codecs {

struct EncodeInputs {
  // The side objects that the spec names, where the recipe needs one.
  const Profile* profile = nullptr;
  const Bank* bank = nullptr;
  // The mean |q| of each channel of K after RoPE, over all query heads that read the KV head.
  // [layer][head][k_dim] of the slice, finite and not negative; empty: not known.
  std::span<const float> query_magnitudes = {};
  // logquant: length of the chain that the block is read in. At least the end of the block is
  // assumed.
  uint64_t chain_tokens = 0;
  // arkv: the score of each token. [layer][head][token] of the slice. A token of infinite score is
  // kept at full precision. NaN and scores that are not above 0 count as 0, "not known"; empty: all
  // are 0.
  std::span<const float> token_scores = {};
  // arkv:paper: the TokenState (codecs/stages/select/token_plan.h) of each token.
  // [layer][head][token] of the slice. Other values count as kOriginal; empty: all are kLow.
  std::span<const uint8_t> token_states = {};
  // ott: images of the block before this one, parsed and verified, that together cover the slice.
  // Where they do not, rows are chosen as by ott/local.
  std::span<const ImageView> parents = {};
};

// To encode with what the image will name, and nothing else so far.
[[nodiscard]] inline EncodeInputs EncodeWith(const DecodeInputs& side) {
  return {.profile = side.profile, .bank = side.bank};
}

}  // namespace cairn::codecs
