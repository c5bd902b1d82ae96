// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over an image, in reference loops. They define the results of kernels that read images.
// The sums and their order are those of codecs/backend/reference/attention.h.
//
// Thread-safety: Thread-safe. Allocates room for one decoded head.

#include <cstdint>
#include <span>

#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// One query token at one layer.
struct AttentionQuery {
  uint16_t layer = 0;        // index in the image's group
  uint32_t query_heads = 0;  // a multiple of the slice's heads: query head h uses KV head h /
                             // (query_heads / heads)
  uint32_t v_dim = 0;        // only for latents, whose V is the first channels of K
  float scale = 1;
  std::span<const float> queries;  // [query_heads][k_dim], finite; after RoPE, like K
};

// Attends to the image's tokens, except tokens that ReadKept() reports as evicted.
//   view      parsed and verified; of kKv or kLatent
//   outputs   [query_heads][v_dim]
//   log_sums  [query_heads]
// MergeAttention() merges the parts of several images of a chain. Errors: kInvalidSlice (the image
// has no such layer), kInvalidShape (the image is of another kind, sizes differ from those stated,
// or v_dim is out of range), and the errors of Decode().
Error AttendImage(const Backend& backend, const ImageView& view, const AttentionQuery& query,
                  const DecodeInputs& inputs, std::span<float> outputs, std::span<float> log_sums);

}  // namespace cairn::codecs
