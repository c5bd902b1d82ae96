/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_PAGED_H
#define CAIRN_PAGED_H
// The part of the C ABI that moves many blocks between the store and an engine's paged cache, which
// is described once: no request per block, no repacking. Part of cairn.h, whose rules hold here
// too; include that.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// K, V or a latent of all of an engine's blocks. Element [layer, block, token, head, dim] is at
//   (layers ? layers[layer] : data + layer * layer_stride) + block * block_stride
//     + head * head_stride
//     + token / tokens_per_run * token_run_stride + token % tokens_per_run * token_stride
//     + dim / dims_per_run * dim_run_stride + dim % dims_per_run * dim_stride
// A run of 0 never ends: then it is token * token_stride, or dim * dim_stride. Strides are bytes
// and may be negative. layer and head count within the slice that is moved.
typedef struct cairn_paged_plane {
  void* data;          /* not written to by a put */
  void* const* layers; /* one pointer per layer of the slice, or NULL */
  int64_t layer_stride, block_stride, head_stride;
  int64_t token_run_stride, token_stride;
  int64_t dim_run_stride, dim_stride;
  uint32_t tokens_per_run, dims_per_run;
  int64_t first_byte, end_byte; /* as of cairn_view */
} cairn_paged_plane;

typedef struct cairn_paged_cache {
  uint32_t struct_bytes;
  uint32_t tokens_per_block; /* of the engine's blocks; divides the space's */
  int64_t block_count;       /* that the engine has */
  cairn_paged_plane k, v;    /* a latent has k only */
  int32_t device;            /* CAIRN_DEVICE_…: where the planes lie */
  int32_t device_number;     /* which of them */
  /* Of a device, its stream, a cudaStream_t that is not NULL: what is on it already is over before
   * the cache is touched, what is put on it after the call comes after all of the call's. It may be
   * destroyed once the call has returned, but after DEADLINE_EXCEEDED only with the space. */
  void* stream;
} cairn_paged_cache;

/* Where a cache lies. On a CUDA device images are encoded and decoded there, whatever `code` of the
 * request says; rows have adjacent channels, strides are not negative, and end_byte is given.
 * UNIMPLEMENTED: the library has no device kernels; UNAVAILABLE: there is no such device, or it
 * failed in an earlier call, and then for good. Gets of one space, slice and device run one after
 * the other, puts likewise, and so do calls that name one stream; one whose turn does not come by
 * its timeout answers DEADLINE_EXCEEDED. The first get of a slice takes memory of the device for 16
 * of its images, the first put for as many and room to encode 8 in; both keep it until the space is
 * closed. cairn_gather_paged() takes no device. */
enum { CAIRN_DEVICE_HOST = 0, CAIRN_DEVICE_CUDA = 1 };

/* Consecutive blocks of one chain, and where the engine has them. */
typedef struct cairn_paged_request {
  uint32_t struct_bytes;
  uint32_t timeout_ms;
  cairn_slice slice;
  int32_t code; /* CAIRN_ENCODE_… of a put, CAIRN_DECODE_… of a get */
  const cairn_key* keys;
  size_t key_count;
  /* The engine's blocks: the space's tokens_per_block / the cache's of them for each key. -1: a get
   * leaves the tokens of that one out. */
  const int64_t* blocks;
  size_t block_count;
  cairn_lease lease; /* of a get; all zero: none */
  /* Of a put: of the first key. The others follow one another. */
  cairn_key parent;
  uint64_t first_position;
  uint32_t derived;
  uint32_t durable;  /* as of cairn_put_request, of each key */
  int32_t* statuses; /* set by the call, one per key, where it returns CAIRN_OK */
  /* Set by the call, sums over the keys that succeeded: */
  uint64_t bytes;        /* of source form that were put or got */
  uint64_t wire_bytes;   /* of a get: that moved; of a put: that the daemon holds */
  int32_t* durabilities; /* NULL, or set by a put as statuses are: CAIRN_DURABILITY_… */
} cairn_paged_request;

/* Many at once, pipelined. CAIRN_OK: each key has its own status. Of a get, what is not
 * CAIRN_OK left its blocks in any state, and a CAIRN_NOT_FOUND is a miss. */
CAIRN_API int cairn_get_paged(cairn_space* space, const cairn_paged_cache* cache,
                              cairn_paged_request* request);
CAIRN_API int cairn_put_paged(cairn_space* space, const cairn_paged_cache* cache,
                              cairn_paged_request* request);
/* Copies blocks of the cache to `target`, in source form, one after the other: puts of it may then
 * go on while the engine uses its blocks anew. Of the request it reads slice and blocks. No call to
 * the daemon. `target` has exactly the bytes of as many slices. */
CAIRN_API int cairn_gather_paged(cairn_space* space, const cairn_paged_cache* cache,
                                 const cairn_paged_request* request, void* target,
                                 uint64_t target_bytes);

/* Whether the library moves blocks of caches there: of a CUDA device the errors above. */
CAIRN_API int cairn_check_device(int32_t device, int32_t device_number);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_PAGED_H */
