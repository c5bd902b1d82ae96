/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_MINE_H
#define CAIRN_MINE_H
// The part of the C ABI that mines banks and profiles, which some recipes code with, from KV that
// lies in an engine's paged cache on a CUDA device. Part of cairn.h, whose rules hold here too;
// include that.
//
// UNIMPLEMENTED: the library has no device kernels. UNAVAILABLE: there is no such device, or it
// failed, and then for good. Calls that mine for one space and device run one after the other; so
// do one that mines and one that moves blocks, if they name the same stream.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#include "cairn_paged.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KV of a text: the engine's blocks, in order, and full. -1 leaves the tokens of that one out. */
typedef struct cairn_sample_text {
  const int64_t* blocks;
  size_t block_count;
  uint64_t first_position; /* of the first token of the first */
} cairn_sample_text;

/* At most 65535 tokens, those of blocks that are left out too. */
typedef struct cairn_sample {
  uint32_t struct_bytes;
  uint32_t timeout_ms;
  uint32_t group; /* of the space */
  /* On a CUDA device, with its stream; of all layers and heads of the group. Only read. Any
   * tokens_per_block does. */
  const cairn_paged_cache* cache;
  const cairn_sample_text* texts;
  size_t text_count;
} cairn_sample;

/* What is mined. cairn_mined_free() frees it. */
typedef struct cairn_mined cairn_mined;

/* A bank of that many patterns a head, 1 to 256. Blocks with one of the first four tokens of a
 * chain are left out, too. No call to the daemon: cairn_side_object_put() installs it. */
CAIRN_API int cairn_mine_bank(cairn_space* space, const cairn_sample* sample, uint32_t patterns,
                              cairn_mined** mined);
/* A profile. `rates`, in tenths of a bit, ascend; none: 2.3, 3.0, 4.3 and that of the space's
 * recipe. `query_squares`: the mean of the squared query at each channel of K, after RoPE,
 * [layer][head] [k_dim] of the group; none: not known. */
CAIRN_API int cairn_mine_profile(cairn_space* space, const cairn_sample* sample,
                                 const uint16_t* rates, size_t rate_count,
                                 const float* query_squares, size_t query_square_count,
                                 cairn_mined** mined);
/* Its bytes, until it is freed. */
CAIRN_API const void* cairn_mined_data(const cairn_mined* mined);
CAIRN_API size_t cairn_mined_bytes(const cairn_mined* mined);
/* NULL is fine. */
CAIRN_API void cairn_mined_free(cairn_mined* mined);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_MINE_H */
