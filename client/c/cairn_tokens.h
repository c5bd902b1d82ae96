/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_TOKENS_H
#define CAIRN_TOKENS_H
// The part of the C ABI that is about what tokens are worth: scores and plans for the recipes arkv
// and arkv:paper (docs/recipes/arkv.md), and what their images say of tokens. Pure functions: no
// daemon is needed, nothing is kept, all may be called at once. Part of cairn.h, whose rules hold
// here too; include that.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_ARKV_GAMMA 263.81 /* the paper's weight of the variance */

/* A layer's attention from the last `queries` of a chain of `keys` tokens: its weights after the
 * softmax, or, where `weights` is NULL, queries and keys as they meet, after RoPE. */
typedef struct cairn_attention {
  uint32_t struct_bytes;
  uint32_t query_heads, kv_heads; /* query head h reads KV head h / (query_heads / kv_heads) */
  uint32_t queries, keys;
  uint32_t dim;              /* of query_values and key_values */
  const float* weights;      /* [query_heads][queries][keys]; a row with a NaN is left out */
  const float* query_values; /* [query_heads][queries][dim] */
  const float* key_values;   /* [kv_heads][keys][dim] */
  double scale;              /* of their products: 1 / sqrt(dim) as a rule */
  double gamma;              /* of the variance in a score: CAIRN_ARKV_GAMMA as a rule */
} cairn_attention;

/* Of the share that each token before the last `queries` gets of their attention. */
typedef struct cairn_layer_statistics {
  double entropy, variance, kurtosis;
} cairn_layer_statistics;

/* Scores of a layer's tokens, [kv_heads][keys], infinite for the last `queries`, and, where it is
 * not NULL, the layer's statistics. CAIRN_INVALID_ARGUMENT: no such shape. */
CAIRN_API int cairn_token_scores(const cairn_attention* attention, float* scores,
                                 cairn_layer_statistics* statistics);
/* rho of each layer, 0 to 1, into `shares`. */
CAIRN_API int cairn_layer_shares(const cairn_layer_statistics* layers, size_t layer_count,
                                 double* shares);

enum { CAIRN_TOKEN_EVICTED = 0, CAIRN_TOKEN_LOW = 1, CAIRN_TOKEN_ORIGINAL = 2 };

/* Of one head of one layer, K and V together. A reader of arkv counts what it holds of a token. */
typedef struct cairn_token_budget {
  uint32_t struct_bytes;
  uint32_t is_uniform;     /* 1: the same tokens for all heads; 0: each head its own */
  uint64_t bytes;          /* never passed */
  uint64_t original_bytes; /* of an original token, at least 1 */
  uint64_t low_bytes;      /* of a low one, 1 to original_bytes */
  double original_share;   /* rho: of what tokens of infinite score leave; 0 to 1 */
} cairn_token_budget;

/* A CAIRN_TOKEN_… for each of scores [heads][tokens], into `states`, likewise. */
CAIRN_API int cairn_plan_tokens(const cairn_token_budget* budget, const float* scores,
                                uint32_t heads, uint32_t tokens, uint8_t* states);

/* The scores that an image of arkv holds, [layer][head][token] of its slice: infinite for a head
 * whose K is raw, 0 in images of other recipes. The image is verified. */
CAIRN_API int cairn_image_scores(const void* image, size_t image_bytes, float* scores);
/* 1 for each token that an image has, 0 for one that arkv:paper evicted, which decodes to zeros and
 * is to be left out of attention: [layer][head][token] of its slice. The image is verified. */
CAIRN_API int cairn_image_kept(const void* image, size_t image_bytes, uint8_t* kept);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_TOKENS_H */
