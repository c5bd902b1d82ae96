// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way of a put between the lane that received it and the reply. Read put.cc first. The steps,
// in their order:
//
// - Admit() runs on the lane before the payload moves: fields, limits, staging (admit.cc).
// - The lane receives the payload into OwnedPut::target() (front/put_request.cc).
// - Put() runs the rest on the path pool.
// - Prepare() checks the payload and Encode() makes the image by the space's recipe (encode.cc); or
//   a device makes it, for which no thread waits: the put goes on in Resume(), on the path pool.
// - Place() moves the image into a tier and evicts if need be (place.cc).
// - Publish() makes it visible, whole, to everyone (publish.cc).
//
// Nothing is visible before Publish(). Whatever fails before it leaves nothing behind: every byte
// is owned by the OwnedPut or by what the steps hand on.

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

// One admitted put, from Admit() until its end. It owns all that it needs, so it can be handed from
// thread to thread; destroying it aborts what is not published. Move-only.
//
// Thread-safety: Thread-compatible. While a transfer into target() is under way it must stay alive
//                (the transport says when that is over) but may be moved.
struct OwnedPut {
  // Where the payload has to land: exactly the frame's payload_bytes. Empty for a duplicate.
  std::span<std::byte> target() {
    return staging.is_empty() ? std::span<std::byte>() : staging.bytes();
  }
  // What to answer a duplicate at once, and everyone else once the put is published.
  proto::PutReply reply() const {
    return {.is_duplicate = is_duplicate, .image_bytes = image_bytes};
  }

  PutPath* path = nullptr;
  SpaceRef space;
  uint64_t session_id = 0;
  absl::Time deadline = absl::InfiniteFuture();  // past it Put() does not start
  proto::Put put;                                // as the frame says
  uint32_t payload_crc32c = 0;                   // as the frame says
  codecs::ImageSpec spec;                        // of the image to be, but for how it is coded
  Sessions::InFlightPut in_flight;               // destroyed after staging: its bytes are then free
  Extent staging;                                // the payload
  ExpectedBlock expected;                        // the block, until it is there
  Statistics statistics;                         // of the payload, once Encode() has checked it
  // Set before Put() when the path pool is busy: the block is kept raw and upkeep encodes it later.
  // A block whose recipe reads its statistics is encoded all the same: upkeep would not have them.
  bool keeps_raw = false;
  bool is_duplicate = false;  // the slice is there already
  uint64_t image_bytes = 0;   // of a duplicate, or once published
};

// Decides whether a put is worth its transfer. Cheap enough for a lane. REQUIRES: frame.body is a
// Put.
//
// - OK with is_duplicate: the slice is there. Refuse the payload and answer reply().
// - OK: receive into target(), then call Put().
// - NotFound: no such space.
// - PermissionDenied: the space is another tenant's.
// - InvalidArgument: a field, with its limit: group, slice, tokens, payload bytes, first position.
// - FailedPrecondition: derived KV put into a lossless space.
// - ResourceExhausted: staging, or the session's puts in flight.
absl::StatusOr<OwnedPut> Admit(PutPath& path, const Session& session, const proto::Frame& frame,
                               absl::Time deadline);

// Runs exactly once, with no lock held: on a thread of the path pool, or, where the put asked to be
// durable, on any. The put's memory is free by then.
using PutDone = absl::AnyInvocable<void(absl::StatusOr<proto::PutReply>)>;

// Runs the rest of the path, on a thread of the path pool. `crc32c` is of what landed in
// put.target(), as the transport computed it.
//
// - OK: stored, or a duplicate of what was published meanwhile.
// - DataLoss: the payload is not what the frame's CRC, or the image's own CRCs, say.
// - InvalidArgument: the payload is no image, or not of this block.
// - ResourceExhausted: what is left in the tier is pinned or in flight.
// - Unavailable: the session has ended. Nothing became visible.
// - DeadlineExceeded: the put waited too long for its turn.
//
// One that asked to be durable is answered once it is, or is known not to become so: the reply says
// which, and the block is stored in either case. It holds nothing while it waits.
void Put(OwnedPut put, uint32_t crc32c, PutDone done);

// Answers an admitted duplicate: reply(), or what it waits for where it asked to be durable. `done`
// runs in this call, or on any thread.
void AnswerDuplicate(OwnedPut put, PutDone done);

}  // namespace cairn
