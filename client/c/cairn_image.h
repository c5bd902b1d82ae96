/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_IMAGE_H
#define CAIRN_IMAGE_H
// The part of the C ABI that is about images: look at one, check it, decode it, encode one. Pure
// functions over bytes: no daemon is needed, nothing is kept, all may be called at once. Part of
// cairn.h, whose rules hold here too; include that.

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
  uint8_t side_object[32]; /* the id of the profile that it was coded with; all zero: none */
} cairn_image_info;

/* Reads header and directory of hostile bytes. CAIRN_INVALID_ARGUMENT names what is wrong. */
CAIRN_API int cairn_image_inspect(const void* image, size_t image_bytes, cairn_image_info* info);
/* Checks every CRC. CAIRN_DATA_LOSS when one does not match; `corrupt_tiles` (may be NULL) is set
 * then too. */
CAIRN_API int cairn_image_verify(const void* image, size_t image_bytes, uint64_t* corrupt_tiles);
/* Verifies and decodes into `target` (VIEWS or SOURCE, of the image's own slice). Images of
 * cairn:bits and patternkv:b are for cairn_image_decode_with. */
CAIRN_API int cairn_image_decode(const void* image, size_t image_bytes, const cairn_memory* target);
/* The same for an image of cairn:bits, with the profile that it names
 * (docs/internals/formats/profile.md), and for one of patternkv:b, with the bank
 * (docs/internals/formats/bank.md). CAIRN_INVALID_ARGUMENT for any other. */
CAIRN_API int cairn_image_decode_with(const void* image, size_t image_bytes, const void* profile,
                                      size_t profile_bytes, const cairn_memory* target);

/* What an image is of and how it is coded: all that an encoder is told. Equal specs over equal
 * elements give equal bytes on every machine, those that a daemon would keep. */
typedef struct cairn_image_spec {
  uint32_t struct_bytes;
  int32_t kind;            /* CAIRN_GROUP_… */
  uint8_t fingerprint[32]; /* of the space; zeros will do for an image that enters none */
  cairn_key key;           /* of the block; as above */
  cairn_slice slice;       /* with its counts: 0 does not stand for all of them here */
  uint32_t tokens;         /* 1 to 1024 */
  int32_t dtype;           /* CAIRN_DTYPE_…; not read for STATE and OPAQUE_ROWS */
  uint32_t k_dim, v_dim;   /* KV: per head; latent: k_dim; STATE, OPAQUE_ROWS: k_dim bytes */
  uint64_t first_position; /* of the first token in its sequence: kivi:b+ keeps token 0 exact */
  const char* recipe;      /* "raw", "kivi:4", … Required */
  const void* profile;     /* of "cairn:2.3" and the like, which need it; the bank of "patternkv:2"
                            * and the like; borrowed for the call */
  size_t profile_bytes;
  /* What some recipes code better with, or need; NULL where there is none. Borrowed for the call.
   */
  const void* parent_image; /* of the same slice of the block before: ott:2 goes on from it */
  size_t parent_image_bytes;
  /* [layer][head][k_dim] of the slice: the mean of |q| over the queries that read a head of K, as
   * they meet it, after RoPE. Finite, not negative. */
  const float* query_magnitudes;
  /* [layer][head][token] of the slice: what a token is worth to those that read it, for arkv.
   * cairn_token_scores() makes them. */
  const float* token_scores;
  /* Of the chain that the block is read in, at its end: logquant keeps fewer rows behind a longer
   * one. 0, or less than up to the block's end: the chain ends with the block. */
  uint64_t chain_tokens;
  /* The same shape: a CAIRN_TOKEN_… for arkv:paper, as cairn_plan_tokens() makes them; NULL: all
   * are low. */
  const uint8_t* token_states;
} cairn_image_spec;

/* The recipes that this library knows: "raw,exact,…,kivi:2+". Static. */
CAIRN_API const char* cairn_image_recipes(void);
/* Most bytes that an image of `spec` takes, in any recipe: a target of them always suffices.
 * CAIRN_INVALID_ARGUMENT as cairn_image_encode. */
CAIRN_API int cairn_image_bytes_max(const cairn_image_spec* spec, uint64_t* bytes);
/* Encodes `source` (VIEWS or SOURCE, of the spec's slice) on the calling thread into `image`, which
 * has `image_capacity` bytes and does not overlap the source; sets *image_bytes. VIEWS are gathered
 * first, in memory taken for the call; SOURCE is encoded where it lies and nothing is taken. After
 * a failure the bytes of `image` are in any state. CAIRN_INVALID_ARGUMENT names the field of the
 * spec, the recipe, the source or the capacity that is wrong. */
CAIRN_API int cairn_image_encode(const cairn_image_spec* spec, const cairn_memory* source,
                                 void* image, size_t image_capacity, size_t* image_bytes);
/* Of an image of logquant, the one that its source has in a chain of chain_tokens: byte for byte
 * what encoding with them gives, and never larger. Checks every CRC first: CAIRN_DATA_LOSS.
 * `thinned` has `capacity` bytes and does not overlap the image; after a failure they are in any
 * state. CAIRN_INVALID_ARGUMENT for another recipe or where the capacity is too small: image_bytes
 * always suffices. */
CAIRN_API int cairn_image_thin(const void* image, size_t image_bytes, uint64_t chain_tokens,
                               void* thinned, size_t capacity, size_t* thinned_bytes);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_IMAGE_H */
