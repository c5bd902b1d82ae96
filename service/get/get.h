// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way of a get, from its frame to its reply. Read get.cc first: its first two functions are the
// steps, in order.
//
// - On the lane at once, if that takes only look-ups: the image is in memory, and the client wants
//   it unchanged and verifies it. All other gets wait for a thread of the path pool.
// - Check and Lookup: the request's fields; pins images that cover the slice.
// - Promote: has those read that are not in memory. Meanwhile no thread waits: the get is a record
//   of WaitingGets (promotions.h has the reads).
// - Transcode: verifies the images, and makes one payload of the wanted form: the image itself, a
//   gathered image, a recoded image, or source (transcode.cc). If a device decodes, no thread
//   waits.
// - Reply: counts the outcome. The lane sends the payload or lends it, and then drops the answer.
//
// One GetOp goes all the way. A get past its deadline is answered with a miss at once; the read
// continues and keeps its memory until its completion has run.
//
// A miss is NotFound: counted, never logged. Bytes that fail their CRC, or belong to another image,
// are a miss, too: the image is dropped, cairn_corrupt_tiles_total counts it, and one log line says
// where it was.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "proto/frame.h"
#include "service/codec/device_codec.h"
#include "service/get/prefetches.h"
#include "service/get/promotions.h"
#include "service/index/block_index.h"
#include "service/index/pin.h"
#include "service/limits.h"
#include "service/memory/arena.h"
#include "service/op_pool.h"
#include "service/path_pool.h"
#include "service/replies.h"
#include "service/request.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "transport/transport.h"

namespace cairn {

struct GetOp;
using GetOwner = OpPool<GetOp>::Owner;
// The step after the one that the get is in.
using GetNext = absl::AnyInvocable<void(GetOwner, absl::Status)>;

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
};

// Gets the answer. Runs exactly once, without locks held: on the lane, on a thread of the path
// pool, or on a tier's thread when the daemon stops. The get has nothing pinned that the answer has
// not.
using GetDone = absl::AnyInvocable<void(Request, absl::StatusOr<Answer>)>;

// The images of one answer: their views, in the order of their pins.
using Views = absl::InlinedVector<codecs::ImageView, 4>;

// Returns the part of `slice` that an image with the slice `whole` has.
codecs::Slice PartWithin(const codecs::Slice& slice, const codecs::Slice& whole);

// A get under way. It owns everything that it needs, so it may outlive its frame and its
// connection. Thread-safety: Thread-compatible: handed from thread to thread.
struct GetOp {
  bool IsRead(size_t i) const { return i < reads.size() && reads[i] != nullptr; }
  const CopyPin& PinOf(size_t i) const {
    return IsRead(i) ? reads[i]->pin() : shared_pin != nullptr ? *shared_pin : pins[i];
  }

  BlockName block() const { return {get.space_id, get.key}; }

  OpPool<GetOp>* pool = nullptr;
  Request request = {};
  GetDone done = nullptr;
  GetNext next = nullptr;  // while a step is under way
  proto::Get get = {};     // from the frame
  // Limit for the payload: the lower one of frame and transport.
  uint64_t target_bytes = 0;
  // The client verifies every tile of an image, and asks again without this flag if one is damaged.
  // So an image in memory is not read here.
  bool is_checked_by_client = false;
  // Set by Check and Lookup:
  SpaceRef space = {};
  codecs::Slice slice = {};
  uint64_t source_bytes = 0;  // of the slice
  CopyPins pins = {};         // of images that together cover the slice
  // Set by Promote, by image: the read of its bytes; null if they are addressable.
  absl::InlinedVector<std::shared_ptr<const Promotion>, 4> reads = {};
  absl::Time promote_began = absl::InfinitePast();
  bool is_retry = false;                // a spare copy failed; this is the second and last attempt
  TierId damaged_tier = TierId::kHost;  // of damaged bytes
  // Set by Transcode:
  absl::Time transcode_began = absl::InfinitePast();    // on the monotonic clock
  Views views = {};                                     // by image
  std::shared_ptr<const CopyPin> shared_pin = nullptr;  // the only pin, which a late device keeps
  Answer answer = {};
};

// Gets that wait for a tier. Each is returned once: when its last read completes, or after its
// deadline, whichever is first. The caller that receives it answers it.
// Thread-safety: Thread-safe. Makes no calls to others.
class WaitingGets {
 public:
  // Returns an id for a get that is about to wait. 0: limits::kWaitingGetsMax are waiting.
  GetId OpenGet();
  // Gives the id back without waiting.
  void CloseGet(GetId id);
  // Waits for `reads` reads, at most until `deadline`. Some may have completed already; if all
  // have, returns the get at once. Null: it waits.
  GetOwner AwaitReads(GetId id, GetOwner op, size_t reads, absl::Time deadline);
  // One of its reads has completed. Returns the get if that was the last one; null if others are
  // missing, or if it was returned before.
  GetOwner CountRead(GetId id);
  // Returns those past their deadline.
  std::vector<GetOwner> TakeLateGets(absl::Time now);
  // InfiniteFuture: none waits.
  absl::Time next_deadline() const;
  size_t count() const;

 private:
  struct Entry {
    GetOwner op;  // null until AwaitReads()
    size_t arrived = 0, reads = 0;
    absl::Time deadline;
  };
  GetOwner TakeGet(GetId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  GetId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<GetId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, GetId>> deadlines_ ABSL_GUARDED_BY(mutex_);
};

// The gets of the daemon: the components that they use, and their metrics.
// Thread-safety: Thread-safe. Must outlive its GetOps: the path pool's jobs.
class Gets {
 public:
  // Answers late gets on the pool's threads: stop the pool before destroying it.
  Gets(Spaces& spaces, BlockIndex& index, Tiers& tiers, PathPool& pool, const Clock& clock);

  // Set once, before the first get; null: not wanted.
  using NoteRead = std::function<void(const BlockName&, TierId)>;
  void SetNoteRead(NoteRead note_read) { note_read_ = std::move(note_read); }
  // Set once, before the first get; null: no device.
  void SetDevice(DeviceCodec* device) { device_ = device; }

  // Starts a get. It is answered by `replies`, which must outlive it. Owned by the lane's thread.
  // REQUIRES: frame.body is a Get, and the request has been checked.
  void StartGet(Replies& replies, Request request, const proto::Frame& frame);

  // The parts of StartGet(), for tests without a lane.
  GetOwner MakeOp(Request request, const proto::Get& get, GetDone done);
  // Runs a get, on a thread of the path pool. The answer, or:
  //
  // - NotFound: a miss, or no such space.
  // - PermissionDenied: the space belongs to another tenant.
  // - InvalidArgument: the group, the slice, or target_bytes: the message says how much is needed.
  // - ResourceExhausted: staging is full.
  // - DeadlineExceeded: the get waited too long for its turn.
  void RunGet(GetOwner op);

  Prefetches& prefetches() { return prefetches_; }
  const Promotions& promotions() const { return promotions_; }
  const WaitingGets& waiting() const { return waiting_; }
  // Stops the running reads. Call it before the pool is stopped, which runs their continuations.
  void Stop() { promotions_.Stop(); }
  void Report(MetricSink& sink) const;

 private:
  // Steps that are timed, named after their functions.
  enum class Step : uint8_t { kLookup, kPromote, kTranscode, kSend };
  static constexpr size_t kStepCount = 4;
  enum class Outcome : uint8_t { kHit, kMiss, kCorrupt, kRefused };
  static constexpr size_t kOutcomeCount = 4;

  // Pins the image if the get can be answered on the lane. Otherwise the get is as it was.
  bool LookupAtOnce(GetOp& op);
  // The deadline, the space, and the slice's place in it.
  absl::Status Check(GetOp& op) const;
  // Pins images that cover the slice. Errors: NotFound if there are none.
  absl::Status Lookup(GetOp& op);
  void RunNext(GetOwner op, absl::Status status);

  void Promote(GetOwner op, GetNext next);
  // Starts the reads, and files the get. It continues in Resume(), on the path pool, or is answered
  // with a miss at its deadline.
  void BeginReads(GetOwner op);
  // A read of the get has completed.
  void EndRead(GetId id);
  // All its reads have completed.
  void Resume(GetOwner op);
  // Drops copies that could not be read and are never an image's only ones. Returns whether there
  // were any: then the get looks for others.
  bool DropSpares(const GetOp& op);
  void Retry(GetOwner op);
  // Answers gets whose deadline passed while a tier read for them. Returns the time until the next
  // deadline.
  absl::Duration AnswerLate();

  void Reply(GetOwner op, absl::Status status);
  absl::Status CountOutcome(const GetOp& op, absl::Status status);
  GetDone AnswerTo(Replies& replies);
  void SendAnswer(Replies& replies, Request request, Answer answer);

  // --- transcode.cc
  // Makes the payload, here or on a device, and replies.
  void Transcode(GetOwner op);
  void EndTranscode(GetOwner op, absl::StatusOr<Answer> answer);
  // Parses every image and verifies the tiles that the answer needs. Bytes that were read for this
  // get have been verified already.
  absl::Status Verify(GetOp& op);
  bool IsForDevice(const GetOp& op) const;
  void DecodeOnDevice(GetOwner op);
  // Continues with the device's slice, or decodes here if it made none.
  void TakeDecoded(GetOwner op, absl::StatusOr<Extent> source);
  absl::StatusOr<Answer> MakePayload(GetOp& op);
  absl::StatusOr<Answer> MakeSource(GetOp& op);
  absl::StatusOr<Answer> MakeImage(GetOp& op);
  Answer AnswerWith(const GetOp& op, Extent source);
  absl::StatusOr<Extent> DecodeToStaging(GetOp& op);
  absl::Status DecodeInto(GetOp& op, std::span<std::byte> target);
  absl::Status DecodeImage(GetOp& op, size_t image, const codecs::Slice& part,
                           std::span<std::byte>& target);
  absl::StatusOr<Extent> Gather(GetOp& op);
  absl::StatusOr<Extent> Recode(GetOp& op);

  // Drops an image whose bytes in the pin's tier are damaged or another image's. The first call for
  // it counts and logs. Returns DataLoss.
  absl::Status DropDamaged(const CopyPin& pin, std::string_view what);
  // `tier`: where the bytes of a hit, or damaged bytes, were.
  void Count(Outcome outcome, TierId tier = TierId::kHost) {
    outcomes_[static_cast<size_t>(outcome)][IndexOf(tier)].Add();
  }
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }

  Spaces& spaces_;
  BlockIndex& index_;
  Tiers& tiers_;
  PathPool& pool_;
  const Clock& clock_;
  const codecs::Backend& backend_;
  NoteRead note_read_;
  DeviceCodec* device_ = nullptr;
  OpPool<GetOp> ops_{limits::kOpsAtStart};
  WaitingGets waiting_;
  Promotions promotions_;
  Prefetches prefetches_;
  Counter sent_bytes_;
  // Kinds of hits: sent in place, gathered, decoded, decoded and encoded as raw.
  Counter direct_, gathered_, decoded_, recoded_;
  std::array<std::array<Counter, kTierCount>, kOutcomeCount> outcomes_;
  std::array<Counter, kTierCount> corrupt_tiles_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
