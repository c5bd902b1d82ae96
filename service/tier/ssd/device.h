// SPDX-License-Identifier: Apache-2.0
#pragma once
// One folder of the SSD tier: segment files of one size, written from front to back and reused, and
// a ledger that records the place of each image. docs/internals/formats/ssd.md draws the files.
//
// Writes happen in this order, so that a crash leaves nothing wrong to find:
//
// 1. A segment's number is greater than that of every earlier segment. Its old records are deleted
//    durably, and its new header is durable, before its first extent is written.
// 2. An extent's record is written after all of its bytes. Only then is the write complete. Sync()
//    makes the bytes of all complete writes durable, then the records.
// 3. A segment is sealed after its bytes are durable. An unsealed segment is verified at start.
// 4. Images that reclaim moves are durable in their new place before the old segment is dropped.
//
// Three kinds of threads: the engine's move bytes, `commit` writes records, `care` seals, prepares
// and reclaims segments.
//
// Thread-safety: Thread-safe, except Open(), Recover() and Stop(): one thread.
// Locks:         index < device. None is held while it calls the evictor or a completion, or waits
//                for the disk.

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
#include "service/tier/ssd/deletions.h"
#include "service/tier/ssd/folder.h"
#include "service/tier/ssd/io_engine.h"
#include "service/tier/ssd/ledger.h"
#include "service/tier/ssd/segments.h"
#include "service/tier/tier.h"

namespace cairn {

// How the bytes of a device are divided.
struct SsdBudget {
  uint64_t segment_bytes = 0;
  uint32_t slot_count = 0;
  uint64_t extents_max = 0;
  uint64_t write_buffer_bytes = 0;  // of the ledger
  uint64_t ledger_bytes_max = 0;
  uint64_t side_bytes_max = 0;
};
// Errors: InvalidArgument for fewer than limits::kSsdBytesMin. `segment_bytes`, `extents_max`: 0
// means a default for the budget.
absl::StatusOr<SsdBudget> ShareOut(uint64_t budget_bytes, uint64_t segment_bytes,
                                   uint64_t extents_max);

class SsdDevice {
 public:
  // Offsets of a device's extents share the bits from this one on.
  static constexpr int kNumberShift = 48;
  // The ledger's name for the hints of the last process.
  static constexpr char kHintsMeta[] = "hints";

  struct Options {
    std::string path;
    uint64_t budget_bytes = 0;
    uint64_t segment_bytes = 0, extents_max = 0;  // 0: a default for the budget
    uint64_t number = 0;                          // in the tier
    Deletions* deletions = nullptr;               // of the tier; must outlive it
    std::string fstab = "/etc/fstab";             // the file systems that should be mounted
    // Free space to leave on the file system.
    uint64_t keep_free_bytes = 0;
    absl::Duration lock_wait = absl::Seconds(30);    // for the previous process to end
    absl::Duration probe_after = absl::Seconds(30);  // longest time between two tests after a fault
    // Reports the current step of Open(), from its thread.
    std::function<void(std::string_view what)> on_step = [](std::string_view) {};
  };

  using State = DeviceState;

  // Locks the folder for this process and makes missing files; files that cannot be read are
  // replaced by empty ones. `tier` owns the extents that it hands out. Errors:
  // - InvalidArgument: the budget is invalid, it is not a folder, or the file system does not
  //   support O_DIRECT.
  // - FailedPrecondition: another process uses the folder, or a newer version wrote it.
  // - Others: the disk failed or is missing; nothing was changed.
  static absl::StatusOr<std::unique_ptr<SsdDevice>> Open(Options options,
                                                         std::unique_ptr<IoEngine> engine,
                                                         CopyTier& tier);
  ~SsdDevice() { Stop(); }

  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }
  // Like CopyTier::Recover(). Starts the threads. If it fails, the device is out.
  absl::Status Recover(RecoverySink& sink);
  void Stop();

  // The deletions that the previous process learned; nullopt: the folder is new.
  const std::optional<DeletionHistory>& history() const { return history_; }
  // Records deletions of the tier.
  void QueueDeletions(const std::vector<Deletion>& deletions);
  void PolicyChanged(const SpaceRecord& space);
  void SaveHints(std::string bytes);  // SerializeHints()
  // Returns whether it can: it is not out, and its ledger works.
  bool RecordsDeletions() const;

  // As in CopyTier, for places of this device.
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
  // Limits images so that little of a segment is left over at its end.
  uint64_t image_bytes_max() const { return budget_.segment_bytes / 4; }
  // It failed and stays so.
  bool is_out() const;
  // Returns true if nobody has a place in it and no transfer runs.
  bool is_idle() const;
  // As in CopyTier, for one device.
  DeviceReport Describe() const;
  absl::Status SetRetired(bool is_retired);
  void Report(MetricSink& sink) const;
  static void ReportState(MetricSink& sink, uint64_t number, State state);

 private:
  // A write whose bytes are on the device and whose record is not written yet.
  struct Written {
    uint64_t id = 0;
    uint64_t offset = 0;
    ExtentRecord record;
    // Null: the record has the number of the space. Else this and the fields below are those of the
    // TierWrite.
    const SpaceRecord* space = nullptr;
    uint64_t space_id = 0;
    std::span<const NamedSideObject> side_objects = {};
    TierDone done = nullptr;
  };
  // The work of one round of the commit thread.
  struct Round {
    std::vector<Written> written;
    std::vector<ExtentPlace> freed;
    std::vector<Deletion> deleted;
    std::vector<SpaceRecord> changed;
    std::optional<std::string> hints;
    bool is_empty() const {
      return written.empty() && freed.empty() && deleted.empty() && changed.empty() &&
             !hints.has_value();
    }
  };
  struct SpaceNumber {
    uint32_t number = 0;
    uint64_t version = 0;  // of the ledger's record; 0: none, or a previous process's
  };
  // Segments that may fail a write before the device becomes read-only.
  static constexpr size_t kSetAsideMax = 3;
  enum class Carried : uint8_t { kCarried, kDropped, kLater, kNowhere };

  SsdDevice(Options options, std::unique_ptr<IoEngine> engine, const SsdBudget& budget,
            CopyTier& tier);

  // --- Opening (recovery.cc)
  absl::Status OpenFolder();
  absl::Status OpenLedger();
  absl::Status ReadDeletions();
  // Errors: DataLoss if the ledger is another tier's.
  absl::Status CheckOwner() const;
  absl::Status StartEmpty(std::string_view why);

  // --- Recovery (recovery.cc)
  struct Recovered;
  // Deletions that it missed while it was absent.
  void FindDeleted(Recovered& recovered);
  absl::Status FindAll(Recovered& recovered, RecoverySink& sink);
  absl::Status FindSegments(Recovered& recovered);
  absl::Status FindSpaces(Recovered& recovered, RecoverySink& sink);
  absl::Status FindExtents(Recovered& recovered, RecoverySink& sink);
  void FindHints(RecoverySink& sink);
  absl::Status SettleSegments(const Recovered& recovered);
  // Returns whether the record's segment has a header that cannot be read now: the record is kept
  // for the next start.
  bool IsUnread(Recovered& recovered, ExtentPlace place, const ExtentRecord& record);
  // Drops such records of these blocks.
  void FreeUnread(const std::vector<Deletion>& deletions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns nullopt if the record names no existing image.
  std::optional<FoundImage> Find(Recovered& recovered, ExtentPlace place,
                                 const ExtentRecord& record);

  // --- Transfers (device.cc)
  void Landed(Written written, absl::Status status);
  // Completes the write.
  void End(Written& written, absl::Status status);
  // Moves bytes on the calling thread.
  absl::Status Transfer(IoKind kind, int fd, uint64_t offset, std::span<std::byte> pages);
  // Returns whether the bytes are the complete image of the record.
  static bool IsImageOf(const ExtentRecord& record, std::span<const std::byte> bytes);
  void CountError(uint32_t slot, IoKind kind, const absl::Status& status);

  // --- Records (device.cc)
  void RunCommits();
  void Commit(Round round);
  // Writes the deletions to their file durably, and adds to the batch that they are done.
  absl::Status Record(const std::vector<Deletion>& deleted, Ledger::Batch& batch);
  absl::Status RecordAllDeletions(Ledger::Batch& batch);
  static void PutEpoch(uint64_t epoch, Ledger::Batch& batch);
  // Adds the record of a space, unless the ledger's is as new.
  void PutSpace(SpaceNumber& space, const SpaceRecord& record, Ledger::Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the number of the record's space, and adds the space and the side objects that the ledger
  // lacks.
  absl::Status AddSpaceAndSideObjects(Written& written, Ledger::Batch& batch);
  // Waits until the write is in the ledger.
  absl::Status CommitNow(Written written);
  void QueueSync(TierDone done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether enough callers have asked, or the first one has waited long enough.
  bool IsSyncDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunSyncs(std::vector<TierDone> syncs, uint64_t round);
  // Returns whether a caller waits for records that are not durable yet.
  bool AreRecordsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SyncRecords(uint64_t round);
  // Makes the bytes of unsealed segments durable. Returns false if the device lost some, whose
  // segments it then drops. Only the thread that writes the ledger may call it: the kernel reports
  // an error once, and a second flush of the same file would succeed.
  bool SyncUnsealed();
  // For `care`: returns true once all writes are durable and nothing was lost.
  bool SyncNow();

  // --- Care of segments (segments.cc)
  void RunCare();
  bool SealOne();
  bool PrepareOne();
  absl::Status Prepare(uint32_t slot);
  absl::Status Grow(uint32_t slot);
  bool ReclaimOne();
  void Reclaim(uint32_t slot);
  // Moves one image to another segment, as a write that AwaitFreed() waits for.
  Carried Carry(uint32_t slot, uint32_t page, const ExtentRecord& record, const ImageFacts& facts);
  // Reads the image at `from` and writes it elsewhere.
  Carried CopyAlong(uint64_t from, const ExtentRecord& record, const ImageFacts& facts);
  // Tells the index the new place, once its record is in the ledger.
  Carried Move(uint64_t from, TierExtent& to, const ImageFacts& facts);
  bool FinishReclaim(uint32_t slot);
  // Drops all extents of a segment and fails its writes. It is not flushed again: the kernel
  // forgets pages that it could not write, and would report the next flush as successful.
  void LoseSegment(uint32_t slot);
  bool IsLost(uint32_t slot) const;
  std::vector<std::pair<uint32_t, ExtentRecord>> RecordsOf(uint64_t seq);
  ImageFacts FactsOf(const ExtentRecord& record) const;
  void CheckLedgerSize();
  bool TakesImages() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (state_ == State::kOk || state_ == State::kCapped) && !is_retired_;
  }
  // The state, including the operator's retirement.
  State ShownState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCareDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsReclaimDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- After faults (segments.cc)
  void TurnReadOnly(std::string_view why, const absl::Status& status);
  // The same until the ledger is reopened.
  void LedgerFailed(std::string_view why, const absl::Status& status);
  void GoOut(std::string_view why, const absl::Status& status);
  // For a read-only device: tests whether writes work again.
  bool Probe();
  // Returns segments that were set aside to use, if one takes a header.
  bool TryOne();
  bool MendLedger();
  // Returns true if the path of the folder leads to another folder than the open one.
  bool IsFolderGone() const;
  absl::Status ReopenLedger();
  // Removes records of extents that the segment map lacks, and index entries of extents that the
  // ledger lost.
  absl::Status CompareLedger(Ledger::Batch& batch);

  // Deletes the record with the next batch, if the ledger has one, and the record of the place from
  // which reclaim moved the image.
  void UnlistLocked(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueueFreed(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Registers a write for AwaitFreed().
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
  DeletionFile deletion_file_;              // used by the thread that writes the ledger
  std::optional<uint64_t> done_epoch_;      // from the ledger, when it was opened
  std::optional<DeletionHistory> history_;  // from the file
  std::vector<Fd> files_;                   // by slot; set by `care` before the segment is ready
  std::thread commit_thread_, care_thread_;

  mutable Mutex mutex_;
  CondVar commit_due_, committed_, care_due_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kRecovering;
  std::string why_ ABSL_GUARDED_BY(mutex_);  // why it is not kOk
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_trying_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ledger_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_mending_ ABSL_GUARDED_BY(mutex_) = false;     // the commit thread begins no round
  bool is_committing_ ABSL_GUARDED_BY(mutex_) = false;  // a round of the commit thread runs
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_landed_ ABSL_GUARDED_BY(mutex_) = false;  // no more writes come
  std::unique_ptr<SegmentMap> segments_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_seq_ ABSL_GUARDED_BY(mutex_) = 1;
  Round queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<TierDone> syncs_ ABSL_GUARDED_BY(mutex_);
  absl::Time sync_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // at the latest
  // Writes in the order in which they began: from the reservation of a place until the completion
  // has returned, and moves of reclaim. Each may record an image that is deleted meanwhile; it then
  // frees the image.
  std::set<uint64_t> writes_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_write_ ABSL_GUARDED_BY(mutex_) = 1;
  // Writes whose place is reserved but not written yet, by place.
  absl::flat_hash_map<uint64_t, uint64_t> reserved_ ABSL_GUARDED_BY(mutex_);
  // The place whose copy the index is being asked to move.
  std::optional<uint64_t> moving_from_ ABSL_GUARDED_BY(mutex_);
  // By new place: the old place of an image that reclaim moved. The ledger has both records until
  // the segment is reclaimed, because the new bytes are not durable before.
  absl::flat_hash_map<uint64_t, ExtentPlace> moved_from_ ABSL_GUARDED_BY(mutex_);
  // Records whose segments could not be read at start, each with its space and block.
  std::map<ExtentPlace, std::pair<proto::Fingerprint, proto::BlockKey>> unread_
      ABSL_GUARDED_BY(mutex_);
  // Rounds of the commit thread: the next one, the last completed one,
  uint64_t next_round_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t rounds_over_ ABSL_GUARDED_BY(mutex_) = 0;
  // the last that recorded anything, the last after which everything was durable,
  uint64_t recorded_round_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_round_ ABSL_GUARDED_BY(mutex_) = 0;
  // the last after which the ledger was durable, and the one whose records a caller waits for.
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
