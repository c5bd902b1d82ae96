/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_H
#define CAIRN_H
// The C ABI of the Cairn client (libcairn.so), in plain C11. A program needs only this file and the
// files in the same folder that it includes.
//
// Calls return CAIRN_OK or one of the codes below, whose numbers are gRPC's. After a failure
// cairn_last_error() returns one line of text, on the calling thread. Outputs are set only on
// success, unless a field says otherwise. No exception or signal leaves the library.
//
// Every call to the daemon takes timeout_ms. 0 means the default: 500 ms for control calls, 5000 ms
// for cairn_explain, 2000 ms for connecting, put and get. The maximum is 60000. When the time has
// passed, the call returns CAIRN_DEADLINE_EXCEEDED. From then on the library does not use the
// memory that was passed to it.
//
// Threads: every function may be called from any thread, concurrently with the same handles. Do not
// close or free a handle while a call uses it. The library's threads do not exist in a forked
// child: call fork before cairn_connect, or call exec in the child. If the parent has called
// cairn_connect, every call in the child returns CAIRN_FAILED_PRECONDITION, also cairn_connect.
//
// Memory: pointers are borrowed until the call returns. Strings are UTF-8 and end with a 0 byte. If
// a struct has a field struct_bytes, set it to sizeof(the struct). Set all other fields to zero
// before you fill them in: zero is every field's default. Later versions only add fields at the
// end.
//
// A get delivers only data that matches its checksums. If a checksum does not match, the get
// returns a miss (CAIRN_NOT_FOUND); the miss is counted and logged once.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CAIRN_API __attribute__((visibility("default")))
#else
#define CAIRN_API
#endif
#define CAIRN_ABI_VERSION 1

/* Status codes. Each one tells the caller what to do next. */
enum {
  CAIRN_OK = 0,
  CAIRN_INVALID_ARGUMENT = 3,    /* a bug in the caller; the text names the field and the limit */
  CAIRN_DEADLINE_EXCEEDED = 4,   /* recompute */
  CAIRN_NOT_FOUND = 5,           /* a miss, or no such space: recompute */
  CAIRN_PERMISSION_DENIED = 7,   /* the peer may not use the tenant */
  CAIRN_RESOURCE_EXHAUSTED = 8,  /* a limit is reached: try again later */
  CAIRN_FAILED_PRECONDITION = 9, /* wrong state, for example after fork */
  CAIRN_ABORTED = 10,            /* stored, but not durable as requested; `durability` has the
                                  * reason */
  CAIRN_UNIMPLEMENTED = 12,      /* the daemon, or this kind of group, does not support it */
  CAIRN_INTERNAL = 13,           /* a bug in Cairn */
  CAIRN_UNAVAILABLE = 14, /* the daemon is gone or draining; the client reconnects by itself */
  CAIRN_DATA_LOSS = 15    /* cairn_image_verify: a checksum does not match */
};

enum { CAIRN_DTYPE_BF16 = 1, CAIRN_DTYPE_FP16 = 2, CAIRN_DTYPE_FP32 = 3 };
/* 8-bit floats, in units of the engine's scales. A daemon that does not know them refuses them. */
enum { CAIRN_DTYPE_FP8_E4M3 = 5, CAIRN_DTYPE_FP8_E5M2 = 6 };
enum {
  CAIRN_TIER_NONE = 0,
  CAIRN_TIER_GPU = 1,
  CAIRN_TIER_HOST = 2,
  CAIRN_TIER_SSD = 3,
  CAIRN_TIER_PEER = 4 /* another member of the daemon's cluster has the block */
};
enum { CAIRN_GROUP_KV = 1, CAIRN_GROUP_LATENT = 2 };
enum { CAIRN_GROUP_STATE = 3, CAIRN_GROUP_OPAQUE_ROWS = 4 };
enum { CAIRN_ROPE_NONE = 0, CAIRN_ROPE_HALF = 1, CAIRN_ROPE_INTERLEAVED = 2 };

typedef struct cairn_client cairn_client; /* a session with one daemon, and its data connections */
typedef struct cairn_space cairn_space;   /* an open space of a client */
typedef struct cairn_buffer cairn_buffer; /* memory of a data connection */

typedef struct cairn_key {
  uint8_t bytes[32];
} cairn_key; /* names a block; all zero: none */
typedef struct cairn_lease {
  uint8_t bytes[16];
} cairn_lease; /* pins blocks after a match; all zero: none */

/* A range of layers and a range of heads of one group. Layers are counted within the group. A count
 * of 0 means all from `first` on. */
typedef struct cairn_slice {
  uint32_t group;
  uint32_t layer_first, layer_count;
  uint32_t head_first, head_count;
} cairn_slice;

// ------------------------------------------------------------------------------------- library
CAIRN_API const char* cairn_version(void); /* "0.1.0" */
CAIRN_API int cairn_abi_version(void);     /* CAIRN_ABI_VERSION of the loaded library */
/* Returns one line about the last call that failed on this thread. The text is valid until the
 * thread's next call. */
CAIRN_API const char* cairn_last_error(void);
CAIRN_API const char* cairn_status_name(int status); /* returns "NOT_FOUND" and so on; static */
/* Sets the W3C traceparent of all later calls of this thread, put and get included. The daemon logs
 * its trace id with slow calls. NULL removes it. CAIRN_INVALID_ARGUMENT: the text is not a
 * traceparent; the previous one stays. */
CAIRN_API int cairn_set_trace(const char* traceparent);

// ---------------------------------------------------------------------------------- connecting
typedef struct cairn_connect_options {
  uint32_t struct_bytes;
  uint32_t timeout_ms;
  const char* control; /* "unix:PATH" or "HOST:PORT" of cairnd's control plane. Required */
  /* "unix:PATH", "tls:HOST:PORT", or "HOST:PORT" for UCX. NULL: the first address that the daemon
   * reports for one of `transports`. UCX is used only if you name it, here or in `transports`. */
  const char* data;
  const char* tenant;    /* 1 to 64 characters of [A-Za-z0-9._-]. NULL: "default" */
  const char* name;      /* shown in logs and status. NULL: "libcairn" */
  uint32_t connections;  /* data connections, 1 to 16; 0 is 2 */
  uint32_t window;       /* limit on calls in flight per connection, 1 to 64; 0 is 8. For gets of
                            one batch it is at least 32 while their replies fit */
  uint64_t region_bytes; /* shared memory per unix: connection, allocated at once; 0 is 64 MiB */
  /* TLS to a HOST:PORT. Files in PEM, read again when the client reconnects. */
  const char* tls_ca;     /* CAs of the daemon's certificate. NULL: no TLS */
  const char* tls_cert;   /* the client's certificate, the leaf first. NULL: none */
  const char* tls_key;    /* its key */
  const char* tls_server; /* DNS name, address or URI of the daemon's certificate. NULL: the host */
  /* Transports of the data plane, the preferred first: some of "local", "stream" (TLS) and "ucx",
     separated by commas. NULL: local, and with TLS stream too. */
  const char* transports;
} cairn_connect_options;

/* Opens a session. A thread of the client keeps the session open. If the daemon fails, the client
 * opens session and spaces again, with backoff. Until then, calls return CAIRN_UNAVAILABLE. */
CAIRN_API int cairn_connect(const cairn_connect_options* options, cairn_client** client);
/* Ends the session and its leases. Close the spaces and free the buffers first. `client` may be
 * NULL. */
CAIRN_API void cairn_close(cairn_client* client);

// -------------------------------------------------------------------------------------- spaces
/* A group: layers of one kind and one geometry. */
typedef struct cairn_group_spec {
  int32_t kind; /* CAIRN_GROUP_… */
  uint32_t layer_count;
  const uint32_t* layers; /* indices of the model's layers, ascending; NULL: 0 … layer_count - 1 */
  uint32_t kv_heads;
  uint32_t k_dim, v_dim;  /* KV: per head; latent: k_dim */
  uint32_t window_tokens; /* 0: full attention */
  int32_t rope_kind;      /* CAIRN_ROPE_… */
  uint32_t rope_rotary_dims;
  double rope_base;
  const double* rope_inverse_frequencies; /* rotary_dims / 2; NULL: base^(-2i/rotary_dims) */
  uint32_t state_bytes;                   /* STATE: per layer */
  uint32_t row_bytes;                     /* OPAQUE_ROWS: per token and layer */
} cairn_group_spec;

/* The identity of a space. Equal specifications name the same space within the client's tenant. */
typedef struct cairn_space_spec {
  uint32_t struct_bytes;
  int32_t dtype; /* CAIRN_DTYPE_… */
  const char* model;
  const char* weights_revision;
  uint32_t tokens_per_block; /* 16 to 1024; 0 is 128 */
  uint32_t group_count;
  const cairn_group_spec* groups;
  /* "raw", "exact", …; used only if this call creates the space. NULL: the daemon's default */
  const char* recipe;
} cairn_space_spec;

typedef struct cairn_space_info {
  uint32_t struct_bytes;
  uint32_t created; /* 1: this call created the space */
  uint8_t fingerprint[32];
  char recipe[32]; /* at the time the space was opened */
  uint32_t tokens_per_block;
  uint32_t group_count;
} cairn_space_info;

CAIRN_API int cairn_open_space(cairn_client* client, const cairn_space_spec* spec,
                               uint32_t timeout_ms, cairn_space** space);
CAIRN_API int cairn_space_info_get(const cairn_space* space, cairn_space_info* info);
/* Sets *bytes to the size of `slice` of one block in source form. */
CAIRN_API int cairn_space_source_bytes(const cairn_space* space, const cairn_slice* slice,
                                       uint64_t* bytes);
/* Sets *bytes to the largest size of an image of `slice`, for all recipes. */
CAIRN_API int cairn_space_image_bytes_max(const cairn_space* space, const cairn_slice* slice,
                                          uint64_t* bytes);
/* Closes a space, which may be NULL. If an earlier call moved blocks to or from a device and timed
 * out, waits until the device has finished that work, however long it takes. */
CAIRN_API void cairn_space_close(cairn_space* space);

// ---------------------------------------------------------------------------------------- keys
/* Pure functions, which need no daemon. docs/internals/formats/key.md describes the hashed
 * bytes. */

/* An input, other than tokens, on which a block's KV depends: "lora", "salt", "media", … */
typedef struct cairn_key_extra {
  const char* kind;
  uint32_t offset; /* position of the first token that it affects */
  uint32_t value_bytes;
  const void* value;
} cairn_key_extra;

/* Computes the fingerprint of `spec` under `tenant`. */
CAIRN_API int cairn_fingerprint(const char* tenant, const cairn_space_spec* spec,
                                uint8_t fingerprint[32]);
/* Computes the key of one block. `parent` is NULL or all zero for the first block of a chain. */
CAIRN_API int cairn_derive_key(const uint8_t fingerprint[32], const cairn_key* parent,
                               const uint32_t* tokens, size_t token_count,
                               const cairn_key_extra* extras, size_t extra_count, cairn_key* key);
/* Writes the keys of all full blocks of a sequence: token_count / tokens_per_block keys. Here the
 * offset of an extra counts from the start of the sequence, and determines the extra's block. An
 * extra for the whole sequence (LoRA, salt) has the offset 0. CAIRN_INVALID_ARGUMENT: key_capacity
 * is too small. */
CAIRN_API int cairn_derive_chain(const uint8_t fingerprint[32], const uint32_t* tokens,
                                 size_t token_count, uint32_t tokens_per_block,
                                 const cairn_key_extra* extras, size_t extra_count, cairn_key* keys,
                                 size_t key_capacity, size_t* key_count);
/* Computes the key of a block that an engine identifies by its own hash. */
CAIRN_API int cairn_opaque_key(const uint8_t fingerprint[32], const void* engine_key,
                               size_t engine_key_bytes, cairn_key* key);

// --------------------------------------------------------------------------------------- match
typedef struct cairn_match_options {
  uint32_t struct_bytes;
  uint32_t timeout_ms;       /* 0: wait_ms + 500 */
  const cairn_slice* slices; /* slices to find; a group without a slice is wanted whole */
  uint32_t slice_count;
  uint32_t groups_skipped_count;
  const uint32_t* groups_skipped; /* groups to leave out */
  uint32_t token_limit;           /* the prefix has at most so many tokens; 0: no limit */
  uint32_t wait_ms;  /* wait at most this long for all keys; then return the blocks found */
  uint32_t no_lease; /* 1: count only, without a lease */
} cairn_match_options;

typedef struct cairn_matched_block {
  int32_t tier; /* CAIRN_TIER_… */
  uint32_t reserved;
  uint64_t image_bytes; /* size of the images of the wanted slices */
} cairn_matched_block;

typedef struct cairn_match_result {
  uint32_t struct_bytes;
  uint32_t block_count; /* 0: a miss; the call still returns CAIRN_OK */
  uint64_t token_count;
  cairn_lease lease; /* all zero when block_count is 0 or no_lease was set */
  /* Lifetime of the lease. It does not expire while the session that took it is open. */
  uint32_t lease_ms;
  uint32_t shortened_by_pins; /* 1: more blocks exist, but too much of the tier is pinned */
  uint32_t breaker_open;      /* 1: the breaker is open, so the daemon was not asked */
  uint32_t reserved;
} cairn_match_result;

/* Finds the longest stored prefix of `keys` and leases it. `options` may be NULL. `blocks` is NULL
 * or has room for key_count elements; the call writes the first result->block_count of them. A
 * lease belongs to the tenant: any client of the tenant may use it for gets. */
CAIRN_API int cairn_match(cairn_space* space, const cairn_key* keys, size_t key_count,
                          const cairn_match_options* options, cairn_match_result* result,
                          cairn_matched_block* blocks);
typedef struct cairn_prefetch_options {
  uint32_t struct_bytes;
  uint32_t timeout_ms;
  const cairn_slice* slices; /* as in cairn_match_options */
  uint32_t slice_count;
  uint32_t groups_skipped_count;
  const uint32_t* groups_skipped;
} cairn_prefetch_options;

/* The number of keys in each state. */
typedef struct cairn_prefetch_result {
  uint32_t struct_bytes;
  uint32_t in_memory_count, on_their_way_count; /* on their way: being read, or
                                                 * queued */
  uint32_t absent_count;                        /* keys with a wanted slice that is not stored */
  uint32_t refused_count;                       /* not queued, because the queue is full: ask again
                                                 * later */
} cairn_prefetch_result;

/* Queues reads of blocks into the daemon's memory and returns at once. Reads for which a get waits
 * run first. `options` may be NULL. If memory has no room for a block, the block stays in
 * its tier. */
CAIRN_API int cairn_prefetch(cairn_space* space, const cairn_key* keys, size_t key_count,
                             const cairn_prefetch_options* options, cairn_prefetch_result* result);
/* Ends leases. Unknown and all-zero leases are ignored. */
CAIRN_API int cairn_release(cairn_client* client, const cairn_lease* leases, size_t lease_count,
                            uint32_t timeout_ms);

// ---------------------------------------------------------------------- memory of a put or a get
// One plane (K, V, or a latent) of a slice, in place. Element [layer, head, token, dim] is at
//   (layers ? layers[layer] : data + layer * stride[0]) + head * stride[1]
//     + (token_offsets ? token_offsets[token] : token * stride[2]) + dim * stride[3]
// Strides and offsets are in bytes and may be negative, so that per-layer tensors and paged caches
// need no repacking. layer, head and token are counted within the slice.
typedef struct cairn_view {
  void* data;                   /* a put only reads it */
  void* const* layers;          /* one pointer per layer of the slice, or NULL */
  const int64_t* token_offsets; /* one per token, or NULL; INT64_MIN: a get skips the token */
  int64_t stride[4];            /* layer, head, token, dim */
  /* The range of bytes, from data, that contains all elements. Both 0: not checked */
  int64_t first_byte, end_byte;
} cairn_view;

enum {
  CAIRN_FORM_VIEWS = 0,  /* k and v, element by element */
  CAIRN_FORM_SOURCE = 1, /* data: contiguous [layer, head, plane (K, V), token, dim] */
  CAIRN_FORM_IMAGE = 2   /* data: an encoded image (docs/internals/formats/image.md) */
};

typedef struct cairn_memory {
  int32_t form; /* CAIRN_FORM_… */
  uint32_t reserved;
  void* data; /* SOURCE, IMAGE; a put only reads it */
  /* SOURCE: exactly the slice's size; IMAGE: exact for a put, capacity for a get */
  uint64_t bytes;
  cairn_view k, v; /* VIEWS; a latent has k only */
} cairn_memory;

// ----------------------------------------------------------------------------------------- put
enum { CAIRN_ENCODE_DAEMON = 0, CAIRN_ENCODE_CLIENT = 1 };

/* The outcome of a put with `durable` set. In all cases the block is stored. */
enum {
  CAIRN_DURABILITY_NOT_ASKED = 0,
  CAIRN_DURABILITY_DURABLE = 1,   /* it survives a power loss */
  CAIRN_DURABILITY_NO_TIER = 2,   /* the daemon has no persistent tier */
  CAIRN_DURABILITY_READ_ONLY = 3, /* the tier is read-only, or has failed */
  CAIRN_DURABILITY_NO_ROOM = 4,   /* the tier has no room now, or its write budget is used up */
  CAIRN_DURABILITY_LATE = 5,      /* not durable within timeout_ms */
  CAIRN_DURABILITY_ANCESTORS = 6, /* a block before it is missing or not durable */
  CAIRN_DURABILITY_TOO_LARGE = 7, /* the image is larger than the tier accepts */
  CAIRN_DURABILITY_GONE = 8,      /* the block was deleted or evicted in the meantime */
  CAIRN_DURABILITY_STOPPING = 9   /* the daemon is stopping */
};

/* Names that an engine has for a block. Events carry them, so that routers match by them. */
typedef struct cairn_names {
  /* The engine's own hash of the block, and of the block before it: 8 to 32 bytes; NULL: none.
   * They are not sent to a daemon that does not know them. */
  const uint8_t* hash;
  const uint8_t* parent;
  const uint32_t* tokens; /* ids of the block's tokens; only for daemons with --event-tokens on */
  uint32_t hash_bytes, parent_bytes, token_count;
  uint32_t reserved;
} cairn_names;

typedef struct cairn_put_request {
  uint32_t struct_bytes;
  int32_t encode; /* CAIRN_ENCODE_…: who encodes VIEWS and SOURCE, with the space's recipe */
  cairn_key key;
  cairn_key parent; /* all zero: none */
  cairn_slice slice;
  uint64_t first_position; /* position of the block's first token in the sequence */
  uint32_t derived;        /* 1: computed from a prefix that was stored with loss */
  uint32_t reserved;
  cairn_memory source;
  /* Set by the call, whatever it returns: */
  int32_t status;
  uint32_t duplicate;   /* 1: it was stored already; nothing was moved */
  uint64_t image_bytes; /* size of the slice's image in the daemon */
  /* More inputs. NULL: none. Counts are numbers of values. query_squares and query_magnitudes are
   * the means of q * q and |q|, after RoPE, over the block's tokens and the query heads of a KV
   * head: [layer][head][k_dim] of the slice. The daemon mines profiles from the squares; the recipe
   * mixkvq reads the magnitudes. token_scores, [layer][head][token], are for the recipe arkv. */
  const float* query_squares;
  uint64_t query_square_count;
  const float* query_magnitudes; /* not allowed with an IMAGE; nor are token_scores */
  uint64_t query_magnitude_count;
  const float* token_scores; /* from cairn_token_scores() */
  uint64_t token_score_count;
  uint32_t durable; /* 1: wait until the block, and all blocks before it, survive a power loss */
  /* Set by the call: CAIRN_DURABILITY_…. If `durable` was set and the block is stored but not
   * durable, status is CAIRN_ABORTED, and duplicate and image_bytes are set, too. */
  int32_t durability;
  cairn_names names; /* all zero: none */
} cairn_put_request;

CAIRN_API int cairn_put(cairn_space* space, cairn_put_request* put, uint32_t timeout_ms);
/* Runs many puts, pipelined. If it returns CAIRN_OK, each put has its own status. */
CAIRN_API int cairn_put_batch(cairn_space* space, cairn_put_request* puts, size_t put_count,
                              uint32_t timeout_ms);

// ----------------------------------------------------------------------------------------- get
enum { CAIRN_DECODE_CLIENT = 0, CAIRN_DECODE_DAEMON = 1 };

typedef struct cairn_get_request {
  uint32_t struct_bytes;
  int32_t decode; /* CAIRN_DECODE_…: CLIENT moves the image, DAEMON the source bytes */
  cairn_key key;
  cairn_lease lease; /* all zero: none */
  cairn_slice slice;
  cairn_memory target; /* IMAGE: the verified image, not decoded */
  /* Set by the call, whatever it returns: */
  int32_t status;      /* CAIRN_NOT_FOUND: a miss */
  int32_t tier;        /* CAIRN_TIER_… that had the block */
  uint64_t bytes;      /* bytes written to the target */
  uint64_t wire_bytes; /* bytes on the wire */
  uint64_t first_position;
} cairn_get_request;

/* Gets one block. The target's content is unspecified unless the status is CAIRN_OK. */
CAIRN_API int cairn_get(cairn_space* space, cairn_get_request* get, uint32_t timeout_ms);
/* Runs many gets, pipelined. If it returns CAIRN_OK, each get has its own status. */
CAIRN_API int cairn_get_batch(cairn_space* space, cairn_get_request* gets, size_t get_count,
                              uint32_t timeout_ms);

// --------------------------------------------------------------------------- the rest of a space
/* Sets present[i] to 1 if all groups, layers and heads of keys[i] are stored. Takes no lease. */
CAIRN_API int cairn_contains(cairn_space* space, const cairn_key* keys, size_t key_count,
                             uint32_t timeout_ms, uint8_t* present);
/* Deletes blocks. `deleted_count` may be NULL. */
CAIRN_API int cairn_delete(cairn_space* space, const cairn_key* keys, size_t key_count,
                           uint32_t timeout_ms, uint64_t* deleted_count);
/* Deletes every block of the space. `deleted_count` may be NULL. */
CAIRN_API int cairn_invalidate(cairn_space* space, uint32_t timeout_ms, uint64_t* deleted_count);

// ------------------------------------------------------------------------------------- buffers
/* Allocates memory of a data connection. Puts from this memory and gets into it, in SOURCE or IMAGE
 * form, make the fewest copies. It stays readable after the connection breaks.
 * CAIRN_RESOURCE_EXHAUSTED: the region is full. */
CAIRN_API int cairn_buffer_allocate(cairn_client* client, size_t bytes, uint32_t timeout_ms,
                                    cairn_buffer** buffer);
CAIRN_API void* cairn_buffer_data(cairn_buffer* buffer);
CAIRN_API size_t cairn_buffer_bytes(const cairn_buffer* buffer);
/* `buffer` may be NULL. */
CAIRN_API void cairn_buffer_free(cairn_buffer* buffer);

#ifdef __cplusplus
}
#endif

#include "cairn_attend.h"
#include "cairn_events.h"
#include "cairn_figures.h"
#include "cairn_hints.h"
#include "cairn_image.h"
#include "cairn_mine.h"
#include "cairn_paged.h"
#include "cairn_side_objects.h"
#include "cairn_tokens.h"

#endif /* CAIRN_H */
