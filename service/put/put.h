// SPDX-License-Identifier: Apache-2.0
#pragma once
// The path of a put. Read put.cc first, then the steps in this order:
//
//   receive   Admit(): before the payload moves, on the lane; the lane then receives into
//   context.target() encode    check the payload; source -> image by the space's recipe place into
//   a tier, evicting if need be publish   visible, whole, to everyone
//
// Each step consumes the product of the one before. Nothing is visible before Publish(), and
// whatever fails before it leaves nothing behind: every byte is owned by the context or by what the
// steps hand on.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "proto/frame.h"
#include "service/index/block_index.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/host_tier.h"

namespace cairn {

struct Received;
struct Encoded;
struct Placed;

// What puts work with, and what they count. Made once. Thread-safety: Thread-safe.
class PutPath {
 public:
  PutPath(Spaces& spaces, Sessions& sessions, BlockIndex& index, HostTier& host,
          const Clock& clock);

  enum class Step : uint8_t { kReceive, kEncode, kPlace, kPublish };
  static constexpr size_t kStepCount = 4;
  enum class Outcome : uint8_t { kStored, kDuplicate, kRefused, kCorrupt, kAborted };
  static constexpr size_t kOutcomeCount = 5;

  Spaces& spaces;
  Sessions& sessions;
  BlockIndex& index;
  HostTier& host;
  const Clock& clock;
  const codecs::Backend& backend;

  void Count(Outcome outcome) { outcomes_[static_cast<size_t>(outcome)].Add(); }
  // Counts a put that failed, by its status.
  void CountFailure(const absl::Status& status);
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }
  Counter corrupt_wire, kept_raw, without_side_object, source_bytes, image_bytes;
  void Report(MetricSink& sink) const;

 private:
  std::array<Counter, kOutcomeCount> outcomes_;
  std::array<Histogram, kStepCount> seconds_;
};

// What came with a put besides the KV; empty: not given. docs/formats/frame.md.
class Statistics {
 public:
  std::vector<float>& of(proto::Statistic kind) { return values_[static_cast<size_t>(kind)]; }
  const std::vector<float>& of(proto::Statistic kind) const {
    return values_[static_cast<size_t>(kind)];
  }

 private:
  std::array<std::vector<float>, proto::kStatisticCount> values_;
};

// One admitted put: from Admit() until the reply. Move-only; destroying it aborts what is not
// published. Thread-safety: Thread-compatible: handed from the lane to the pool. While a transfer
// into target() is under way it must stay alive (the transport says when that is over) but may be
// moved.
class PutContext {
 public:
  PutContext() = default;
  PutContext(PutContext&&) = default;
  PutContext& operator=(PutContext&&) = default;

  // Where the payload has to land: exactly the frame's payload_bytes.
  std::span<std::byte> target() const { return target_; }
  bool is_duplicate() const { return is_duplicate_; }
  // What to answer once OK.
  proto::PutReply reply() const {
    return {.is_duplicate = is_duplicate_, .image_bytes = image_bytes_};
  }
  // Set before Put() when the path pool is busy: the block is kept raw and upkeep encodes it later.
  // One whose recipe reads what came with it is encoded all the same: upkeep would not have that.
  void KeepRaw() { keeps_raw_ = true; }

 private:
  friend absl::StatusOr<PutContext> Admit(PutPath&, const Session&, const proto::Frame&);
  friend Received Arrived(PutContext&, uint32_t);
  friend absl::StatusOr<Encoded> Encode(PutContext&, Received);
  friend absl::StatusOr<Placed> Place(PutContext&, Encoded);
  friend absl::Status Publish(PutContext&, Placed);
  friend absl::Status Put(PutContext&, Received);

  PutPath* path_ = nullptr;
  const SpaceEntry* space_ = nullptr;
  Statistics statistics_;  // of the payload, once it is checked
  uint64_t session_id_ = 0;
  proto::Put put_;
  codecs::ImageSpec spec_;       // of the image to be, but for how it is coded
  uint32_t payload_crc32c_ = 0;  // as the frame says
  absl::Time admitted_ = absl::InfinitePast();
  Sessions::InFlightPut in_flight_;  // destroyed after staging_: its bytes are then free
  Extent staging_;
  std::span<std::byte> target_;
  bool keeps_raw_ = false;
  bool is_duplicate_ = false;
  uint64_t image_bytes_ = 0;
};

// The payload has landed.
struct Received {
  Extent staging;
  std::span<std::byte> payload;
  uint32_t crc32c = 0;
};

// Before the payload moves; cheap enough for a lane. REQUIRES: frame.body is a Put.
//   OK, is_duplicate()   the slice is there: refuse the payload, answer reply()
//   OK                   receive into target(), then Arrived() and Put()
//   NotFound             no such space
//   PermissionDenied     the space is another tenant's
//   InvalidArgument      a field, with its limit: group, slice, tokens, payload size, first
//   position FailedPrecondition   derived KV put into a lossless space ResourceExhausted staging,
//   or the session's puts in flight
absl::StatusOr<PutContext> Admit(PutPath& path, const Session& session, const proto::Frame& frame);

// `crc32c` is of what landed in context.target(), as the transport computed it.
Received Arrived(PutContext& context, uint32_t crc32c);

// The rest of the path, on the pool. OK: context.reply() says stored or duplicate.
//   DataLoss             the payload is not what the frame's CRC, or the image's own CRCs, say
//   InvalidArgument      the payload is no image, or not of this block
//   ResourceExhausted    what is left in the tier is pinned or in flight
//   Unavailable          the session has ended: nothing became visible
absl::Status Put(PutContext& context, Received received);

}  // namespace cairn
