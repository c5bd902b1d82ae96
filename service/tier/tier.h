// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam between the store and a medium that holds copies of images.
//
// Bytes of a tier that is not addressable are read and written through it. A transfer has one
// completion, which runs exactly once, on any thread, possibly before the call that submitted it
// returns; it means that the memory is free, and its status says how it went (ADR 0006). A medium
// may take longer than any deadline: whoever has to answer earlier does so without it, and leaves
// the memory to the completion.
//
// Thread-safety: Thread-safe.
// Locks:         no caller holds one, but for what TierExtent says; completions run with none held.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/types/shape.h"
#include "service/tier/device_report.h"
#include "service/tier/evictor.h"
#include "service/tier/image_facts.h"
#include "service/tier/recovery.h"
#include "service/tier/space_record.h"
#include "service/tier/tier_extent.h"

namespace cairn {

struct TierTraits {
  TierId id = TierId::kHost;
  // TierExtent::bytes() are the bytes: nothing has to be read.
  bool is_addressable = false;
  // The index keeps order in it and evicts leaf-first. False: the tier chooses what goes,
  // and asks with EvictCopy().
  bool is_leaf_first = false;
  // A copy in it may be the only one of its image.
  bool may_hold_last = false;
  // What it holds outlives the process: Recover() finds it again.
  bool is_lasting = false;
  // Parts that fail alone: that of an offset is its bits from this one on. 64: there is but one.
  int part_shift = 64;

  // A set of one, for CopyTier::Sync().
  uint64_t PartOf(uint64_t offset) const {
    return part_shift == 64 ? 1 : uint64_t{1} << (offset >> part_shift);
  }
};

// Of a tier.
inline constexpr uint64_t kAllParts = ~uint64_t{0};

// Where a copy had best lie, in a tier of several devices: all of a chain on one, so that a device
// that is lost costs some prefixes and cuts none.
struct Placement {
  // The copy of the block before, in the same tier. Null: there is none.
  const TierExtent* beside = nullptr;
  // Chooses where `beside` does not: of the first block of the chain that is known.
  uint64_t hash = 0;
};

// Some of the bytes of one copy. `place` and `target` stay until the completion runs: a ResidentPin
// keeps the one, who asks owns the other.
struct TierRead {
  const TierExtent* place = nullptr;
  uint64_t offset = 0;  // in the image
  std::span<std::byte> target;
  absl::Time deadline = absl::InfiniteFuture();
  // Nobody waits for it: it gives way to all others, and does not count as a use of the copy.
  bool is_background = false;
};

// A whole image into its place. Everything it names stays until the completion runs.
struct TierWrite {
  const TierExtent* place = nullptr;
  ImageFacts image;
  CopyFacts copy;  // tier: this one
  std::span<const std::byte> source;
  absl::Time deadline = absl::InfiniteFuture();

  // What a lasting tier needs besides, to find the image again.
  proto::BlockKey parent{};
  codecs::Digest side_object{};        // what the copy is coded with; all zero: nothing
  const SpaceRecord* space = nullptr;  // REQUIRES of a lasting tier: not null
  // Those that side_object and space name.
  std::span<const NamedSideObject> side_objects = {};
};

// Names a transfer to Cancel(); 0: none.
using TransferId = uint64_t;

// OK                  the bytes are there, every one of them; what they say is not checked
// DeadlineExceeded    not begun by the deadline, or begun and late
// Cancelled           Cancel() came first
// Unavailable         the device is out
// DataLoss            the device says that it cannot read them
using TierDone = absl::AnyInvocable<void(absl::Status status) &&>;

class CopyTier {
 public:
  virtual ~CopyTier() = default;

  virtual const TierTraits& traits() const = 0;
  TierId id() const { return traits().id; }

  // Room for a copy, evicting if need be. ResourceExhausted: what is left is held, there is none
  // yet, or the image is larger than the tier takes. Unavailable: the device is out.
  virtual absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) = 0;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes) { return Reserve(bytes, Placement()); }
  virtual uint64_t capacity_bytes() const = 0;
  // The largest image that it ever takes.
  virtual uint64_t image_bytes_max() const { return codecs::kImageBytesMax; }
  virtual uint64_t used_bytes() const = 0;  // as allocated, places that are still read included

  // Submits. Neither waits for the medium. Nothing is submitted past the tier's own bound: then
  // the completion says ResourceExhausted.
  virtual TransferId Read(const TierRead& read, TierDone done) = 0;
  virtual TransferId Write(const TierWrite& write, TierDone done) = 0;
  // The result is not wanted any more: what was not begun ends at once. The completion runs all the
  // same. Nothing if the transfer is over.
  virtual void Cancel(TransferId id) = 0;

  // REQUIRES: once, before the first Reserve(); the evictor outlives their use. Null at the end.
  virtual void SetEvictor(Evictor* evictor) = 0;

  // --- Of a lasting tier. Others have nothing to do.

  // Hands out what the tier held when the process before ended. A device that is not there hands
  // out what it holds when it comes. REQUIRES: once, before the first Reserve(); `sink` outlives
  // Stop(). Errors: the tier is out, and stays so.
  virtual absl::Status Recover(RecoverySink&) { return absl::OkStatus(); }
  // These blocks of the space, or all where there are no keys, are about to leave the index because
  // somebody deleted them: no device that is away now may bring them back.
  virtual void Deleted(const proto::Fingerprint&, std::span<const proto::BlockKey>) {}
  // The policy of a space is another now: a record of it is written anew.
  virtual void PolicyChanged(const SpaceRecord&) {}
  // Returns once what was freed, deleted and changed before the call is so for good: no restart
  // brings back what was. Waits for writes into places that were reserved before the call: a caller
  // that looks whether its image is still there, between Reserve() and Write(), writes nothing that
  // was deleted for good. False: not by the deadline, or no device is there to record it.
  virtual bool AwaitFreed(absl::Time) { return true; }
  // The completion says OK once all that was written to these parts before, by its completion,
  // would be found after a loss of power, but for copies that were lost meanwhile: the evictor has
  // heard of them by then. Those that are asked at about the same time share the work. Unavailable:
  // it is not known to be, or the tier is stopping.
  virtual void Sync(uint64_t parts, TierDone done);
  // What is freed from now on is kept for the next process. Transfers under way complete, and no
  // new ones begin. Idempotent.
  virtual void Stop() {}

  // --- For the operator.

  virtual void Report(MetricSink& sink) const = 0;
  // In the order of the configuration; none where the tier is memory.
  virtual std::vector<DeviceReport> Devices() const { return {}; }
  // A device that is retired takes no new copies, until it is taken back or the process ends; what
  // it holds is read. One that failed writes is tried at once when it is taken back, by a thread of
  // the tier. NotFound: the tier has none of that path. FailedPrecondition: it is out.
  virtual absl::Status SetRetired(std::string_view path, bool is_retired);

 private:
  friend class TierExtent;
  // The image there is gone for good, but somebody still reads it: no restart is to find it. Memory
  // work only, as Free().
  virtual void Unlist(uint64_t) {}
  // Nothing reads the place any more, and no index knows it.
  virtual void Free(uint64_t offset, uint64_t rounded_bytes) = 0;
};

}  // namespace cairn
