/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_EVENTS_H
#define CAIRN_EVENTS_H
// Events: blocks that enter or leave a tier. This file is a part of cairn.h, and its rules apply.
// Include cairn.h.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A reader of events. REQUIRES: one thread uses it at a time. */
typedef struct cairn_watch cairn_watch;

/* A block has got its first image in a tier, or has lost its last image there. */
typedef struct cairn_event {
  uint32_t stored; /* 1: the block got its first image in the tier; 0: it lost the last one */
  int32_t tier;
  uint8_t space[32]; /* fingerprint */
  cairn_key key;
  /* If stored is 1: */
  cairn_key parent; /* all zero: unknown */
  uint64_t first_position;
  uint32_t token_count;
  uint32_t reserved;
} cairn_event;

typedef struct cairn_event_batch {
  uint32_t struct_bytes;
  /* 1: discard everything known from earlier batches. Only a snapshot reports what is stored now */
  uint32_t reset;
  /* Events are numbered within an epoch. A tenant's epoch changes after a restart of the daemon,
   * and after its events were dropped because nobody watched. `first_sequence` is the number of the
   * batch's first event. `next_sequence` is the number after its last event. A batch begins where
   * the previous one ended, except after a reset. */
  uint64_t epoch, first_sequence, next_sequence;
  const cairn_event* events; /* valid until the next call with this watch */
  size_t event_count;
  /* names[i] are the names of the block of events[i]. Valid as long as `events`. If stored is 0,
   * only the hash is known. */
  const cairn_names* names;
  int32_t snapshot; /* CAIRN_SNAPSHOT_… */
  uint32_t reserved;
} cairn_event_batch;

/* Says how a batch belongs to a snapshot. A snapshot follows a reset if the watch asks for it. Its
 * pages list the stored blocks. A page shows a block as it was at the reset or later. After the
 * last page and the events that follow, the reader knows exactly what is stored. */
enum {
  CAIRN_SNAPSHOT_NONE = 0,    /* an ordinary batch, or a reset without a snapshot */
  CAIRN_SNAPSHOT_FOLLOWS = 1, /* a reset; a snapshot follows */
  CAIRN_SNAPSHOT_PAGE = 2,    /* stored blocks, in no order */
  CAIRN_SNAPSHOT_LAST_PAGE = 3
};

typedef struct cairn_watch_options {
  uint32_t struct_bytes;
  uint32_t snapshots; /* 1: a snapshot after each reset, from daemons that know snapshots */
  uint64_t epoch, next_sequence; /* as in cairn_watch_open() */
} cairn_watch_options;

/* Opens a watch of all blocks of the tenant or, if `space` is not NULL, of that space. To
 * continue an earlier watch, pass epoch and next_sequence of the last batch that you read. Pass
 * 0 to start with the next event. The call does not reach the daemon. Client and space must
 * outlive the watch. */
CAIRN_API int cairn_watch_open(cairn_client* client, cairn_space* space, uint64_t epoch,
                               uint64_t next_sequence, cairn_watch** watch);
/* cairn_watch_open() with options. */
CAIRN_API int cairn_watch_open_with(cairn_client* client, cairn_space* space,
                                    const cairn_watch_options* options, cairn_watch** watch);
/* Returns the next batch. CAIRN_DEADLINE_EXCEEDED: no event arrived within timeout_ms. Any other
 * error: the daemon is unavailable or has too many watchers. After an error, the next call
 * continues at the same position. */
CAIRN_API int cairn_watch_next(cairn_watch* watch, uint32_t timeout_ms, cairn_event_batch* batch);
/* `watch` may be NULL. */
CAIRN_API void cairn_watch_close(cairn_watch* watch);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_EVENTS_H */
