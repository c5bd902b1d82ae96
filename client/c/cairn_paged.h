/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_PAGED_H
#define CAIRN_PAGED_H
// Moves many blocks between the store and an engine's paged cache. The cache is described once. The
// blocks need neither a request each nor repacking. This file is a part of cairn.h, and its rules
// apply. Include cairn.h.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// K, V or a latent of all blocks of an engine. Element [layer, block, token, head, dim] is at
//   (layers ? layers[layer] : data + layer * layer_stride) + block * block_stride
//     + head * head_stride
//     + token / tokens_per_run * token_run_stride + token % tokens_per_run * token_stride
//     + dim / dims_per_run * dim_run_stride + dim % dims_per_run * dim_stride
// A run length of 0 means one run without end: then the term is token * token_stride, or dim *
// dim_stride. Strides are in bytes and may be negative. layer and head are counted within the slice
// that is moved.
typedef struct cairn_paged_plane {
  void* data;          /* a put only reads it */
  void* const* layers; /* one pointer per layer of the slice, or NULL */
  int64_t layer_stride, block_stride, head_stride;
  int64_t token_run_stride, token_stride;
  int64_t dim_run_stride, dim_stride;
  uint32_t tokens_per_run, dims_per_run;
  int64_t first_byte, end_byte; /* as in cairn_view */
} cairn_paged_plane;

typedef struct cairn_paged_cache {
  uint32_t struct_bytes;
  uint32_t tokens_per_block; /* of the engine's blocks; the space's number is a multiple of it */
  int64_t block_count;       /* number of blocks in the engine */
  cairn_paged_plane k, v;    /* a latent has k only */
  int32_t device;            /* CAIRN_DEVICE_… */
  int32_t device_number;     /* number of the CUDA device */
  /* For a device: its stream, a cudaStream_t that is not NULL. The call's work runs after all work
   * that is on the stream already, and before all later work. The stream may be destroyed once the
   * call has returned; after DEADLINE_EXCEEDED, only once the space is closed. */
  void* stream;
} cairn_paged_cache;

/* Where a cache is. On a CUDA device, images are encoded and decoded there; `code` of the request
 * is ignored. The cache must have adjacent channels, strides that are not negative, and end_byte
 * set. Gets of one space, slice and device run one after another. So do puts, and so do all calls
 * on one stream. If a call's turn does not come in time, it returns CAIRN_DEADLINE_EXCEEDED. The
 * first get of a slice allocates device memory for 16 of its images. The first put allocates memory
 * for 16 images, and the workspace for encoding 8. The space keeps both until it is closed.
 * cairn_gather_paged() does not support devices. CAIRN_UNIMPLEMENTED: the library has no device
 * kernels. CAIRN_UNAVAILABLE: the device does not exist, or has failed. A device that has failed
 * stays unavailable. */
enum { CAIRN_DEVICE_HOST = 0, CAIRN_DEVICE_CUDA = 1 };

/* Consecutive blocks of one chain and their places in the engine's cache. */
typedef struct cairn_paged_request {
  uint32_t struct_bytes;
  uint32_t timeout_ms;
  cairn_slice slice;
  int32_t code; /* CAIRN_ENCODE_… of a put, CAIRN_DECODE_… of a get */
  const cairn_key* keys;
  size_t key_count;
  /* The engine's blocks of each key: tokens_per_block of the space / tokens_per_block of the cache.
   * In a get, the tokens of a block -1 are skipped. */
  const int64_t* blocks;
  size_t block_count;
  cairn_lease lease; /* for a get; all zero: none */
  /* For a put: parent and position of the first key. Each other key's parent is the key before
   * it. */
  cairn_key parent;
  uint64_t first_position;
  uint32_t derived;
  uint32_t durable;  /* as in cairn_put_request, for each key */
  int32_t* statuses; /* one per key; set by the call if it returns CAIRN_OK */
  /* Set by the call: sums over the keys that succeeded. */
  uint64_t bytes;        /* size of the KV moved, in source form */
  uint64_t wire_bytes;   /* get: bytes moved; put: size of the images in the daemon */
  int32_t* durabilities; /* NULL, or CAIRN_DURABILITY_… of each key, set by a put like statuses */
  const cairn_names* names; /* of a put: NULL, or those of each key */
} cairn_paged_request;

/* Run many gets or puts, pipelined. If they return CAIRN_OK, each key has its own status;
 * CAIRN_NOT_FOUND is a miss. If a get of a key fails, its blocks in the cache are unspecified. */
CAIRN_API int cairn_get_paged(cairn_space* space, const cairn_paged_cache* cache,
                              cairn_paged_request* request);
CAIRN_API int cairn_put_paged(cairn_space* space, const cairn_paged_cache* cache,
                              cairn_paged_request* request);
/* Copies blocks of the cache to `target` in source form, one after another. After that, the engine
 * can use its blocks again while puts from `target` run. Uses only slice and blocks of the request.
 * Does not call the daemon. `target` must have exactly the size of that many slices. */
CAIRN_API int cairn_gather_paged(cairn_space* space, const cairn_paged_cache* cache,
                                 const cairn_paged_request* request, void* target,
                                 uint64_t target_bytes);

/* Checks that the library can move blocks of caches on a device. For CUDA devices it returns the
 * errors listed above. */
CAIRN_API int cairn_check_device(int32_t device, int32_t device_number);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_PAGED_H */
