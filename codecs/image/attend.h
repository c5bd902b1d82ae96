// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over an image: what a kernel that reads images computes, in plain loops. The sums and
// their order are those of codecs/backend/reference/attention.h.
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
  uint16_t layer = 0;        // of the image's group
  uint32_t query_heads = 0;  // a multiple of the slice's heads: head h reads KV head
                             // h / (query_heads / heads)
  uint32_t v_dim = 0;        // of latents, whose V is the first channels of K; else not read
  float scale = 1;
  std::span<const float> queries;  // [query_heads][k_dim], finite; after RoPE, as K is
};

// Attends to the image's tokens, without those that ReadKept() says are gone.
//   view      parsed and verified; of kKv or kLatent
//   outputs   [query_heads][v_dim]
//   log_sums  [query_heads]
// Parts of several images of a chain are merged by MergeAttention().
// kInvalidSlice: the image has no such layer. kInvalidShape: another kind, sizes that are not those
// stated, or v_dim out of range. Besides, what Decode() says.
Error AttendImage(const Backend& backend, const ImageView& view, const AttentionQuery& query,
                  const DecodeInputs& inputs, std::span<float> outputs, std::span<float> log_sums);

}  // namespace cairn::codecs
