// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a put is processed, from its frame to its reply. Read put.cc first: its first two functions
// are the steps, in order.
//
// - Admit: runs on the lane before the payload is transferred. The lane is the thread that moves
//   the peer's bytes. Checks fields and limits, and allocates staging.
// - Receive: the lane copies the payload into staging. Then the put waits for a thread of the path
//   pool.
// - Encode: checks the payload and encodes it with the space's recipe (encode.cc). If a device
//   encodes it, no thread waits for the device.
// - Place and Publish: move the image into a tier, with evictions if needed, and make the complete
//   image visible to all readers.
// - Reply: frees all memory of the put, then answers. If the put asked to be durable, the answer
//   waits until the put is durable, or until it is known that it will not be.
// One PutOp goes through all steps. Nothing is visible before Publish. If the PutOp is destroyed
// earlier, the put has no effect.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "proto/frame.h"
#include "service/codec/device_codec.h"
#include "service/index/block_index.h"
#include "service/index/pin.h"
#include "service/index/side_objects.h"
#include "service/limits.h"
#include "service/memory/arena.h"
#include "service/op_pool.h"
#include "service/path_pool.h"
#include "service/put/statistics.h"
#include "service/replies.h"
#include "service/request.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "transport/transport.h"

namespace cairn {

struct PutOp;
using PutOwner = OpPool<PutOp>::Owner;
// Receives a put after the current step, and runs the next step.
using PutNext = absl::AnyInvocable<void(PutOwner, absl::Status)>;
// Receives the reply. Runs exactly once, without locks held, after the put's memory is freed.
using PutDone = absl::AnyInvocable<void(Request, absl::StatusOr<proto::PutReply>)>;

// The images of the previous block. The recipe `ott` continues from them.
struct Parents {
  CopyPins pins;
  std::vector<codecs::ImageView> views;
};

// The inputs of an encoder.
struct Sources {
  Extent payload;
  SideObjectRef side_object;
  Statistics statistics;  // only those that an encoder reads
  Parents parents;
};

// A running put. It owns everything that it needs, and is passed from thread to thread.
// Thread-safety: Thread-compatible. It must stay alive while the lane copies into target().
struct PutOp {
  std::span<std::byte> target() {
    return payload.is_empty() ? std::span<std::byte>()
                              : payload.bytes().subspan(payload_offset, payload_bytes);
  }

  BlockName block() const { return {put.space_id, put.key}; }

  OpPool<PutOp>* pool = nullptr;
  Request request = {};
  PutDone done = nullptr;
  PutNext next = nullptr;  // set while a step is running
  // From the frame:
  proto::Put put = {};
  uint64_t payload_bytes = 0;
  uint32_t payload_crc32c = 0;
  // Set by Admit:
  bool is_duplicate = false;  // the slice is stored already; Publish may set it, too
  uint64_t image_bytes = 0;   // the size of the duplicate, or of the published image
  SpaceRef space = {};
  codecs::ImageSpec spec = {};           // Encode sets its recipe
  Sessions::InFlightPut in_flight = {};  // destroyed after `payload` has freed its bytes
  Extent payload = {};                   // staging for the frame's payload_bytes, and more
  uint64_t payload_offset = 0;  // offset of the frame's payload; before it is room for a raw prefix
  bool ends_on_lane = false;    // the remaining steps are short, so the lane runs them
  PutReservation reservation = {};  // held until the block is published
  // Set by StoreCopy():
  bool is_copy = false;
  bool is_fetched = false;
  uint32_t copy_expires_unix_s = 0;
  // Set by Receive:
  uint32_t received_crc32c = 0;  // CRC of the bytes in target()
  // True if the block must be stored raw, because the path pool is busy; upkeep encodes it later.
  // Never true if the recipe reads the statistics of the block, since a later encoding would not
  // have them.
  bool keeps_raw = false;
  // Set by Encode:
  absl::Time began = absl::InfinitePast();     // when Encode began, on the monotonic clock
  Statistics statistics = {};                  // from the payload, checked
  std::vector<uint32_t> tokens = {};           // from the payload, checked
  std::optional<Sources> sources = {};         // nullopt: nothing to encode
  std::shared_ptr<const Sources> shared = {};  // replaces `sources` on a device
  Extent image = {};                           // verified, in staging or in the tier
  bool is_placed = false;                      // the image is in the tier
  codecs::Recipe recipe = {};                  // recipe of the image
  SideObjectRef side_object = {};              // null: none
  bool is_encode_pending = false;              // stored raw, to be encoded later
};

// The puts of the daemon: the components that they use, and their metrics.
// Thread-safety: Thread-safe. Must outlive its PutOps, which the path pool's jobs and the lanes'
// transfers own.
class Puts {
 public:
  Puts(Spaces& spaces, Sessions& sessions, BlockIndex& index, Tiers& tiers, PathPool& pool,
       const Clock& clock);

  // Writes the images of a slice to the persistent tier before other images. Runs `done` once: when
  // all of them are durable, when it is known that they will not become durable, or at the
  // deadline.
  using DurableDone = absl::AnyInvocable<void(proto::Durability)>;
  using AwaitDurable =
      std::function<void(const BlockName&, const WantedGroup&, absl::Time deadline, DurableDone)>;
  // Set it once, before the first put that asks to be durable.
  void SetAwaitDurable(AwaitDurable await_durable) { await_durable_ = std::move(await_durable); }
  // Set it once, before the first put. Null: no device encodes.
  void SetDevice(DeviceCodec* device) { device_ = device; }

  // Starts a put. `replies` answers it, and must outlive it. Call it on the lane's thread only.
  // REQUIRES: frame.body is a Put, and the request has been checked.
  void StartPut(transport::Lane& lane, Replies& replies, Request request, const proto::Frame& frame,
                transport::Arrival arrival);
  // Stores a copy of an image of another member, with the checks of a put, on this thread. The
  // image may have any recipe, but a lossless space takes no lossy one. `done` gets what the put
  // would answer. REQUIRES: put.form is kImage.
  struct CopyTerms {
    uint32_t expires_unix_s = 0;  // when its block expires; 0: never
    // It was fetched for a get. Until its block is used again, it is evicted before others
    // (kFetchedRank).
    bool is_fetched = false;
  };
  void StoreCopy(Request request, const proto::Put& put, std::span<const std::byte> image,
                 const CopyTerms& terms, PutDone done);
  // From now on, answers new puts with Unavailable. Used for draining.
  void RefuseNew() { refuses_new_.store(true, std::memory_order_relaxed); }

  // MakeOp(), Admit() and FinishPut() are the parts of StartPut(), for tests without a lane.
  PutOwner MakeOp(Request request, const proto::Frame& frame, PutDone done);
  // Decides whether to transfer the payload. Fast enough for a lane. Returns:
  //
  // - OK with op.is_duplicate: the slice is stored. Refuse the payload and answer.
  // - OK: receive into op.target(), set op.received_crc32c, then call FinishPut().
  // - NotFound: there is no such space, or it belongs to another tenant.
  // - InvalidArgument: a field is invalid (group, slice, tokens, payload bytes, position). The
  //   message names the field and its limit.
  // - FailedPrecondition: the KV was computed from a lossy prefix, and the space is lossless.
  // - ResourceExhausted: staging is full, or the session has too many running puts.
  absl::Status Admit(PutOp& op);
  // Runs the rest of a put on a thread of the path pool. The put is answered with a reply or error:
  //
  // - OK: stored, or a duplicate of an image that was published meanwhile.
  // - DataLoss: the payload does not match the frame's CRC, or the image's own CRCs.
  // - InvalidArgument: the payload is not an image, or not an image of this block.
  // - ResourceExhausted: everything else in the tier is pinned or in use.
  // - Unavailable: the session has ended. Nothing became visible.
  // - DeadlineExceeded: the put waited too long for a thread.
  void FinishPut(PutOwner op);
  // Frees the put's memory, counts the outcome and answers. While a put waits to be durable, it
  // uses no memory. If it cannot become durable, the block is still stored, and the reply says so.
  void Reply(PutOwner op, absl::Status status);

  void Report(MetricSink& sink) const;

 private:
  // The steps that are timed, with the names of their functions.
  enum class Step : uint8_t { kAdmit, kReceive, kEncode, kPlace, kPublish };
  static constexpr size_t kStepCount = 5;
  enum class Outcome : uint8_t { kStored, kDuplicate, kRefused, kCorrupt, kAborted };
  static constexpr size_t kOutcomeCount = 5;

  PutDone AnswerTo(Replies& replies);
  void Receive(transport::Lane& lane, PutOwner op, transport::Arrival arrival, PutNext next);
  absl::Status Place(PutOp& op);
  // Sets op.is_duplicate and op.image_bytes.
  absl::Status Publish(PutOp& op);
  void RunNext(PutOwner op, absl::Status status);
  // Returns true if the status means that the daemon refused the put. That is so for every error
  // except DataLoss, Unavailable and DeadlineExceeded.
  static bool IsRefused(const absl::Status& status);
  void CountOutcome(const absl::Status& status, bool is_duplicate);
  void Count(Outcome outcome) { outcomes_[static_cast<size_t>(outcome)].Add(); }
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }

  // --- encode.cc
  void Encode(PutOwner op, PutNext next);
  void EndEncode(PutOwner op, absl::Status status);
  // Checks the payload and decides how to encode it. If it is an image already, sets op.image.
  absl::Status Prepare(PutOp& op);
  absl::Status CheckImage(PutOp& op, std::span<const std::byte> payload);
  absl::Status NoteCorrupt(const proto::Put& put, std::string_view what);
  void ChooseEncoding(PutOp& op, Extent payload);
  Parents FindParents(const PutOp& op);
  bool FollowsRaw(const PutOp& op, const codecs::Recipe& policy);
  absl::StatusOr<Extent> AllocateTarget(PutOp& op, uint64_t bytes);
  absl::Status EncodeHere(PutOp& op);
  bool IsForDevice(const PutOp& op) const;
  void EncodeOnDevice(PutOwner op);
  // Continues with the image that the device encoded. If the device failed, encodes here.
  void TakeEncoded(PutOwner op, absl::StatusOr<Extent> image);

  Spaces& spaces_;
  Sessions& sessions_;
  BlockIndex& index_;
  Tiers& tiers_;
  PathPool& pool_;
  const Clock& clock_;
  const codecs::Backend& backend_;
  AwaitDurable await_durable_;
  DeviceCodec* device_ = nullptr;
  std::atomic<bool> refuses_new_{false};
  OpPool<PutOp> ops_{limits::kOpsAtStart};
  Counter corrupt_wire_, kept_raw_, without_side_object_, source_bytes_, image_bytes_;
  std::array<Counter, kOutcomeCount> outcomes_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
