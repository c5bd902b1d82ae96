// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a get is processed, from its frame to its reply. Read get.cc first: its first two functions
// are the steps, in order.
//
// - On the lane: a get is answered at once if this needs only look-ups. That is so if the image is
//   in memory, and the client wants the image unchanged and verifies it itself. All other gets wait
//   for a thread of the path pool.
// - Check and Lookup: check the request's fields, and pin images that cover the slice.
// - Promote: starts reads of images that are not in memory. No thread waits for the reads. The get
//   waits in WaitingGets (promotions.h describes the reads).
// - Transcode: verifies the images and makes one payload of the wanted form (transcode.cc). The
//   form is the image itself, an image whose tiles stay where they are (a client on this host reads
//   them there), a gathered image, a recoded image, or source. No thread waits while a
//   device decodes.
// - Reply: counts the outcome. The lane sends or lends the payload, and then drops the answer.
//
// One GetOp goes through all steps. A get past its deadline is answered with a miss at once. Its
// read continues, and keeps its memory until the read's completion has run.
//
// A miss is NotFound. It is counted, and never logged. If bytes fail their checksum, or belong to
// another image, the image is dropped and the client gets a miss. In this case
// cairn_corrupt_tiles_total counts the image, and one log line says where it was.

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
#include "service/loan_budget.h"
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
// Receives a get after the current step, and runs the next step.
using GetNext = absl::AnyInvocable<void(GetOwner, absl::Status)>;

// The tiles of an answer, in several places of pinned images, and the header and directory that
// make them an image.
struct PlacedTiles {
  std::vector<std::byte> prefix;
  std::vector<std::span<const std::byte>> places;
  // The images, each in one of the two lists.
  CopyPins pins;
  std::vector<std::shared_ptr<const Promotion>> reads;
};

// An answer, with the owner of its payload. Move-only. Keep it until the transfer of the reply has
// completed. Thread-safety: Thread-compatible.
struct Answer {
  proto::GetReply reply;
  std::span<const std::byte> payload;
  uint32_t payload_crc32c = 0;
  // If not null, the payload is `payload`, followed by the tiles that stay where they are.
  std::unique_ptr<PlacedTiles> placed;
  // Exactly one of these members owns the payload, unless it is placed.
  CopyPin pin;
  Extent staging;
  std::shared_ptr<const Promotion> read;

  // Returns the bytes that the answer keeps from other uses if it is lent. Empty if it must not be
  // lent: the values that it has were made in staging.
  LoanBudget::Bytes lent_bytes() const;
};

// Receives the answer. Runs exactly once, without locks held: on the lane, on a thread of the path
// pool, or on a tier's thread when the daemon stops. At that time the get holds no pins except
// those that the answer owns.
using GetDone = absl::AnyInvocable<void(Request, absl::StatusOr<Answer>)>;

// Views of the images of one answer, in the order of their pins.
using Views = absl::InlinedVector<codecs::ImageView, 4>;

// Returns the part of `slice` that lies inside `whole`, which is the slice of an image.
codecs::Slice PartWithin(const codecs::Slice& slice, const codecs::Slice& whole);

// A running get. It owns everything that it needs, so it may outlive its frame and its connection.
// Thread-safety: Thread-compatible. It is handed from thread to thread.
struct GetOp {
  bool IsRead(size_t i) const { return i < reads.size() && reads[i] != nullptr; }
  const CopyPin& PinOf(size_t i) const {
    return IsRead(i) ? reads[i]->pin() : shared_pin != nullptr ? *shared_pin : pins[i];
  }

  BlockName block() const { return {get.space_id, get.key}; }

  OpPool<GetOp>* pool = nullptr;
  Request request = {};
  GetDone done = nullptr;
  GetNext next = nullptr;  // set while a step is running
  proto::Get get = {};     // from the frame
  // The limit for the payload. It is the smaller of the limits of the frame and the transport.
  uint64_t target_bytes = 0;
  // If true, the client verifies every tile of the image itself, so an image in memory is not
  // verified here. If the client finds a damaged tile, it asks again without this flag.
  bool is_checked_by_client = false;
  // Set by Check and Lookup:
  SpaceRef space = {};
  codecs::Slice slice = {};
  uint64_t source_bytes = 0;  // size of the slice in source form
  CopyPins pins = {};         // pins of images that together cover the slice
  // Set by Promote, one per image: the read of its bytes, or null if they are addressable.
  absl::InlinedVector<std::shared_ptr<const Promotion>, 4> reads = {};
  absl::Time promote_began = absl::InfinitePast();
  bool was_elsewhere = false;           // the get waited for a copy of another member
  bool is_retry = false;                // second and last attempt, after a copy could not be read
  TierId damaged_tier = TierId::kHost;  // the tier of damaged bytes
  // Set by Transcode:
  absl::Time transcode_began = absl::InfinitePast();    // on the monotonic clock
  Views views = {};                                     // one per image
  std::shared_ptr<const CopyPin> shared_pin = nullptr;  // the only pin; shared with the device
  Answer answer = {};
};

// Gets that wait for a tier. Each get is returned to exactly one caller, which answers it. This
// happens when its last read completes or after its deadline, whichever is first. Thread-safety:
// Thread-safe. It calls no other component.
class WaitingGets {
 public:
  // Returns an id for a get that is about to wait. Returns 0 if limits::kWaitingGetsMax gets wait
  // already.
  GetId OpenGet();
  // Frees the id of a get that does not wait.
  void CloseGet(GetId id);
  // Makes the get wait for `reads` reads, until `deadline` at the latest. Some reads may have
  // completed already. If all have, returns the get at once; otherwise returns null.
  GetOwner AwaitReads(GetId id, GetOwner op, size_t reads, absl::Time deadline);
  // Counts a completed read. Returns the get if this was its last read. Otherwise returns null,
  // also if the get was returned before.
  GetOwner CountRead(GetId id);
  // Returns the gets whose deadline has passed.
  std::vector<GetOwner> TakeLateGets(absl::Time now);
  // Returns InfiniteFuture if no get waits.
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
// Thread-safety: Thread-safe. Must outlive its GetOps, which the path pool's jobs own.
class Gets {
 public:
  // REQUIRES: the pool is stopped before this object is destroyed, because late gets are answered
  // on the pool's threads.
  Gets(Spaces& spaces, BlockIndex& index, Tiers& tiers, PathPool& pool, const Clock& clock);

  // A function that is called for each read. Set it once, before the first get. May be null.
  using NoteRead = std::function<void(const BlockName&, TierId)>;
  void SetNoteRead(NoteRead note_read) { note_read_ = std::move(note_read); }
  // Fetches a block that another member has: see RemoteBlocks::Fetch(). Set it once, before the
  // first get. Null: there are no members.
  using FetchElsewhere = std::function<bool(const Request&, const proto::Get&, const codecs::Slice&,
                                            std::function<void()> done)>;
  void SetFetch(FetchElsewhere fetch) { fetch_ = std::move(fetch); }
  // Set it once, before the first get. Null: no device decodes.
  void SetDevice(DeviceCodec* device) { device_ = device; }

  // Starts a get. `replies` answers it, and must outlive it. Owned by the lane's thread.
  // REQUIRES: frame.body is a Get, and the request has been checked.
  void StartGet(Replies& replies, Request request, const proto::Frame& frame);

  // MakeOp() and RunGet() are the parts of StartGet(), for tests without a lane.
  GetOwner MakeOp(Request request, const proto::Get& get, GetDone done);
  // Runs a get on a thread of the path pool. The get is answered with a payload or an error:
  //
  // - NotFound: a miss, no such space, or the space belongs to another tenant.
  // - InvalidArgument: the group, the slice or target_bytes is invalid. The message says how many
  //   bytes are needed.
  // - ResourceExhausted: staging is full.
  // - DeadlineExceeded: the get waited too long for a thread.
  void RunGet(GetOwner op);

  Prefetches& prefetches() { return prefetches_; }
  const Promotions& promotions() const { return promotions_; }
  const WaitingGets& waiting() const { return waiting_; }
  // Stops the running reads. Call it before you stop the pool, which runs their continuations.
  void Stop() { promotions_.Stop(); }
  void Report(MetricSink& sink) const;

 private:
  // The steps that are timed, with the names of their functions.
  enum class Step : uint8_t { kLookup, kPromote, kTranscode, kSend };
  static constexpr size_t kStepCount = 4;
  enum class Outcome : uint8_t { kHit, kMiss, kCorrupt, kRefused };
  static constexpr size_t kOutcomeCount = 4;

  // Pins the image if the get can be answered on the lane. Otherwise leaves the get unchanged.
  bool LookupAtOnce(GetOp& op);
  // Checks the deadline, the space and the slice.
  absl::Status Check(GetOp& op) const;
  // Pins images that cover the slice. Errors: NotFound if no images cover it.
  absl::Status Lookup(GetOp& op);
  // After a miss: if another member has the block, waits until it is fetched. Then the get looks it
  // up again. Returns false, and leaves the get unchanged, if none has it.
  bool AwaitFetch(GetOwner& op);
  void PromoteAndTranscode(GetOwner op);
  void RunNext(GetOwner op, absl::Status status);

  void Promote(GetOwner op, GetNext next);
  // Starts the reads, and adds the get to WaitingGets. The get continues in Resume() on the path
  // pool, or is answered with a miss at its deadline.
  void BeginReads(GetOwner op);
  // Continues the get in Resume() once its reads have completed, or answers it at its deadline.
  void AwaitReads(GetId id, GetOwner op, size_t reads);
  // Called when a read of the get has completed.
  void EndRead(GetId id);
  // Continues the get after all its reads have completed.
  void Resume(GetOwner op);
  // Drops copies that could not be read, but only in tiers that never hold the only copy of an
  // image. Returns true if it dropped any. The get then looks for other copies.
  bool DropSpares(const GetOp& op);
  void Retry(GetOwner op);
  // Answers waiting gets whose deadline has passed. Returns the time until the next deadline.
  absl::Duration AnswerLate();

  void Reply(GetOwner op, absl::Status status);
  absl::Status CountOutcome(const GetOp& op, absl::Status status);
  GetDone AnswerTo(Replies& replies);
  void SendAnswer(Replies& replies, Request request, Answer answer);

  // --- transcode.cc
  // Makes the payload, here or on a device, and replies.
  void Transcode(GetOwner op);
  void EndTranscode(GetOwner op, absl::StatusOr<Answer> answer);
  // Parses every image, and verifies the tiles that the answer needs. Bytes that were read for this
  // get are already verified.
  absl::Status Verify(GetOp& op);
  // Verifies the tiles of parsed images that the answer needs.
  absl::Status VerifyViews(const GetOp& op);
  bool IsForDevice(const GetOp& op) const;
  void DecodeOnDevice(GetOwner op);
  // Continues with the slice that the device decoded. If the device failed, decodes here.
  void TakeDecoded(GetOwner op, absl::StatusOr<Extent> source);
  absl::StatusOr<Answer> MakePayload(GetOp& op);
  absl::StatusOr<Answer> MakeSource(GetOp& op);
  absl::StatusOr<Answer> MakeImage(GetOp& op);
  Answer AnswerWith(const GetOp& op, Extent source);
  absl::StatusOr<Extent> DecodeToStaging(GetOp& op);
  absl::Status DecodeInto(GetOp& op, std::span<std::byte> target);
  absl::Status DecodeImage(GetOp& op, size_t image, const codecs::Slice& part,
                           std::span<std::byte>& target);
  // Returns whether the tiles of the images can stay where they are, for a client that reads them
  // in several places.
  static bool CanPlace(const GetOp& op);
  // Makes an answer with CanPlace() tiles. Returns false, and makes none, if they lie in too many
  // places, or need more room than the client has.
  bool PlaceTiles(GetOp& op, Answer* answer);
  absl::StatusOr<Extent> Gather(GetOp& op);
  absl::StatusOr<Extent> Recode(GetOp& op);

  // Drops an image because its bytes in the pin's tier are damaged or belong to another image. Only
  // the first call for an image counts and logs this. Returns DataLoss.
  absl::Status DropDamaged(const CopyPin& pin, std::string_view what);
  // `tier` is the tier that had the bytes of a hit, or the damaged bytes of a miss.
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
  FetchElsewhere fetch_;
  DeviceCodec* device_ = nullptr;
  OpPool<GetOp> ops_{limits::kOpsAtStart};
  WaitingGets waiting_;
  Promotions promotions_;
  Prefetches prefetches_;
  Counter sent_bytes_;
  // Hits by how the payload was made: sent unchanged, placed, gathered, decoded, or decoded and
  // encoded again.
  Counter direct_, placed_, gathered_, decoded_, recoded_;
  std::array<std::array<Counter, kTierCount>, kOutcomeCount> outcomes_;
  std::array<Counter, kTierCount> corrupt_tiles_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
