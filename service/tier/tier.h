// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface between the store and a medium that holds copies of images.
//
// A tier whose bytes the CPU cannot address reads and writes them itself. A transfer has one
// completion, which runs exactly once, on any thread, possibly before the submitting call returns.
// Then the tier uses the memory no more; the status is the outcome (ADR 0006). It may take longer
// than any deadline: a caller that must answer earlier does so without the bytes, and leaves the
// memory to the completion.
//
// Thread-safety: Thread-safe.
// Locks:         callers hold none, except as TierExtent says; completions run without locks held.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/types/shape.h"
#include "service/tier/evictor.h"
#include "service/tier/hint_record.h"
#include "service/tier/image_facts.h"
#include "service/tier/recovery.h"
#include "service/tier/space_record.h"
#include "service/tier/tier_extent.h"

namespace cairn {

struct TierTraits {
  TierId id = TierId::kHost;
  // TierExtent::bytes() are the bytes: nothing needs to be read.
  bool is_addressable = false;
  // The index orders its copies and evicts leaf-first. False: the tier chooses copies, and
  // asks the index with Evictor::EvictCopy().
  bool is_leaf_first = false;
  // A copy in it may be the only one of its image.
  bool may_hold_last = false;
  // Its contents survive the process: Recover() finds them again.
  bool is_lasting = false;
  // The tier has parts that fail independently. The part of an offset is offset >> part_shift. 64:
  // a single part.
  int part_shift = 64;

  // Returns a mask with only the bit of the offset's part, for CopyTier::Sync().
  uint64_t PartOf(uint64_t offset) const {
    return part_shift == 64 ? 1 : uint64_t{1} << (offset >> part_shift);
  }
};

// All parts of a tier.
inline constexpr uint64_t kAllParts = ~uint64_t{0};

// The preferred device for a copy, in a tier of several devices. A chain stays on one device, so
// that losing a device loses some prefixes but shortens no other.
struct Placement {
  // The copy of the previous block in the same tier. Null: there is none.
  const TierExtent* parent_copy = nullptr;
  // Chooses if `parent_copy` does not: hash of the first known block of the chain.
  uint64_t hash = 0;
};

// A read of some bytes of a copy. `place` and `target` must stay valid until the completion runs:
// hold a CopyPin on `place`, and own `target`.
struct TierRead {
  const TierExtent* place = nullptr;
  uint64_t offset = 0;  // in the image
  std::span<std::byte> target;
  absl::Time deadline = absl::InfiniteFuture();
  // Nobody waits for it: it runs after all others and does not count as a use of the copy.
  bool is_background = false;
};

// Writes a whole image to its place. Everything that it names must stay valid until the completion
// runs.
struct TierWrite {
  const TierExtent* place = nullptr;
  ImageFacts image;
  CopyFacts copy;  // copy.tier is this tier
  std::span<const std::byte> source;
  absl::Time deadline = absl::InfiniteFuture();

  // For a persistent tier, to recover the image:
  proto::BlockKey parent{};
  EngineNamesRef names = {};           // of the block; null: none
  codecs::Digest side_object{};        // of the copy; all zero: none
  const SpaceRecord* space = nullptr;  // REQUIRES, for a persistent tier: not null
  // The side objects that side_object and space name.
  std::span<const NamedSideObject> side_objects = {};
};

// Names a transfer for Cancel(); 0: none.
using TransferId = uint64_t;

// The outcome of a transfer:
//   OK                  all bytes are there; they are not verified
//   DeadlineExceeded    not begun by the deadline, or completed after it
//   Cancelled           Cancel() came first
//   Unavailable         the device is out
//   DataLoss            the device cannot read the bytes
using TierDone = absl::AnyInvocable<void(absl::Status status) &&>;

// --- Devices, for operators

enum class DeviceState : uint8_t {
  kRecovering,  // its contents are being recovered
  kOk,
  kCapped,  // its file system has less room than it may use; its images are served
  // Writes failed, or the operator retired it; writes are tried again unless the index (ssd.md)
  // failed.
  kReadOnly,
  kOut,  // no reads and no writes
};
std::string_view Name(DeviceState state);
// Reports the state of a GPU as a metric.
void ReportGpuState(DeviceState now, MetricSink& sink);

struct DeviceReport {
  std::string path;
  DeviceState state = DeviceState::kOk;
  std::string reason;       // of any state except kOk
  bool is_retired = false;  // by the operator
  bool is_trying = false;   // it is read-only and being tested with a write
  uint64_t capacity_bytes = 0, used_bytes = 0;
  uint64_t image_count = 0;
  std::vector<std::pair<std::string_view, uint64_t>> segments;  // by state
  // Of images, since the process started.
  uint64_t written_bytes = 0, carried_bytes = 0, read_bytes = 0;
  uint64_t fault_count = 0;     // failed transfers, and images that it damaged
  uint64_t transfer_count = 0;  // unfinished transfers
  std::string_view engine;
};

// --- The tier

class CopyTier {
 public:
  virtual ~CopyTier() = default;

  virtual const TierTraits& traits() const = 0;
  TierId id() const { return traits().id; }

  // Reserves room for a copy, evicting if needed. Errors: ResourceExhausted (no copy can be
  // evicted, there is no room yet, or the image is larger than the tier accepts), Unavailable (the
  // device is out).
  virtual absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) = 0;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes) { return Reserve(bytes, Placement()); }
  virtual uint64_t capacity_bytes() const = 0;
  // The largest image that it accepts.
  virtual uint64_t image_bytes_max() const { return codecs::kImageBytesMax; }
  virtual uint64_t used_bytes() const = 0;  // as allocated, including places still being read

  // Submit a transfer without waiting for the medium. Above the tier's own limit the completion
  // gets ResourceExhausted.
  virtual TransferId Read(const TierRead& read, TierDone done) = 0;
  virtual TransferId Write(const TierWrite& write, TierDone done) = 0;
  // Gives up the result: a transfer that was not begun ends at once. The completion still runs.
  // Does nothing if the transfer has completed.
  virtual void Cancel(TransferId id) = 0;

  // REQUIRES: called once before the first Reserve(), and with null at the end; the evictor must
  // outlive its use.
  virtual void SetEvictor(Evictor* evictor) = 0;

  // --- For persistent tiers. Others have nothing to do.

  // Hands out the data of the previous process. A missing device hands out its data when it comes
  // back. If Recover() fails, the tier stays out. REQUIRES: called once, before the first
  // Reserve(); `sink` outlives Stop().
  virtual absl::Status Recover(RecoverySink&) { return absl::OkStatus(); }
  // These blocks of the space (without keys: all) are about to leave the index because they were
  // deleted: an absent device must not bring them back.
  virtual void Deleted(const proto::Fingerprint&, std::span<const proto::BlockKey>) {}
  // The policy of a space has changed: the tier rewrites its record.
  virtual void PolicyChanged(const SpaceRecord&) {}
  // Replaces the hints that the next process finds.
  virtual void SaveHints(std::span<const HintRecord>) {}
  // Returns true once everything freed, deleted and changed before the call survives a restart.
  // Also waits for writes to places that were reserved before the call. A caller of Write() checks
  // between Reserve() and Write() that its image still exists, so it writes no deleted image later.
  // Returns false at the deadline, or if there is no device to record it.
  virtual bool AwaitFreed(absl::Time) { return true; }
  // Completes with OK once all earlier completed writes to these parts would survive a power loss.
  // Copies that were lost meanwhile are excluded; the evictor knows them. Calls at about the
  // same time share the work. Errors: Unavailable if that is not known, or if the tier is stopping.
  virtual void Sync(uint64_t parts, TierDone done);
  // Extents that are freed later stay for the next process. Running transfers complete, and no new
  // ones begin. Idempotent.
  virtual void Stop() {}

  // --- For operators.

  virtual void Report(MetricSink& sink) const = 0;
  // In the order of the configuration; none if the tier is memory.
  virtual std::vector<DeviceReport> Devices() const { return {}; }
  // Retires a device, or takes it back. A retired device takes no new copies until it is taken back
  // or the process ends; its copies are still read. A device with failed writes is tested at once,
  // on a thread of the tier, when it is taken back. Errors: NotFound (no device with that path),
  // FailedPrecondition (it is out).
  virtual absl::Status SetRetired(std::string_view path, bool is_retired);

 private:
  friend class TierExtent;
  // The image is deleted but still being read: a restart must not find it. Does no I/O, like
  // Free(), because the index calls it under its lock.
  virtual void Unlist(uint64_t) {}
  // Frees a place that nobody reads and no index knows.
  virtual void Free(uint64_t offset, uint64_t rounded_bytes) = 0;
};

}  // namespace cairn
