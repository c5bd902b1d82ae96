// SPDX-License-Identifier: Apache-2.0
#pragma once
// The path of a get. Read get.cc first, then the steps in this order:
//
//   lookup     the images that cover the slice, pinned
//   promote    into a tier that can be sent from
//   transcode  one payload of the wanted form, verified: the image itself, a gathered one, or
//   source send       the reply's fields; the lane sends the payload and then drops the answer
//
// A miss is NotFound: counted, never logged. Bytes that fail their CRC are a miss too: the image is
// dropped, cairn_corrupt_tiles_total counts, one log line says where.

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "proto/frame.h"
#include "service/index/block_index.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/host_tier.h"

namespace cairn {

// What gets work with, and what they count. Made once. Thread-safety: Thread-safe.
class GetPath {
 public:
  GetPath(Spaces& spaces, BlockIndex& index, HostTier& host, const Clock& clock);

  enum class Step : uint8_t { kLookup, kPromote, kTranscode, kSend };
  static constexpr size_t kStepCount = 4;
  enum class Outcome : uint8_t { kHit, kMiss, kCorrupt, kRefused };
  static constexpr size_t kOutcomeCount = 4;

  Spaces& spaces;
  BlockIndex& index;
  HostTier& host;
  const Clock& clock;
  const codecs::Backend& backend;

  void Count(Outcome outcome) { outcomes_[static_cast<size_t>(outcome)].Add(); }
  // kSend is observed by who sends.
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }
  Counter corrupt_tiles_host;
  Counter sent_bytes;  // counted by who sends
  // Of the hits: sent as they lie, put together, decoded, decoded and encoded raw.
  Counter direct, gathered, decoded, recoded;
  void Report(MetricSink& sink) const;

 private:
  std::array<Counter, kOutcomeCount> outcomes_;
  std::array<Histogram, kStepCount> seconds_;
};

// What to send, and what keeps it. Move-only. Destroy it when the reply's transfer is over.
// Thread-safety: Thread-compatible.
struct Answer {
  proto::GetReply reply;
  std::span<const std::byte> payload;
  uint32_t payload_crc32c = 0;
  // One of the two keeps payload alive.
  Pin pin;
  Extent staging;
};

// All of the path but the sending. On the pool; for a get that transcodes nothing, short enough for
// a lane. `target_bytes` is the most payload the client takes (the least of frame and transport).
//   NotFound             a miss, or no such space
//   PermissionDenied     the space is another tenant's
//   InvalidArgument      group, slice; or target_bytes is too small: the message says what is
//   needed ResourceExhausted    staging is in use
absl::StatusOr<Answer> Get(GetPath& path, const Session& session, const proto::Get& get,
                           uint64_t target_bytes);

}  // namespace cairn
