/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_TOKENS_H
#define CAIRN_TOKENS_H
// Token scores and token plans for the recipes arkv and arkv:paper (docs/recipes/arkv.md), and the
// scores in their images. The functions are pure: they need no daemon, keep no state, and may be
// called concurrently. This file is a part of cairn.h, and its rules apply. Include cairn.h.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_ARKV_GAMMA 263.81 /* the paper's weight of the variance */

/* The attention of one layer, from the last `queries` tokens of a chain of `keys` tokens. It is
 * given as the weights after the softmax. If `weights` is NULL, it is given as queries and keys
 * after RoPE. */
typedef struct cairn_attention {
  uint32_t struct_bytes;
  uint32_t query_heads, kv_heads; /* query head h reads KV head h / (query_heads / kv_heads) */
  uint32_t queries, keys;
  uint32_t dim;              /* of query_values and key_values */
  const float* weights;      /* [query_heads][queries][keys]; rows with a NaN are ignored */
  const float* query_values; /* [query_heads][queries][dim] */
  const float* key_values;   /* [kv_heads][keys][dim] */
  double scale;              /* scale of query-key products: usually 1 / sqrt(dim) */
  double gamma;              /* weight of the variance in a score: usually CAIRN_ARKV_GAMMA */
} cairn_attention;

/* Statistics of one layer's attention to the tokens before the last `queries` tokens. */
typedef struct cairn_layer_statistics {
  double entropy, variance, kurtosis;
} cairn_layer_statistics;

/* Computes the scores of a layer's tokens, [kv_heads][keys]. The score of each of the last
 * `queries` tokens is infinite. Also computes the layer's statistics if `statistics` is not NULL.
 * CAIRN_INVALID_ARGUMENT: the shape is invalid. */
CAIRN_API int cairn_token_scores(const cairn_attention* attention, float* scores,
                                 cairn_layer_statistics* statistics);
/* Writes rho of each layer into `shares`: the share of the budget for original tokens, 0 to 1. */
CAIRN_API int cairn_layer_shares(const cairn_layer_statistics* layers, size_t layer_count,
                                 double* shares);

enum { CAIRN_TOKEN_EVICTED = 0, CAIRN_TOKEN_LOW = 1, CAIRN_TOKEN_ORIGINAL = 2 };

/* The budget of one head of one layer, K and V together. `original_bytes` and `low_bytes` are the
 * sizes that a reader of arkv counts for one token. */
typedef struct cairn_token_budget {
  uint32_t struct_bytes;
  uint32_t is_uniform;     /* 1: all heads keep the same tokens; 0: each head keeps its own */
  uint64_t bytes;          /* never exceeded */
  uint64_t original_bytes; /* of an original token; at least 1 */
  uint64_t low_bytes;      /* of a low token; 1 to original_bytes */
  /* Rho, 0 to 1. Of the budget that is left after tokens with infinite scores, this share is for
   * original tokens */
  double original_share;
} cairn_token_budget;

/* Writes a CAIRN_TOKEN_… for each score, [heads][tokens], into `states`. */
CAIRN_API int cairn_plan_tokens(const cairn_token_budget* budget, const float* scores,
                                uint32_t heads, uint32_t tokens, uint8_t* states);

/* Verifies an image of arkv and writes its scores, [layer][head][token] of its slice. They are
 * infinite for a head whose K is raw. For images of other recipes, writes 0. */
CAIRN_API int cairn_image_scores(const void* image, size_t image_bytes, float* scores);
/* Verifies an image and writes, for [layer][head][token] of its slice, 1 if the image has the token
 * and 0 if arkv:paper evicted it. An evicted token decodes to zeros; exclude it from attention. */
CAIRN_API int cairn_image_kept(const void* image, size_t image_bytes, uint8_t* kept);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_TOKENS_H */
