/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_FIGURES_H
#define CAIRN_FIGURES_H
// The part of the C ABI that is about figures of a daemon and of a client, and what a client makes
// of them: whether to fetch or to recompute. Part of cairn.h, whose rules hold here too; include
// that.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_tier_stats {
  int32_t tier; /* CAIRN_TIER_… */
  uint32_t reserved;
  uint64_t capacity_bytes, used_bytes, pinned_bytes, staging_bytes, quarantine_bytes;
} cairn_tier_stats;

typedef struct cairn_stats {
  uint32_t struct_bytes;
  uint32_t tier_count;
  cairn_tier_stats tiers[4];
  uint64_t block_count, image_count, image_bytes, source_bytes;
  uint64_t session_count, lease_count, uptime_ms;
  uint32_t draining;
  uint32_t reserved;
  char daemon_version[32];
} cairn_stats;

/* The daemon's. */
CAIRN_API int cairn_stats_get(cairn_client* client, uint32_t timeout_ms, cairn_stats* stats);

typedef struct cairn_counters {
  uint32_t struct_bytes;
  uint32_t breaker_state;      /* 0 closed, 1 open, 2 half open */
  uint64_t gets, hits, misses; /* hits + misses = gets that ended with either */
  uint64_t corrupt;            /* misses because a checksum did not match */
  uint64_t late;               /* gets and puts over their deadline */
  uint64_t puts, duplicates;
  uint64_t get_bytes, put_bytes; /* payload bytes on the wire */
  uint64_t reconnects;           /* of the session */
  uint64_t breaker_opened;
} cairn_counters;

/* This client's, since cairn_connect. */
CAIRN_API int cairn_counters_get(const cairn_client* client, cairn_counters* counters);

// --------------------------------------------------------------------------- fetch or recompute?
/* Tells the breaker how fast the engine computes KV (prefill): `tokens` in `seconds`. */
CAIRN_API int cairn_breaker_recomputed(cairn_client* client, uint64_t tokens, double seconds);
/* *fetch becomes 1 when getting `wire_bytes` is expected to be done before recomputing `tokens`
 * would be, 0 when it is not or when the store is slow or failing. No call to the daemon. While the
 * breaker is open cairn_match answers 0 blocks at once, but for a probe now and then. */
CAIRN_API int cairn_breaker_advise(cairn_client* client, uint64_t tokens, uint64_t wire_bytes,
                                   int* fetch);

#ifdef __cplusplus
}
#endif

#endif /* CAIRN_FIGURES_H */
