// SPDX-License-Identifier: Apache-2.0
#pragma once
// A put, from the lane that received it to the reply. Read put.cc first. Its steps, in order:
//
// - Admit() runs on the lane before the payload moves: fields, limits, staging (admit.cc).
// - The lane receives the payload into OwnedPut::target() (front/put_request.cc).
// - Put() runs the rest on the path pool.
// - Prepare() checks the payload and Encode() encodes it with the space's recipe (encode.cc). If a
//   device encodes it, no thread waits: the put continues in Resume(), on the path pool.
// - Place() moves the image into a tier, evicting if needed (place.cc).
// - Publish() makes it visible, complete, to all readers (publish.cc).
//
// Nothing is visible before Publish(). A failure before it leaves nothing behind: the OwnedPut, or
// the result of the last step, owns every byte.

#include <cstdint>
#include <span>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "proto/frame.h"
#include "service/index/pin.h"
#include "service/put/put_path.h"
#include "service/put/statistics.h"
#include "service/sessions.h"
#include "service/spaces.h"

namespace cairn {

// An admitted put. It owns everything that it needs, so it can move between threads; destroying it
// aborts a put that is not published. Move-only.
//
// Thread-safety: Thread-compatible. It must stay alive until the transfer into target() has
//                completed, but may be moved meanwhile.
struct OwnedPut {
  // The memory for the payload: exactly the frame's payload_bytes. Empty for a duplicate.
  std::span<std::byte> target() {
    return staging.is_empty() ? std::span<std::byte>() : staging.bytes();
  }
  // The reply: for a duplicate at once, for others once the put is published.
  proto::PutReply reply() const {
    return {.is_duplicate = is_duplicate, .image_bytes = image_bytes};
  }

  PutPath* path = nullptr;
  SpaceRef space;
  uint64_t session_id = 0;
  absl::Time deadline = absl::InfiniteFuture();  // Put() does not start after it
  proto::Put put;                                // from the frame
  uint32_t payload_crc32c = 0;                   // from the frame
  codecs::ImageSpec spec;                        // of the image, except its recipe
  Sessions::InFlightPut in_flight;               // destroyed after staging, when its bytes are free
  Extent staging;                                // the payload
  PutReservation expected;                       // the block, until it is published
  // From the payload, after Encode() has checked them.
  Statistics statistics;
  // Set before Put() if the path pool is busy: the block is stored raw and upkeep encodes it later.
  // A block whose recipe reads its statistics is encoded anyway, because upkeep would not have
  // them.
  bool keeps_raw = false;
  bool is_duplicate = false;  // the slice is stored already
  uint64_t image_bytes = 0;   // for a duplicate, or after publication
};

// Decides whether to transfer a put's payload. Cheap enough for a lane. REQUIRES: frame.body is a
// Put. Returns:
//
// - OK with is_duplicate: the slice is stored. Refuse the payload and answer reply().
// - OK: receive into target(), then call Put().
// - NotFound: no such space.
// - PermissionDenied: the space belongs to another tenant.
// - InvalidArgument: a field, with its limit: group, slice, tokens, payload bytes, first position.
// - FailedPrecondition: derived KV for a lossless space.
// - ResourceExhausted: staging is full, or the session has too many running puts.
absl::StatusOr<OwnedPut> Admit(PutPath& path, const Session& session, const proto::Frame& frame,
                               absl::Time deadline);

// Runs exactly once, without locks held: on a thread of the path pool, or, if the put asked to be
// durable, on any thread. The put's memory is free by then.
using PutDone = absl::AnyInvocable<void(absl::StatusOr<proto::PutReply>)>;

// Runs the rest of a put, on a thread of the path pool. `crc32c` is the transport's CRC of the
// bytes in put.target(). `done` gets:
//
// - OK: stored, or a duplicate of an image that was published meanwhile.
// - DataLoss: the payload does not match the frame's CRC, or the image's own CRCs.
// - InvalidArgument: the payload is not an image, or not of this block.
// - ResourceExhausted: everything else in the tier is pinned or in use.
// - Unavailable: the session has ended. Nothing became visible.
// - DeadlineExceeded: the put waited too long for its turn.
//
// A put that asked to be durable is answered once it is durable, or once it is known that it will
// not be. The reply says which; the block is stored in either case. The put holds no memory while
// it waits.
void Put(OwnedPut put, uint32_t crc32c, PutDone done);

// Answers an admitted duplicate with reply(); if it asked to be durable, waits for that first.
// `done` runs in this call or on any thread.
void AnswerDuplicate(OwnedPut put, PutDone done);

}  // namespace cairn
