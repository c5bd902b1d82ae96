/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_IMAGE_H
#define CAIRN_IMAGE_H
// Functions on images: inspect, verify, decode and encode them. The functions are pure: they need
// no daemon, keep no state, and may be called concurrently. This file is a part of cairn.h, and its
// rules apply. Include cairn.h.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_image_info {
  uint32_t struct_bytes;
  uint32_t version;
  uint8_t fingerprint[32]; /* of the space */
  cairn_key key;
  cairn_slice slice;
  uint32_t tokens;
  int32_t dtype; /* CAIRN_DTYPE_… */
  uint64_t first_position;
  uint64_t image_bytes, source_bytes;
  uint32_t tile_count;
  uint32_t k_dim, v_dim;
  char recipe[64];
  uint8_t side_object[32]; /* id of its profile or bank; all zero: none */
} cairn_image_info;

/* Reads header and directory of an untrusted image. CAIRN_INVALID_ARGUMENT: the text says what is
 * wrong. */
CAIRN_API int cairn_image_inspect(const void* image, size_t image_bytes, cairn_image_info* info);
/* Checks every CRC. CAIRN_DATA_LOSS: a CRC does not match; the call then still sets *corrupt_tiles.
 * `corrupt_tiles` may be NULL. */
CAIRN_API int cairn_image_verify(const void* image, size_t image_bytes, uint64_t* corrupt_tiles);
/* Verifies an image and decodes it into `target` (VIEWS or SOURCE, of the image's own slice). For
 * images of cairn:bits and patternkv:b, use cairn_image_decode_with. */
CAIRN_API int cairn_image_decode(const void* image, size_t image_bytes, const cairn_memory* target);
/* Like cairn_image_decode, for an image of cairn:bits with its profile
 * (docs/internals/formats/profile.md) or of patternkv:b with its bank
 * (docs/internals/formats/bank.md). CAIRN_INVALID_ARGUMENT: the image has another recipe. */
CAIRN_API int cairn_image_decode_with(const void* image, size_t image_bytes, const void* profile,
                                      size_t profile_bytes, const cairn_memory* target);

/* All inputs of an encoder except the elements. Equal specs and equal elements give equal bytes on
 * every machine, also in the daemon. */
typedef struct cairn_image_spec {
  uint32_t struct_bytes;
  int32_t kind;            /* CAIRN_GROUP_… */
  uint8_t fingerprint[32]; /* fingerprint of the space; may be zero if the image is not put into a
                            * space */
  cairn_key key;           /* key of the block; may be zero in the same case */
  cairn_slice slice;       /* counts must be explicit: here 0 does not mean all */
  uint32_t tokens;         /* 1 to 1024 */
  int32_t dtype;           /* CAIRN_DTYPE_…; ignored for STATE and OPAQUE_ROWS */
  uint32_t k_dim, v_dim;   /* KV: per head; latent: k_dim; STATE, OPAQUE_ROWS: k_dim bytes */
  /* Position of the first token in its sequence; kivi:b+ keeps token 0 exact */
  uint64_t first_position;
  const char* recipe; /* "raw", "kivi:4", …; required */
  /* The side object that the recipe needs: a profile for cairn:bits, a bank for patternkv:b.
   * Borrowed for the call */
  const void* profile;
  size_t profile_bytes;
  /* Inputs that some recipes need, or that improve their compression. NULL: none. Borrowed for the
   * call. */
  const void* parent_image; /* the same slice of the previous block; ott:2 continues from it */
  size_t parent_image_bytes;
  /* [layer][head][k_dim] of the slice: the mean of |q|, after RoPE, over the queries that read a
   * K head. Values are finite and not negative. */
  const float* query_magnitudes;
  /* [layer][head][token] of the slice: scores of tokens for arkv, from cairn_token_scores(). */
  const float* token_scores;
  /* The number of tokens of the chain in which the block is read. In longer chains, logquant keeps
   * fewer tokens exactly. If the value is below the block's end, for example 0, the chain ends with
   * the block. */
  uint64_t chain_tokens;
  /* [layer][head][token] of the slice: CAIRN_TOKEN_… for arkv:paper, from cairn_plan_tokens().
   * NULL: all tokens are low. */
  const uint8_t* token_states;
} cairn_image_spec;

/* Returns the recipes of this library: "raw,exact,…,kivi:2+". Static. */
CAIRN_API const char* cairn_image_recipes(void);
/* Sets *bytes to the largest size of an image of `spec`, for all recipes. A target of that size
 * always suffices. CAIRN_INVALID_ARGUMENT: as for cairn_image_encode. */
CAIRN_API int cairn_image_bytes_max(const cairn_image_spec* spec, uint64_t* bytes);
/* Encodes `source` (VIEWS or SOURCE, of the spec's slice) into `image`, on the calling thread, and
 * sets *image_bytes. `image` has `image_capacity` bytes and must not overlap the source. VIEWS are
 * first gathered into memory that the call allocates. SOURCE is encoded in place, without
 * allocations. After a failure the bytes of `image` are unspecified. CAIRN_INVALID_ARGUMENT: the
 * text names the wrong field of the spec, the recipe, the source or the capacity. */
CAIRN_API int cairn_image_encode(const cairn_image_spec* spec, const cairn_memory* source,
                                 void* image, size_t image_capacity, size_t* image_bytes);
/* Rewrites an image of logquant for a chain of chain_tokens. The result has the same bytes as an
 * image that was encoded from the source with chain_tokens. It is never larger than `image`.
 * `thinned` has `capacity` bytes and must not overlap `image`. image_bytes is always a sufficient
 * capacity. After a failure the bytes of `thinned` are unspecified. CAIRN_DATA_LOSS: a CRC does not
 * match. CAIRN_INVALID_ARGUMENT: the image has another recipe, or the capacity is too small. */
CAIRN_API int cairn_image_thin(const void* image, size_t image_bytes, uint64_t chain_tokens,
                               void* thinned, size_t capacity, size_t* thinned_bytes);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_IMAGE_H */
