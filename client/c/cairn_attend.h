/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_ATTEND_H
#define CAIRN_ATTEND_H
// Computes attention on a CUDA device over blocks that stay encoded there.
// docs/internals/kernels.md lists the recipes. This file is a part of cairn.h, and its rules apply.
// Include cairn.h.
//
// CAIRN_UNIMPLEMENTED: the library has no device kernels, or a block must be decoded first. The
// text gives the reason. CAIRN_UNAVAILABLE: the device does not exist or has failed. A device that
// has failed stays unavailable.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#include "cairn_paged.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_device_images cairn_device_images; /* a sequence's blocks on a device */
typedef struct cairn_attend_plan cairn_attend_plan;     /* the plan of attention at one layer */

/* Opens a list for the images of a slice of blocks. Close it before the space. */
CAIRN_API int cairn_device_images_open(cairn_space* space, int32_t device_number,
                                       const cairn_slice* slice, cairn_device_images** images);
/* Gets blocks, verifies them and appends them to the list, up to the first miss. Sets *appended to
 * the number of blocks appended. The copies run on `stream`, a cudaStream_t that is not NULL, and
 * are complete when the call returns. `lease` may be NULL. */
CAIRN_API int cairn_device_images_append(cairn_device_images* images, const cairn_key* keys,
                                         size_t key_count, const cairn_lease* lease, void* stream,
                                         uint32_t timeout_ms, size_t* appended);
/* Sets *count to the number of blocks in the list. If an append fails, the list has the blocks
 * before the failure, and *count includes them. */
CAIRN_API int cairn_device_images_count(cairn_device_images* images, size_t* count);
/* Closes the list, which may be NULL. REQUIRES: no attention to its images is running. */
CAIRN_API void cairn_device_images_close(cairn_device_images* images);

/* One attention job: the query tokens of a sequence at one layer, the images of the sequence's
 * blocks, and a raw tail. The tail is the tokens in the engine's cache that are not in a block yet.
 * All pointers except `images` and `tail` are device pointers. */
typedef struct cairn_attend_job {
  uint32_t struct_bytes;
  uint32_t layer; /* within the images' group */
  const cairn_device_images* images;
  uint32_t head_first, head_count;    /* KV heads; a count of 0: all from head_first on */
  uint32_t query_heads, query_tokens; /* head h reads KV head h / (query_heads / head_count) */
  uint32_t v_dim;                     /* for latents, whose V is the first channels of K */
  float scale;                        /* scale of the scores; positive */
  /* [query_tokens][query_heads][k_dim] in the space's dtype, after RoPE, 16-byte aligned */
  const void* queries;
  float* outputs;  /* [query_tokens][query_heads][v_dim] */
  float* log_sums; /* [query_tokens][query_heads], for merging outputs */
  /* NULL: no tail. Its planes are on the plan's device. They have at least the group's layers up to
   * `layer`, and all heads. The call that makes the plan reads this struct. */
  const cairn_paged_cache* tail;
  const int32_t* tail_blocks; /* the engine's blocks, in order; a negative entry skips its tokens */
  uint32_t tail_block_count;
  uint32_t tail_first_token; /* the tail begins at this token of the first block */
  uint32_t tail_tokens_max;  /* up to 65535 */
  /* 1: the query tokens are the last tokens of the tail; each reads only tokens up to its own */
  uint32_t tail_ends_with_queries;
  /* Number of tokens, read at each launch; NULL: tail_tokens_max */
  const int32_t* tail_tokens;
} cairn_attend_job;

/* Plans up to 256 jobs on one device. The plan can be launched repeatedly until images or addresses
 * change. Do not append images while it exists. The plan is uploaded on `stream`. If the first
 * launch is on another stream, that stream must wait for the upload. Close the plan before its
 * images. CAIRN_RESOURCE_EXHAUSTED: host or device has no room, or there are more jobs, images or
 * tokens than a plan can have. */
CAIRN_API int cairn_attend_open(cairn_space* space, int32_t device_number,
                                const cairn_attend_job* jobs, size_t job_count, void* stream,
                                cairn_attend_plan** plan);
/* Launches the kernels on the stream. The call neither allocates nor waits, so a CUDA graph can
 * capture the launch. */
CAIRN_API int cairn_attend_launch(cairn_attend_plan* plan, void* stream);
/* Checks the launches. CAIRN_FAILED_PRECONDITION: the stream has not completed. CAIRN_DATA_LOSS or
 * CAIRN_INVALID_ARGUMENT: an image or a tail is invalid. cairn_last_error() names it, and the
 * outputs of its sequence are unspecified. Launches by a captured graph are not tracked: call this
 * function after they have completed. */
CAIRN_API int cairn_attend_check(cairn_attend_plan* plan);
/* Waits for the launches and frees the plan, which may be NULL. REQUIRES: no captured graph of the
 * plan is running. */
CAIRN_API void cairn_attend_close(cairn_attend_plan* plan);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_ATTEND_H */
