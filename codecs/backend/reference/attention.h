// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reference loops of attention over decoded tiles. Attention is computed in parts, as in
// flash-decoding. A part computes softmax(scale * q K^T) V over its own tokens, and the logarithm
// of the softmax's sum, which is needed to merge parts. Tests compare the kernels that attend to
// images with these loops.
//
//   score of token t   s[t] = scale * sum over c of q[c] * K[t][c]
//   largest            m = the largest score of a token that is kept
//   weight of token t  p[t] = AttentionExp(s[t] - m)
//   sum                l = sum over t of p[t]
//   log_sum            m + AttentionLog(l)
//   output of c        (sum over t of p[t] * V[t][c]) / l
//
// Every operation is in fp32, with its own rounding. A sum over c adds its terms in the order of c.
// A sum over t adds them in the order of kAttentionSums, by the token's index in the tile. Tokens
// that are not kept are counted by this index, but add nothing. A part without tokens has the
// output 0 and the log_sum -infinity.
//
// Thread-safety: pure functions. They do not allocate.

#include <cstdint>

#include "codecs/types/dtype.h"

namespace cairn::codecs::reference {

// The tiles of one KV head. For latents, V is the first v_dim channels of K.
struct AttendedTiles {
  DType dtype;             // not kBytes
  uint32_t tokens;         // 1..1024
  uint32_t k_dim;          // 1..4096
  uint32_t v_dim;          // 1..4096
  uint32_t v_row;          // elements from one token of v to the next
  const uint8_t* k;        // [token][k_dim]
  const uint8_t* v;        // [token][v_row]
  const uint8_t* is_kept;  // one byte per token, 0: excluded; null: all are kept
};

// Computes one query head: sets output[0..v_dim) and *log_sum.
//   query   k_dim, finite
void Attend(const AttendedTiles& tiles, const float* query, float scale, float* output,
            float* log_sum);

// Merges the parts of one query head:
//   weight of part i  w[i] = AttentionExp(log_sum[i] - the largest log_sum)
//   output of c       (sum over i of w[i] * output[i][c]) / (sum over i of w[i])
// Sums over i are in order. Parts without tokens add nothing.
//   outputs   [count][v_dim]
void MergeAttention(uint32_t count, uint32_t v_dim, const float* outputs, const float* log_sums,
                    float* output, float* log_sum);

}  // namespace cairn::codecs::reference
