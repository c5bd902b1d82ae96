/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_FIGURES_H
#define CAIRN_FIGURES_H
// Statistics of daemon and client, and the client's decision whether to fetch or to recompute. This
// file is a part of cairn.h, and its rules apply. Include cairn.h.

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

/* Gets statistics of the daemon. */
CAIRN_API int cairn_stats_get(cairn_client* client, uint32_t timeout_ms, cairn_stats* stats);

typedef struct cairn_counters {
  uint32_t struct_bytes;
  uint32_t breaker_state;      /* 0 closed, 1 open, 2 half open */
  uint64_t gets, hits, misses; /* hits, misses: gets with that result */
  uint64_t corrupt;            /* misses caused by a checksum that does not match */
  uint64_t late;               /* gets and puts that exceeded their deadline */
  uint64_t puts, duplicates;
  uint64_t get_bytes, put_bytes; /* payload bytes on the wire */
  uint64_t reconnects;           /* how often the session was opened again */
  uint64_t breaker_opened;
} cairn_counters;

/* Gets the counters of this client, since cairn_connect. */
CAIRN_API int cairn_counters_get(const cairn_client* client, cairn_counters* counters);

// --------------------------------------------------------------------------- fetch or recompute?
/* Tells the breaker how fast the engine computes KV (prefill): `tokens` in `seconds`. */
CAIRN_API int cairn_breaker_recomputed(cairn_client* client, uint64_t tokens, double seconds);
/* Sets *fetch to 1 if getting `wire_bytes` is expected to be faster than recomputing `tokens`. Sets
 * it to 0 if it is not, or if the store is slow or failing. Does not call the daemon. While the
 * breaker is open, cairn_match returns 0 blocks at once, except for occasional probes. */
CAIRN_API int cairn_breaker_advise(cairn_client* client, uint64_t tokens, uint64_t wire_bytes,
                                   int* fetch);
/* The same for blocks of which some are at other members of the cluster (CAIRN_TIER_PEER):
 * `wire_bytes` are in the daemon's own tiers, and `peer_bytes` at other members. The breaker
 * measures each of these rates. */
CAIRN_API int cairn_breaker_advise_peer(cairn_client* client, uint64_t tokens, uint64_t wire_bytes,
                                        uint64_t peer_bytes, int* fetch);

#ifdef __cplusplus
}
#endif

#endif /* CAIRN_FIGURES_H */
