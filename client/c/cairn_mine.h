/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_MINE_H
#define CAIRN_MINE_H
// Mines banks and profiles, the side objects of some recipes, from KV in an engine's paged cache on
// a CUDA device. This file is a part of cairn.h, and its rules apply. Include cairn.h.
//
// CAIRN_UNIMPLEMENTED: the library has no device kernels. CAIRN_UNAVAILABLE: the device does not
// exist or has failed. A device that has failed stays unavailable. Mining calls for one space and
// device run one after another. So do mining calls and block moves on one stream.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#include "cairn_paged.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KV of one text: full blocks of the engine, in order. If an entry is -1, the tokens of that block
 * are skipped. */
typedef struct cairn_sample_text {
  const int64_t* blocks;
  size_t block_count;
  uint64_t first_position; /* position of the first block's first token */
} cairn_sample_text;

/* The KV from which to mine: at most 65535 tokens, including skipped tokens. */
typedef struct cairn_sample {
  uint32_t struct_bytes;
  uint32_t timeout_ms;
  uint32_t group; /* of the space */
  /* A cache on a CUDA device, with its stream, and with all layers and heads of the group. It may
   * have any tokens_per_block. The call only reads it. */
  const cairn_paged_cache* cache;
  const cairn_sample_text* texts;
  size_t text_count;
} cairn_sample;

/* A mined profile or bank. Free it with cairn_mined_free(). */
typedef struct cairn_mined cairn_mined;

/* Mines a bank of `patterns` patterns per head, 1 to 256. Skips blocks that contain one of the
 * first four tokens of a chain. Does not call the daemon: use cairn_side_object_put() to install
 * the bank. */
CAIRN_API int cairn_mine_bank(cairn_space* space, const cairn_sample* sample, uint32_t patterns,
                              cairn_mined** mined);
/* Mines a profile. `rates` are in tenths of a bit, ascending. If rate_count is 0, the rates are
 * 2.3, 3.0, 4.3 and that of the space's recipe. `query_squares` is the mean of the squared query
 * for each channel of K, after RoPE: [layer][head][k_dim] of the group. If query_square_count is 0,
 * the mean is unknown. */
CAIRN_API int cairn_mine_profile(cairn_space* space, const cairn_sample* sample,
                                 const uint16_t* rates, size_t rate_count,
                                 const float* query_squares, size_t query_square_count,
                                 cairn_mined** mined);
/* The bytes, valid until cairn_mined_free(). */
CAIRN_API const void* cairn_mined_data(const cairn_mined* mined);
CAIRN_API size_t cairn_mined_bytes(const cairn_mined* mined);
/* `mined` may be NULL. */
CAIRN_API void cairn_mined_free(cairn_mined* mined);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_MINE_H */
