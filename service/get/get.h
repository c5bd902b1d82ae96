// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way of a get between the lane that took its frame and the lane that sends the answer. Read
// get.cc first. The steps, in their order:
//
// - Lookup() pins images that cover the slice (get.cc).
// - Promote() has those read whose bytes cannot be addressed, and returns; the completion queues
//   Resume() on the path pool (promote.cc).
// - Verify() checks them, and Transcode() makes one payload of the wanted form: the image itself, a
//   gathered one, a decoded one, or source; or a device decodes, for which no thread waits: the get
//   goes on in ResumeDecoded(), on the path pool (transcode.cc).
// - The lane sends the payload and then drops the answer (front/get_request.cc).
//
// No thread waits for a tier. A get whose deadline passes meanwhile gets a miss at once; the read
// goes on and keeps its memory until its completion has run.
//
// A miss is NotFound: counted, never logged. Bytes that fail their CRC, and bytes of another image
// than the one asked for, are a miss too: the image is dropped, cairn_corrupt_tiles_total counts,
// and one log line says where.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "service/get/get_path.h"
#include "service/index/pin.h"
#include "service/memory/arena.h"
#include "service/sessions.h"

namespace cairn {

// One get. It owns all that it needs, so it may outlive the frame and the connection that it came
// by. Thread-safety: Thread-compatible.
struct OwnedGet {
  Session session = {};
  proto::Get get = {};
  // The most payload that the client takes: the least of frame and transport.
  uint64_t target_bytes = 0;
  // The client checks every tile of an image and asks again, without this, where one is damaged. So
  // what lies in memory is not read here.
  bool is_checked_by_client = false;
  absl::Time deadline = absl::InfiniteFuture();
};

// What to send, and what keeps it. Move-only. Destroy it when the reply's transfer is over.
// Thread-safety: Thread-compatible.
struct Answer {
  proto::GetReply reply;
  std::span<const std::byte> payload;
  uint32_t payload_crc32c = 0;
  // One of the three keeps payload alive.
  ResidentPin pin;
  Extent staging;
  std::shared_ptr<const Promotion> read;
  absl::Duration promote;  // how long it waited for a tier
};

// Runs exactly once with no lock held: in Get(), or later on a thread of the path pool, or on one
// of a tier where the daemon stops.
using GetDone = absl::AnyInvocable<void(absl::StatusOr<Answer>)>;

// Runs the path, on a thread of the path pool.
//
// - NotFound: a miss, or no such space.
// - PermissionDenied: the space is another tenant's.
// - InvalidArgument: group, slice; or target_bytes is too small, and the message says what is
//   needed.
// - ResourceExhausted: staging is in use.
// - DeadlineExceeded: the get waited too long for its turn.
void Get(GetPath& path, OwnedGet get, GetDone done);

// Answers on this thread, a lane say, what takes no more than look-ups: an image in memory that is
// wanted as it is, by a client that checks it. nullopt, and nothing counted: Get() it. Errors as
// Get().
std::optional<absl::StatusOr<Answer>> GetAtOnce(GetPath& path, const OwnedGet& get);

}  // namespace cairn
