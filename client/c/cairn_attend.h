/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_ATTEND_H
#define CAIRN_ATTEND_H
// The part of the C ABI that attends to blocks on a CUDA device without decoding them: they lie
// there as the store has them. docs/internals/kernels.md says for which recipes. Part of cairn.h,
// whose rules hold here too; include that.
//
// UNIMPLEMENTED: the library has no device kernels, or a block has to be decoded first, and why.
// UNAVAILABLE: there is no such device, or it failed, and then for good.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#include "cairn_paged.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_device_images cairn_device_images; /* a sequence's blocks on a device */
typedef struct cairn_attend_plan cairn_attend_plan;     /* what sequences attend to at a layer */

/* Opens a place for a slice of blocks. Close it before the space. */
CAIRN_API int cairn_device_images_open(cairn_space* space, int32_t device_number,
                                       const cairn_slice* slice, cairn_device_images** images);
/* Gets blocks, verified, and puts them behind those that are there: *appended of them, up to the
 * first miss. The copies are put on `stream`, a cudaStream_t that is not NULL; they are over when
 * this returns. `lease` may be NULL. */
CAIRN_API int cairn_device_images_append(cairn_device_images* images, const cairn_key* keys,
                                         size_t key_count, const cairn_lease* lease, void* stream,
                                         uint32_t timeout_ms, size_t* appended);
/* How many blocks are there. Also after an append that failed, which keeps those before. */
CAIRN_API int cairn_device_images_count(cairn_device_images* images, size_t* count);
/* NULL is fine. Nothing may attend to them any more. */
CAIRN_API void cairn_device_images_close(cairn_device_images* images);

/* Query tokens of a sequence at a layer, and what they attend to: its images, and what is in no
 * block yet, a raw tail in the engine's cache. Pointers but those of images and tail are the
 * device's. */
typedef struct cairn_attend_job {
  uint32_t struct_bytes;
  uint32_t layer; /* of the images' group */
  const cairn_device_images* images;
  uint32_t head_first, head_count;    /* KV heads; a count of 0: all from first on */
  uint32_t query_heads, query_tokens; /* head h reads KV head h / (query_heads / head_count) */
  uint32_t v_dim;                     /* of latents, whose V is the first channels of K */
  float scale;                        /* of scores; positive */
  const void* queries; /* [query_tokens][query_heads][k_dim] in the space's dtype, after RoPE, at a
                        * multiple of 16 */
  float* outputs;      /* [query_tokens][query_heads][v_dim] */
  float* log_sums;     /* [query_tokens][query_heads], to merge outputs with others by */
  /* NULL: no tail. Its planes are of the group's layers, up to this one at least, and of all its
   * heads, on the plan's device. Read while the plan is made. */
  const cairn_paged_cache* tail;
  const int32_t* tail_blocks; /* of the engine, in order; negative: its tokens are left out */
  uint32_t tail_block_count;
  uint32_t tail_first_token;       /* of the first block: of that many begins the tail */
  uint32_t tail_tokens_max;        /* up to 65535 */
  uint32_t tail_ends_with_queries; /* 1: query tokens are its last and do not see those behind */
  const int32_t* tail_tokens;      /* how many there are, read at each launch; NULL: the most */
} cairn_attend_job;

/* Plans up to 256 jobs of one device, for as many steps as images and places stay what they are. No
 * images may be appended to meanwhile. The plan is put on `stream`, where a first launch on another
 * has to wait for it. Close it before its images. RESOURCE_EXHAUSTED: host or device has no room,
 * or there are more jobs, images or tokens than a plan has. */
CAIRN_API int cairn_attend_open(cairn_space* space, int32_t device_number,
                                const cairn_attend_job* jobs, size_t job_count, void* stream,
                                cairn_attend_plan** plan);
/* Puts the kernels on the stream. Neither allocates nor waits: a graph can be captured of it. */
CAIRN_API int cairn_attend_launch(cairn_attend_plan* plan, void* stream);
/* Once the stream is over, else FAILED_PRECONDITION: DATA_LOSS or INVALID_ARGUMENT where an image
 * or a tail is not what it should be; cairn_last_error() says which. Outputs of that sequence are
 * in any state. Replays of a graph that was captured are not looked at: call it once they are
 * over. */
CAIRN_API int cairn_attend_check(cairn_attend_plan* plan);
/* Waits for what was launched. No graph that was captured of it may run any more. NULL is fine. */
CAIRN_API void cairn_attend_close(cairn_attend_plan* plan);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_ATTEND_H */
