// SPDX-License-Identifier: Apache-2.0
#pragma once
// A get, from the lane that received its frame to the lane that sends the answer. Read get.cc
// first. Its steps, in order:
//
// - Lookup() pins images that cover the slice (get.cc).
// - Promote() starts reading the images that are not in memory and returns. The completion queues
//   Resume() on the path pool (promote.cc).
// - Verify() checks them, and Transcode() makes one payload of the wanted form: the image itself, a
//   gathered image, a recoded image, or source. If a device decodes, no thread waits: the get
//   continues in ResumeDecoded(), on the path pool (transcode.cc).
// - The lane sends the payload and then drops the answer (front/get_request.cc).
//
// No thread waits for a tier. A get past its deadline is answered with a miss at once; the read
// continues and keeps its memory until its completion has run.
//
// A miss is NotFound: counted, never logged. Bytes that fail their CRC, or belong to another image,
// are a miss, too: the image is dropped, cairn_corrupt_tiles_total counts it, and one log line says
// where it was.

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

// A get. It owns everything that it needs, so it may outlive its frame and its connection.
// Thread-safety: Thread-compatible.
struct OwnedGet {
  Session session = {};
  proto::Get get = {};
  // Limit for the payload: the lower one of frame and transport.
  uint64_t target_bytes = 0;
  // The client verifies every tile of an image, and asks again without this flag if one is damaged.
  // So an image in memory is not read here.
  bool is_checked_by_client = false;
  absl::Time deadline = absl::InfiniteFuture();
};

// An answer and the owner of its payload. Move-only. Destroy it when the reply's transfer has
// completed.
// Thread-safety: Thread-compatible.
struct Answer {
  proto::GetReply reply;
  std::span<const std::byte> payload;
  uint32_t payload_crc32c = 0;
  // One of the three owns the payload.
  CopyPin pin;
  Extent staging;
  std::shared_ptr<const Promotion> read;
  absl::Duration promote;  // time spent waiting for a tier
};

// Runs exactly once without locks held: in Get(), later on a thread of the path pool, or on a
// tier's thread when the daemon stops.
using GetDone = absl::AnyInvocable<void(absl::StatusOr<Answer>)>;

// Runs a get, on a thread of the path pool. `done` gets an answer or:
//
// - NotFound: a miss, or no such space.
// - PermissionDenied: the space belongs to another tenant.
// - InvalidArgument: the group, the slice, or target_bytes: the message says how much is needed.
// - ResourceExhausted: staging is full.
// - DeadlineExceeded: the get waited too long for its turn.
void Get(GetPath& path, OwnedGet get, GetDone done);

// Answers a get on the calling thread, for example a lane, if that takes only lookups: the image is
// in memory, the client wants it unchanged and verifies it. Returns nullopt otherwise, without
// counting the get: call Get() then. Errors as Get().
std::optional<absl::StatusOr<Answer>> GetAtOnce(GetPath& path, const OwnedGet& get);

}  // namespace cairn
