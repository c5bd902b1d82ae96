/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_EVENTS_H
#define CAIRN_EVENTS_H
// The part of the C ABI that tells what blocks come into tiers and go. Part of cairn.h, whose rules
// hold here too; include that.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One reader; one thread at a time uses it. */
typedef struct cairn_watch cairn_watch;

/* A block has its first image in a tier, or its last has gone from there. */
typedef struct cairn_event {
  uint32_t stored; /* else it is gone */
  int32_t tier;
  uint8_t space[32]; /* fingerprint */
  cairn_key key;
  /* Of one that is stored: */
  cairn_key parent; /* all zero: none is known */
  uint64_t first_position;
  uint32_t token_count;
  uint32_t reserved;
} cairn_event;

typedef struct cairn_event_batch {
  uint32_t struct_bytes;
  uint32_t reset; /* what was told before is void, and what there is now is not told */
  /* The first and the one after the last; without gaps, but in a reset. */
  uint64_t epoch, first_sequence, next_sequence;
  const cairn_event* events; /* until the next call with this watch */
  size_t event_count;
} cairn_event_batch;

/* Of all blocks of the tenant, or of `space`, where that is not NULL. epoch and next_sequence are
 * of the last batch that was read, to go on after it; 0: from now on. No call to the daemon yet.
 * Client and space must outlive the watch. */
CAIRN_API int cairn_watch_open(cairn_client* client, cairn_space* space, uint64_t epoch,
                               uint64_t next_sequence, cairn_watch** watch);
/* CAIRN_DEADLINE_EXCEEDED: nothing came in that time. Any other error: the daemon is away, or too
 * many watch. The next call goes on in either case. */
CAIRN_API int cairn_watch_next(cairn_watch* watch, uint32_t timeout_ms, cairn_event_batch* batch);
/* NULL is fine. */
CAIRN_API void cairn_watch_close(cairn_watch* watch);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_EVENTS_H */
