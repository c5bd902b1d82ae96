// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface between the store and a medium that has copies of images.
//
// A transfer is a read or a write of a tier. It has one completion, which runs exactly once, on any
// thread, possibly before the submitting call returns. Its status is the outcome. After that, the
// tier does not use the transfer's memory (ADR 0006). The completion may come later than any
// deadline. A caller that must answer earlier answers without the bytes, and leaves the memory to
// the completion.
//
// Thread-safety: Thread-safe.
// Locks:         callers hold none, with the exceptions that TierExtent names. Completions run
//                without locks held.

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
  // Whether TierExtent::bytes() gives access to the copy's bytes, so that no Read() is needed.
  bool is_addressable = false;
  // Whether the index chooses the copies to evict, leaf-first. If false, the tier chooses copies
  // and asks the index with Evictor::EvictCopy().
  bool is_leaf_first = false;
  // Whether a copy in this tier may be the only copy of its image.
  bool may_hold_last = false;
  // Whether the contents survive the process (a persistent tier): Recover() finds them again.
  bool is_lasting = false;
  // A tier may have parts that fail independently. The part of an offset is offset >> part_shift.
  // With 64 there is one part.
  int part_shift = 64;

  // Returns a mask with only the bit of the offset's part, for CopyTier::Sync().
  uint64_t PartOf(uint64_t offset) const {
    return part_shift == 64 ? 1 : uint64_t{1} << (offset >> part_shift);
  }
};

// All parts of a tier.
inline constexpr uint64_t kAllParts = ~uint64_t{0};

// The place of a copy in a tier with several devices. A chain stays on one device. So the loss of a
// device removes the prefixes that it has, and shortens no other prefix.
struct Placement {
  // The copy of the previous block in the same tier. Null: there is none.
  const TierExtent* parent_copy = nullptr;
  // Determines the device if `parent_copy` is null. It is a hash of the first known block of the
  // chain.
  uint64_t hash = 0;
};

// A read of some bytes of a copy. `place` and `target` must stay valid until the completion runs.
// Keep a CopyPin for `place`, and own `target`.
struct TierRead {
  const TierExtent* place = nullptr;
  uint64_t offset = 0;  // offset in the image
  std::span<std::byte> target;
  absl::Time deadline = absl::InfiniteFuture();
  // Nobody waits for the read. It runs after all other transfers and does not count as a use of the
  // copy.
  bool is_background = false;
};

// Writes a whole image to its place. Everything that the struct refers to must stay valid until the
// completion runs.
struct TierWrite {
  const TierExtent* place = nullptr;
  ImageFacts image;
  CopyFacts copy;  // copy.tier is this tier
  std::span<const std::byte> source;
  absl::Time deadline = absl::InfiniteFuture();

  // A persistent tier needs these to recover the image:
  proto::BlockKey parent{};
  EngineNamesRef names = {};           // names of the block; null: none
  codecs::Digest side_object{};        // side object of the copy; all zero: none
  const SpaceRecord* space = nullptr;  // REQUIRES, for a persistent tier: not null
  // The side objects that `side_object` and `space` name.
  std::span<const NamedSideObject> side_objects = {};
};

// Identifies a transfer for Cancel(). 0: none.
using TransferId = uint64_t;

// The outcome of a transfer:
//   OK                  all bytes are moved; they are not verified
//   DeadlineExceeded    not begun before the deadline, or completed after it
//   Cancelled           Cancel() came first
//   Unavailable         the device has failed
//   DataLoss            the device cannot read the bytes
using TierDone = absl::AnyInvocable<void(absl::Status status) &&>;

// --- Devices, for operators

enum class DeviceState : uint8_t {
  kRecovering,  // its contents are being recovered
  kOk,
  kCapped,  // its file system has less room than the tier may use; its images are served
  // Writes have failed, or the operator has retired the device. Writes are tried again, unless the
  // ledger (ssd.md) has failed.
  kReadOnly,
  kOut,  // it has failed: no reads and no writes
};
std::string_view Name(DeviceState state);
// Reports the state of a GPU as a metric.
void ReportGpuState(DeviceState now, MetricSink& sink);

struct DeviceReport {
  std::string path;
  DeviceState state = DeviceState::kOk;
  std::string reason;       // set in every state except kOk
  bool is_retired = false;  // retired by the operator
  bool is_trying = false;   // read-only, and being tested with a write
  uint64_t capacity_bytes = 0, used_bytes = 0;
  uint64_t image_count = 0;
  std::vector<std::pair<std::string_view, uint64_t>> segments;  // number in each state
  // Bytes of images, since the process started.
  uint64_t written_bytes = 0, carried_bytes = 0, read_bytes = 0;
  uint64_t fault_count = 0;     // failed transfers, and images that the device has damaged
  uint64_t transfer_count = 0;  // unfinished transfers
  std::string_view engine;
};

// --- The tier

class CopyTier {
 public:
  virtual ~CopyTier() = default;

  virtual const TierTraits& traits() const = 0;
  TierId id() const { return traits().id; }

  // Reserves room for a copy, with evictions if needed. Errors: ResourceExhausted (no copy can be
  // evicted, there is no room yet, or the image is too large for the tier), Unavailable (the device
  // has failed).
  virtual absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) = 0;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes) { return Reserve(bytes, Placement()); }
  virtual uint64_t capacity_bytes() const = 0;
  // The size of the largest image that the tier accepts.
  virtual uint64_t image_bytes_max() const { return codecs::kImageBytesMax; }
  virtual uint64_t used_bytes() const = 0;  // as allocated; includes deleted copies that are in use

  // Read() and Write() submit a transfer, and do not wait for the medium. If too many transfers
  // wait, the completion gets ResourceExhausted.
  virtual TransferId Read(const TierRead& read, TierDone done) = 0;
  virtual TransferId Write(const TierWrite& write, TierDone done) = 0;
  // Tells the tier that the result is not needed. A transfer that has not begun ends at once, and
  // its completion still runs. Does nothing if the transfer has completed.
  virtual void Cancel(TransferId id) = 0;

  // REQUIRES: called once before the first Reserve(), and once with null at the end. The evictor
  // must outlive the time between these calls.
  virtual void SetEvictor(Evictor* evictor) = 0;

  // --- For persistent tiers. The other tiers keep these defaults.

  // Passes the previous process's data to `sink`. The data of a missing device follows when the
  // device returns. If Recover() fails, the tier stays out of use. REQUIRES: called once, before
  // the first Reserve(); `sink` must exist until Stop() has returned.
  virtual absl::Status Recover(RecoverySink&) { return absl::OkStatus(); }
  // Call it before deleted blocks of a space leave the index. Without keys, all blocks of the space
  // are deleted. The tier remembers the deletion, so that a device that returns does not restore
  // the blocks.
  virtual void Deleted(const proto::Fingerprint&, std::span<const proto::BlockKey>) {}
  // Call it when the policy of a space has changed. The tier rewrites its record.
  virtual void PolicyChanged(const SpaceRecord&) {}
  // Replaces the generations of spaces that the next process finds (SerializeGenerations()). It
  // finds them only if it finds none of the blocks that were deleted before the call.
  virtual void SaveGenerations(const std::string&) {}
  // The same for policies of spaces that members tell each other (SerializePolicies()).
  virtual void SavePolicies(const std::string&) {}
  // Replaces the hints that the next process finds.
  virtual void SaveHints(std::span<const HintRecord>) {}
  // Returns true once everything that was freed, deleted and changed before the call survives a
  // restart. Also waits for writes to places that were reserved before the call. Between Reserve()
  // and Write(), the caller checks that its image still exists, so it writes no deleted image
  // later. Returns false at the deadline, or if no device can record it.
  virtual bool AwaitFreed(absl::Time) { return true; }
  // Completes with OK once all earlier completed writes to these parts would survive a power loss.
  // Copies that were lost meanwhile are excepted; the evictor is told about them. Calls at about
  // the same time share the work. Errors: Unavailable (the tier cannot tell whether the writes
  // would survive, or it is stopping).
  virtual void Sync(uint64_t parts, TierDone done);
  // Running transfers complete, and no new ones begin. Extents that are freed after the call stay
  // for the next process. Idempotent.
  virtual void Stop() {}

  // --- For operators.

  virtual void Report(MetricSink& sink) const = 0;
  // In the order of the configuration. Empty if the tier is memory.
  virtual std::vector<DeviceReport> Devices() const { return {}; }
  // Retires a device, or ends its retirement. A retired device gets no new copies until its
  // retirement ends or the process ends. Its copies are still read. If writes to a device have
  // failed, ending the retirement tests it at once, on a thread of the tier. Errors: NotFound (no
  // device with that path), FailedPrecondition (the device has failed).
  virtual absl::Status SetRetired(std::string_view path, bool is_retired);

 private:
  friend class TierExtent;
  // Ensures that a restart does not find a deleted image that is still being read. Does no I/O,
  // like Free(), because the index calls it under its lock.
  virtual void Unlist(uint64_t) {}
  // Frees a place that nobody reads and that the index does not know.
  virtual void Free(uint64_t offset, uint64_t rounded_bytes) = 0;
};

}  // namespace cairn
