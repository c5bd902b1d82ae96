// SPDX-License-Identifier: Apache-2.0
#pragma once
// One folder of the SSD tier: segment files of one size that are written from front to back and
// used again, and a ledger that says which image lies where. docs/internals/formats/ssd.md draws
// it.
//
// What is written comes in this order, so that after a crash nothing wrong is found:
//
// 1. A segment's number is greater than that of every segment before. Its old records are gone for
//    good, and its new header is durable, before its first extent is written.
// 2. An extent's record is written when all of its bytes are. Only then is the write complete.
//    Sync() makes the bytes of all that is complete durable, then the records.
// 3. A segment is sealed after its bytes are durable. What is not sealed is checked at the start.
// 4. What reclaim carries along is durable in its new place before the old segment is dropped.
//
// Three threads: those of the engine move bytes, `commit` writes records, `care` seals, prepares
// and reclaims segments.
//
// Thread-safety: Thread-safe, but for Open(), Recover() and Stop(): one thread.
// Locks:         index < device. None is held while the evictor, a completion or the disk is waited
//                for.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/tier/device_report.h"
#include "service/tier/ssd/deletions.h"
#include "service/tier/ssd/format.h"
#include "service/tier/ssd/io_engine.h"
#include "service/tier/ssd/ledger.h"
#include "service/tier/ssd/page_memory.h"
#include "service/tier/ssd/segment_map.h"
#include "service/tier/ssd/side_files.h"
#include "service/tier/tier.h"

namespace cairn {

// How the bytes of a device are shared out.
struct SsdBudget {
  uint64_t segment_bytes = 0;
  uint32_t slot_count = 0;
  uint64_t extents_max = 0;
  uint64_t write_buffer_bytes = 0;  // of the ledger
  uint64_t ledger_bytes_max = 0;
  uint64_t side_bytes_max = 0;
};
// InvalidArgument: fewer than limits::kSsdBytesMin. `segment_bytes`, `extents_max`: 0 for what
// suits the budget.
absl::StatusOr<SsdBudget> ShareOut(uint64_t budget_bytes, uint64_t segment_bytes,
                                   uint64_t extents_max);

class SsdDevice {
 public:
  // What the offsets of its extents have in common, above those within the device.
  static constexpr int kNumberShift = 48;

  struct Options {
    std::string path;
    uint64_t budget_bytes = 0;
    uint64_t segment_bytes = 0, extents_max = 0;  // 0: what suits the budget
    uint64_t number = 0;                          // in the tier
    Deletions* deletions = nullptr;               // of the tier; outlives it
    std::string fstab = "/etc/fstab";             // what is to be mounted
    // Space that the file system is to keep for others.
    uint64_t keep_free_bytes = 0;
    absl::Duration lock_wait = absl::Seconds(30);    // for the process before to end
    absl::Duration probe_after = absl::Seconds(30);  // at most, between tries after a fault
    // Hears what Open() is at, from its thread.
    std::function<void(std::string_view what)> on_step = [](std::string_view) {};
  };

  using State = DeviceState;

  // Takes the folder for this process, and makes what is missing; what cannot be read is made anew,
  // empty. `tier` is whose extents it hands out.
  // - InvalidArgument: budget, it is no folder, or the file system takes no O_DIRECT.
  // - FailedPrecondition: another process has the folder, or a newer version wrote it.
  // - Others: the disk fails, or is not there; nothing was changed.
  static absl::StatusOr<std::unique_ptr<SsdDevice>> Open(Options options,
                                                         std::unique_ptr<IoEngine> engine,
                                                         CopyTier& tier);
  ~SsdDevice() { Stop(); }

  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }
  // As CopyTier::Recover(). Starts the threads. The device is out where it fails.
  absl::Status Recover(RecoverySink& sink);
  void Stop();

  // What it was told of by the process before. nullopt: nothing, it is new.
  const std::optional<DeletionHistory>& history() const { return history_; }
  // One more of the tier's.
  void Tell(const std::vector<Deletion>& deletions);
  void PolicyChanged(const SpaceRecord& space);
  // It can: neither is it out, nor has its ledger failed.
  bool RecordsDeletions() const;

  // As CopyTier, for places of this device.
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes);
  IoId Read(const TierRead& read, TierDone done);
  IoId Write(const TierWrite& write, TierDone done);
  void Cancel(IoId id) { engine_->Cancel(id); }
  void Free(uint64_t offset);
  void Unlist(uint64_t offset);
  bool AwaitFreed(absl::Time deadline);
  void Sync(TierDone done);

  uint64_t capacity_bytes() const { return budget_.slot_count * budget_.segment_bytes; }
  uint64_t used_bytes() const;
  uint64_t extents_max() const { return budget_.extents_max; }
  // So that little of a segment is left over at its end.
  uint64_t image_bytes_max() const { return budget_.segment_bytes / 4; }
  // For good.
  bool is_out() const;
  // Nobody has a place in it, and nothing is under way.
  bool is_idle() const;
  // As CopyTier, of its devices.
  DeviceReport Describe() const;
  absl::Status SetRetired(bool is_retired);
  void Report(MetricSink& sink) const;
  static void ReportState(MetricSink& sink, uint64_t number, State state);

 private:
  // A write whose bytes are on the device, on its way into the ledger.
  struct Written {
    uint64_t id = 0;
    uint64_t offset = 0;
    ExtentRecord record;
    // Null: the number of the space is in the record. Else, with what follows, of the TierWrite.
    const SpaceRecord* space = nullptr;
    uint64_t space_id = 0;
    std::span<const NamedSideObject> side_objects = {};
    TierDone done = nullptr;
  };
  // What the commit thread records at once.
  struct Round {
    std::vector<Written> written;
    std::vector<ExtentPlace> freed;
    std::vector<Deletion> deleted;
    std::vector<SpaceRecord> changed;
    bool is_empty() const {
      return written.empty() && freed.empty() && deleted.empty() && changed.empty();
    }
  };
  struct SpaceNumber {
    uint32_t number = 0;
    uint64_t version = 0;  // of the record that the ledger has; 0: none, or of a process before
  };
  // Segments that failed a write, until the device is only read.
  static constexpr size_t kSetAsideMax = 3;
  enum class Carried : uint8_t { kCarried, kDropped, kLater, kNowhere };

  SsdDevice(Options options, std::unique_ptr<IoEngine> engine, const SsdBudget& budget,
            CopyTier& tier);

  // --- Opening (device_open.cc)
  absl::Status OpenFolder();
  absl::Status OpenLedger();
  absl::Status ReadDeletions();
  // DataLoss: the ledger is another tier's.
  absl::Status CheckOwner() const;
  absl::Status StartEmpty(std::string_view why);

  // --- Recovery (device_recover.cc)
  struct Recovered;
  // What it missed while it was away.
  void FindDeleted(Recovered& recovered);
  absl::Status FindAll(Recovered& recovered, RecoverySink& sink);
  absl::Status FindSegments(Recovered& recovered);
  absl::Status FindSpaces(Recovered& recovered, RecoverySink& sink);
  absl::Status FindExtents(Recovered& recovered, RecoverySink& sink);
  absl::Status SettleSegments(const Recovered& recovered);
  // The record may be of a segment whose header cannot be read now: it is kept for the next start.
  bool IsUnread(Recovered& recovered, ExtentPlace place, const ExtentRecord& record);
  // Of the records that are kept so, those of these blocks go.
  void FreeUnread(const std::vector<Deletion>& deletions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // nullopt: the record names nothing that is there.
  std::optional<FoundImage> Find(Recovered& recovered, ExtentPlace place,
                                 const ExtentRecord& record);

  // --- Transfers (device_transfers.cc)
  void Landed(Written written, absl::Status status);
  // Completes it.
  void End(Written& written, absl::Status status);
  // In the calling thread.
  absl::Status Transfer(IoKind kind, int fd, uint64_t offset, std::span<std::byte> pages);
  // Its bytes are those of the record's image, whole.
  static bool IsImageOf(const ExtentRecord& record, std::span<const std::byte> bytes);
  void CountError(uint32_t slot, IoKind kind, const absl::Status& status);

  // --- Records (device_commit.cc)
  void RunCommits();
  void Commit(Round round);
  // Writes them to their file, durable, and adds to the batch that they are done.
  absl::Status Record(const std::vector<Deletion>& deleted, Ledger::Batch& batch);
  absl::Status RecordAllDeletions(Ledger::Batch& batch);
  static void PutEpoch(uint64_t epoch, Ledger::Batch& batch);
  // Adds the record of a space, where the ledger has none so new.
  void PutSpace(SpaceNumber& space, const SpaceRecord& record, Ledger::Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the record the number of its space, and adds what the ledger does not know yet.
  absl::Status Name(Written& written, Ledger::Batch& batch);
  // Waits until the write is in the ledger.
  absl::Status CommitNow(Written written);
  void QueueSync(TierDone done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // So many have asked, or the first of them so long ago.
  bool IsSyncDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunSyncs(std::vector<TierDone> syncs, uint64_t round);
  // Somebody waits until records are durable that are not yet.
  bool AreRecordsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SyncRecords(uint64_t round);
  // Makes the bytes of segments durable that are not sealed. Loses those that the device did not
  // keep: false. For whichever thread writes the ledger: the kernel tells of an error once, and no
  // second thread may take the flush of the same file for a good one.
  bool SyncUnsealed();
  // All that is written is durable, and nothing was lost. For `care`.
  bool SyncNow();

  // --- Care of segments (device_care.cc, device_reclaim.cc)
  void RunCare();
  bool SealOne();
  bool PrepareOne();
  absl::Status Prepare(uint32_t slot);
  absl::Status Grow(uint32_t slot);
  bool ReclaimOne();
  void Reclaim(uint32_t slot);
  // Carries one image along, as a write that AwaitFreed() waits for.
  Carried Carry(uint32_t slot, uint32_t page, const ExtentRecord& record, const ImageFacts& facts);
  // Reads it from `from`, and writes it elsewhere.
  Carried CopyAlong(uint64_t from, const ExtentRecord& record, const ImageFacts& facts);
  // Hands the index the new place, whose record is in the ledger.
  Carried Move(uint64_t from, TierExtent& to, const ImageFacts& facts);
  bool FinishReclaim(uint32_t slot);
  // All of its extents are lost, and what is written to it fails. It is not flushed any more: the
  // kernel forgets what it could not write, and would call the next flush a good one.
  void LoseSegment(uint32_t slot);
  bool IsLost(uint32_t slot) const;
  std::vector<std::pair<uint32_t, ExtentRecord>> RecordsOf(uint64_t seq);
  ImageFacts FactsOf(const ExtentRecord& record) const;
  void CheckLedgerSize();
  bool TakesImages() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (state_ == State::kOk || state_ == State::kCapped) && !is_retired_;
  }
  // With what the operator asked for.
  State ShownState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCareDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsReclaimDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- After faults (device_mend.cc)
  void TurnReadOnly(std::string_view why, const absl::Status& status);
  // The same, until the ledger is opened anew.
  void LedgerFailed(std::string_view why, const absl::Status& status);
  void GoOut(std::string_view why, const absl::Status& status);
  // Of a device that is only read: tries whether it is whole again.
  bool Probe();
  // Makes segments of those set aside again, if one takes a header.
  bool TryOne();
  bool MendLedger();
  // True: the folder of its path is not the one that it has open.
  bool IsFolderGone() const;
  absl::Status ReopenLedger();
  // What is not in the map of segments goes from the ledger; what the ledger lost, from the index.
  absl::Status CompareLedger(Ledger::Batch& batch);

  // Its record goes with the next batch, if the ledger has one, and so does that of the place from
  // which reclaim moved it.
  void UnlistLocked(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueueFreed(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A write begins, for AwaitFreed().
  uint64_t BeginWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWrite(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string SegmentPath(uint32_t slot) const;
  uint64_t TierOffset(uint64_t offset) const { return options_.number << kNumberShift | offset; }
  static uint64_t DeviceOffset(uint64_t offset) {
    return offset & ((uint64_t{1} << kNumberShift) - 1);
  }

  Options options_;
  SsdBudget budget_;
  CopyTier& tier_;
  Evictor* evictor_ = nullptr;
  Fd lock_file_;
  SsdTierId tier_id_{};
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<SideFiles> side_files_;
  DeletionFile deletion_file_;              // of whichever thread writes the ledger
  std::optional<uint64_t> done_epoch_;      // as the ledger said when it was opened
  std::optional<DeletionHistory> history_;  // as the file said
  std::vector<Fd> files_;  // by slot; written by care only, before the segment is ready
  std::thread commit_thread_, care_thread_;

  mutable Mutex mutex_;
  CondVar commit_due_, committed_, care_due_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kRecovering;
  std::string why_ ABSL_GUARDED_BY(mutex_);  // it is not kOk
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_trying_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ledger_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_mending_ ABSL_GUARDED_BY(mutex_) = false;     // no round of the commit thread begins
  bool is_committing_ ABSL_GUARDED_BY(mutex_) = false;  // one is under way
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_landed_ ABSL_GUARDED_BY(mutex_) = false;  // no write comes any more
  std::unique_ptr<SegmentMap> segments_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_seq_ ABSL_GUARDED_BY(mutex_) = 1;
  Round queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<TierDone> syncs_ ABSL_GUARDED_BY(mutex_);
  absl::Time sync_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // at the latest
  // Writes by the order in which they began: from the reservation of a place until the completion
  // has returned, and whatever reclaim carries along. Each may record an image that is deleted
  // meanwhile, and then frees what it wrote.
  std::set<uint64_t> writes_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_write_ ABSL_GUARDED_BY(mutex_) = 1;
  // The writes of places that are reserved and not written yet, by place.
  absl::flat_hash_map<uint64_t, uint64_t> reserved_ ABSL_GUARDED_BY(mutex_);
  // The place whose copy the index is asked to move just now.
  std::optional<uint64_t> moving_from_ ABSL_GUARDED_BY(mutex_);
  // By new place: the old one of what reclaim has moved. The ledger has both records until the
  // segment is reclaimed, for the new bytes are not durable before.
  absl::flat_hash_map<uint64_t, ExtentPlace> moved_from_ ABSL_GUARDED_BY(mutex_);
  // Records whose segments could not be read at the start, each with its space and block.
  std::map<ExtentPlace, std::pair<proto::Fingerprint, proto::BlockKey>> unread_
      ABSL_GUARDED_BY(mutex_);
  // Rounds of the commit thread: the one that takes what is queued now, the last that is over,
  uint64_t next_round_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t rounds_over_ ABSL_GUARDED_BY(mutex_) = 0;
  // the last that recorded anything, the last after which all was durable,
  uint64_t recorded_round_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_round_ ABSL_GUARDED_BY(mutex_) = 0;
  // the last after which the ledger was, and the one whose records somebody waits for.
  uint64_t records_synced_round_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t records_wanted_round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<proto::Fingerprint, SpaceNumber> spaces_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, uint64_t> space_ids_ ABSL_GUARDED_BY(mutex_);  // by number
  uint32_t last_space_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time probe_again_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Duration probe_rest_ ABSL_GUARDED_BY(mutex_);
  absl::Time grow_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time reclaim_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  Counter written_bytes_, carried_bytes_, read_bytes_, reclaims_, resets_;
  Counter too_large_, no_segment_, corrupt_, dropped_at_open_, faults_;
};

}  // namespace cairn
