/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_HINTS_H
#define CAIRN_HINTS_H
// Why blocks are stored or not, which member of a cluster has them, and hints on how long they are
// worth keeping. This file is a part of cairn.h, and its rules apply. Include cairn.h.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { CAIRN_BLOCK_STORED = 1, CAIRN_BLOCK_INCOMPLETE = 2, CAIRN_BLOCK_ABSENT = 3 };
enum {
  CAIRN_REASON_NONE = 0,      /* the block is stored */
  CAIRN_REASON_UNKNOWN = 1,   /* removed before the recorded period, or never put */
  CAIRN_REASON_NEVER_PUT = 2, /* since the daemon started */
  CAIRN_REASON_EVICTED = 3,
  CAIRN_REASON_EXPIRED = 4,
  CAIRN_REASON_DELETED = 5,
  CAIRN_REASON_INVALIDATED = 6,
  CAIRN_REASON_DAMAGED = 7,    /* a checksum did not match, or a drive could not read it */
  CAIRN_REASON_DEVICE_OUT = 8, /* the device that had it has failed */
  CAIRN_REASON_REFUSED = 9     /* its last put was refused */
};

typedef struct cairn_block_fate {
  int32_t state;          /* CAIRN_BLOCK_… */
  int32_t reason;         /* CAIRN_REASON_… */
  uint32_t tiers;         /* tiers with a copy: bits 1 << CAIRN_TIER_… */
  uint32_t missing_group; /* if the block is incomplete */
  uint64_t removed_ms;    /* time since it was removed or refused */
} cairn_block_fate;

/* Sets fates[i] for keys[i]. Takes no lease. The daemon has recorded removals and refusals
 * during the last *recorded_ms milliseconds. `recorded_ms` may be NULL. CAIRN_UNIMPLEMENTED: the
 * daemon is older. */
CAIRN_API int cairn_explain(cairn_space* space, const cairn_key* keys, size_t key_count,
                            uint32_t timeout_ms, cairn_block_fate* fates, uint64_t* recorded_ms);

#define CAIRN_WHERE_MEMBERS_MAX 17 /* in one answer: the daemon that was asked, and 16 others */

/* How much of a prefix a member of the daemon's cluster has. */
typedef struct cairn_member_blocks {
  char member[256];        /* its name; empty: the daemon belongs to no cluster */
  char failure[128];       /* why it has not answered; what it has is unknown then. Empty: it has */
  uint32_t block_count;    /* from the first block on */
  uint32_t tier_counts[8]; /* of these blocks, those in CAIRN_TIER_i at index i */
  uint8_t is_self;         /* the daemon that was asked */
  uint8_t is_draining;     /* it is about to stop */
} cairn_member_blocks;

/* Sets how much of a prefix each member has, for routers. members[0] is the daemon that was asked.
 * Those that have more blocks come before others. `members` has room for `member_max`, at least
 * CAIRN_WHERE_MEMBERS_MAX. *member_count becomes the number of those that were set, and
 * *unasked_count that of other members that were not asked, because the cluster is large. It may be
 * NULL. Fetches nothing, takes no lease, and counts as no match. Members are waited for until the
 * timeout, for 2000 ms at most. CAIRN_RESOURCE_EXHAUSTED: too many of these calls are running.
 * CAIRN_UNIMPLEMENTED: the daemon is older than this call. */
CAIRN_API int cairn_where(cairn_space* space, const cairn_key* keys, size_t key_count,
                          uint32_t timeout_ms, cairn_member_blocks* members, size_t member_max,
                          size_t* member_count, uint32_t* unasked_count);

/* Hints change the order of eviction and do not pin blocks. A block may be named before it is put.
 * The last hint on a block replaces earlier ones. Both calls set *stored_count, which may be NULL,
 * to the number of blocks that are stored now. CAIRN_RESOURCE_EXHAUSTED: the tenant's hints are at
 * their limit, and nothing was changed. CAIRN_UNIMPLEMENTED: the daemon is older than this call.
 *
 * cairn_retain asks that the blocks be evicted only after all blocks of a lower priority. The hint
 * lasts `seconds`, 1 to 604800. `priority` is 1 to 5. */
CAIRN_API int cairn_retain(cairn_space* space, const cairn_key* keys, size_t key_count,
                           uint32_t seconds, uint32_t priority, uint32_t timeout_ms,
                           uint32_t* stored_count);
/* Asks that the blocks be evicted before others once after_seconds have passed, unless they are
 * used after the call. after_seconds is at most 604800. */
CAIRN_API int cairn_demote(cairn_space* space, const cairn_key* keys, size_t key_count,
                           uint32_t after_seconds, uint32_t timeout_ms, uint32_t* stored_count);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_HINTS_H */
