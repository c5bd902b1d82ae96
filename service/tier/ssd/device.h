// SPDX-License-Identifier: Apache-2.0
#pragma once
// One folder of the SSD tier. It has segment files of equal size and a ledger. A segment is written
// from front to back, and later reused. The ledger records the place of each image.
// docs/internals/formats/ssd.md has the files' layouts.
//
// Writes happen in this order, so that a restart after a crash finds only valid data:
//
// 1. A segment gets a number that is greater than those of all earlier segments. Before its first
//    extent is written, the old records are deleted durably, and the new header is durable.
// 2. An extent's record is written after all of the extent's bytes. Only then is the write
//    complete. Sync() makes the bytes of all complete writes durable, and then the records.
// 3. A segment is sealed after its bytes are durable. At start, unsealed segments are verified.
// 4. If reclaim moves an image, the image is durable in its new place before the old segment is
//    dropped.
//
// There are three kinds of threads. The engine's threads move bytes, `commit` writes records, and
// `care` seals, prepares and reclaims segments.
//
// Thread-safety: Thread-safe, except Open(), Recover() and Stop(), which one thread calls.
// Locks:         index < device. No lock is held while it calls the evictor or a completion, or
//                waits for the drive.

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

// The sizes of the parts of a device.
struct SsdBudget {
  uint64_t segment_bytes = 0;
  uint32_t slot_count = 0;
  uint64_t extents_max = 0;
  uint64_t write_buffer_bytes = 0;  // write buffer of the ledger
  uint64_t ledger_bytes_max = 0;
  uint64_t side_bytes_max = 0;
};
// Errors: InvalidArgument if the budget is less than limits::kSsdBytesMin. If `segment_bytes` or
// `extents_max` is 0, it gets a default that depends on the budget.
absl::StatusOr<SsdBudget> ShareOut(uint64_t budget_bytes, uint64_t segment_bytes,
                                   uint64_t extents_max);

class SsdDevice {
 public:
  // The device's number begins at this bit of an offset.
  static constexpr int kNumberShift = 48;
  // The names under which the ledger stores the hints of the last process (SerializeHints()), and
  // the generations of spaces (SerializeGenerations()).
  static constexpr char kHintsMeta[] = "hints", kGenerationsMeta[] = "generations",
                        kPoliciesMeta[] = "policies";

  struct Options {
    std::string path;
    uint64_t budget_bytes = 0;
    uint64_t segment_bytes = 0, extents_max = 0;  // 0: a default that depends on the budget
    uint64_t number = 0;                          // the device's number in the tier
    Deletions* deletions = nullptr;               // the tier's; must outlive the device
    std::string fstab = "/etc/fstab";             // lists the file systems that should be mounted
    // The free space that the device leaves on the file system.
    uint64_t keep_free_bytes = 0;
    absl::Duration lock_wait = absl::Seconds(30);    // how long to wait for the previous process
    absl::Duration probe_after = absl::Seconds(30);  // the longest time between tests after a fault
    // Called by Open() with a description of its current step, on its thread.
    std::function<void(std::string_view what)> on_step = [](std::string_view) {};
  };

  using State = DeviceState;

  // Locks the folder for this process, and makes missing files. Files that cannot be read are
  // replaced by empty ones. `tier` is the owner of the extents. Errors:
  // - InvalidArgument: the budget is invalid, the path is not a folder, or the file system does not
  //   support O_DIRECT.
  // - FailedPrecondition: another process uses the folder, or a newer version has written it.
  // - Others: the drive has failed or is missing. Nothing was changed.
  static absl::StatusOr<std::unique_ptr<SsdDevice>> Open(Options options,
                                                         std::unique_ptr<IoEngine> engine,
                                                         CopyTier& tier);
  ~SsdDevice() { Stop(); }

  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }
  // Like CopyTier::Recover(). Starts the threads. After an error, the device counts as failed.
  absl::Status Recover(RecoverySink& sink);
  void Stop();

  // The deletions that the previous process knew. nullopt: the folder is new.
  const std::optional<DeletionHistory>& history() const { return history_; }
  // Queues deletions, to be recorded on this device.
  void QueueDeletions(const std::vector<Deletion>& deletions);
  void PolicyChanged(const SpaceRecord& space);
  // Replaces what the next process finds under one of the names above.
  void SaveMeta(const char* name, std::string bytes);
  // Returns true if it can record deletions: it has not failed, and its ledger works.
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
  // Images are limited to a quarter of a segment, so that little of a segment's end stays unused.
  uint64_t image_bytes_max() const { return budget_.segment_bytes / 4; }
  // Returns true if the device has failed. A failed device stays failed.
  bool is_out() const;
  // Returns true if no copy uses a place in it, and no transfer runs.
  bool is_idle() const;
  // As in CopyTier, for one device.
  DeviceReport Describe() const;
  absl::Status SetRetired(bool is_retired);
  void Report(MetricSink& sink) const;
  static void ReportState(MetricSink& sink, uint64_t number, State state);

 private:
  // A write whose bytes are on the device, while its record is not.
  struct Written {
    uint64_t id = 0;
    uint64_t offset = 0;
    ExtentRecord record;
    // Null if the record has the space's number already. Otherwise this field and those below have
    // the values of the TierWrite.
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
    std::map<std::string, std::string> metas;  // by name
    bool is_empty() const {
      return written.empty() && freed.empty() && deleted.empty() && changed.empty() &&
             metas.empty();
    }
  };
  struct SpaceNumber {
    uint32_t number = 0;
    uint64_t version = 0;  // in the ledger; 0: none, or from a previous process
  };
  // Once writes to this many segments have failed, the device is read-only.
  static constexpr size_t kSetAsideMax = 3;
  enum class Carried : uint8_t { kCarried, kDropped, kLater, kNowhere };

  SsdDevice(Options options, std::unique_ptr<IoEngine> engine, const SsdBudget& budget,
            CopyTier& tier);

  // --- Opening (recovery.cc)
  absl::Status OpenFolder();
  absl::Status OpenLedger();
  absl::Status ReadDeletions();
  // Errors: DataLoss if the ledger belongs to another tier.
  absl::Status CheckOwner() const;
  absl::Status StartEmpty(std::string_view why);

  // --- Recovery (recovery.cc)
  struct Recovered;
  // Finds the deletions that the device missed while it was absent.
  void FindDeleted(Recovered& recovered);
  absl::Status FindAll(Recovered& recovered, RecoverySink& sink);
  absl::Status FindSegments(Recovered& recovered);
  absl::Status FindSpaces(Recovered& recovered, RecoverySink& sink);
  absl::Status FindExtents(Recovered& recovered, RecoverySink& sink);
  void FindHints(RecoverySink& sink);
  // Gives a list that a previous process saved to the sink.
  void FindList(const char* name, absl::FunctionRef<void(std::string_view)> found) const;
  absl::Status SettleSegments(const Recovered& recovered);
  // Returns true if the header of the record's segment cannot be read now. The record is then kept
  // for the next start.
  bool IsUnread(Recovered& recovered, ExtentPlace place, const ExtentRecord& record);
  // Drops the unread records of these blocks.
  void FreeUnread(const std::vector<Deletion>& deletions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns nullopt if the record refers to no existing image.
  std::optional<FoundImage> Find(Recovered& recovered, ExtentPlace place,
                                 const ExtentRecord& record);

  // --- Transfers (device.cc)
  void Landed(Written written, absl::Status status);
  // Completes the write.
  void End(Written& written, absl::Status status);
  // Moves bytes on the calling thread.
  absl::Status Transfer(IoKind kind, int fd, uint64_t offset, std::span<std::byte> pages);
  // Returns whether the bytes are exactly the image that the record describes.
  static bool IsImageOf(const ExtentRecord& record, std::span<const std::byte> bytes);
  void CountError(uint32_t slot, IoKind kind, const absl::Status& status);

  // --- Records (device.cc)
  void RunCommits();
  void Commit(Round round);
  // Writes the deletions to the file durably. Adds to the batch the epoch up to which they are
  // done.
  absl::Status Record(const std::vector<Deletion>& deleted, Ledger::Batch& batch);
  absl::Status RecordAllDeletions(Ledger::Batch& batch);
  static void PutEpoch(uint64_t epoch, Ledger::Batch& batch);
  // Adds the record of a space, unless the ledger has it already in this version.
  void PutSpace(SpaceNumber& space, const SpaceRecord& record, Ledger::Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the number of the record's space. Adds the space and the side objects that the ledger does
  // not have.
  absl::Status AddSpaceAndSideObjects(Written& written, Ledger::Batch& batch);
  // Waits until the write is in the ledger.
  absl::Status CommitNow(Written written);
  void QueueSync(TierDone done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if enough callers wait, or if the first one has waited long enough.
  bool IsSyncDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunSyncs(std::vector<TierDone> syncs, uint64_t round);
  // Returns true if a caller waits for records that are not durable yet.
  bool AreRecordsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SyncRecords(uint64_t round);
  // Makes the bytes of unsealed segments durable. Returns false if the device has lost some bytes,
  // and drops those segments. Only the thread that writes the ledger may call it, because the
  // kernel reports an error only once: a second flush of the same file would succeed.
  bool SyncUnsealed();
  // `care` calls it. Returns true once all writes are durable, if nothing was lost.
  bool SyncNow();

  // --- Care of segments (segments.cc)
  void RunCare();
  bool SealOne();
  bool PrepareOne();
  absl::Status Prepare(uint32_t slot);
  absl::Status Grow(uint32_t slot);
  bool ReclaimOne();
  void Reclaim(uint32_t slot);
  // Moves one image to another segment. AwaitFreed() waits for it, as for other writes.
  Carried Carry(uint32_t slot, uint32_t page, const ExtentRecord& record, const ImageFacts& facts);
  // Reads the image at `from` and writes it elsewhere.
  Carried CopyAlong(uint64_t from, const ExtentRecord& record, const ImageFacts& facts);
  // Tells the index the new place. The record of the new place is in the ledger by then.
  Carried Move(uint64_t from, TierExtent& to, const ImageFacts& facts);
  bool FinishReclaim(uint32_t slot);
  // Drops all extents of a segment and fails its writes. The segment is not flushed again: the
  // kernel forgets pages that it could not write, and the next flush would report success.
  void LoseSegment(uint32_t slot);
  bool IsLost(uint32_t slot) const;
  std::vector<std::pair<uint32_t, ExtentRecord>> RecordsOf(uint64_t seq);
  ImageFacts FactsOf(const ExtentRecord& record) const;
  void CheckLedgerSize();
  bool TakesImages() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (state_ == State::kOk || state_ == State::kCapped) && !is_retired_;
  }
  // The state that operators see. It includes retirement.
  State ShownState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCareDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsReclaimDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- After faults (segments.cc)
  void TurnReadOnly(std::string_view why, const absl::Status& status);
  // Makes the device read-only until the ledger is reopened.
  void LedgerFailed(std::string_view why, const absl::Status& status);
  void GoOut(std::string_view why, const absl::Status& status);
  // Tests whether a read-only device accepts writes again.
  bool Probe();
  // Tries to write a header to a segment that was set aside. If this succeeds, all such segments
  // are used again.
  bool TryOne();
  bool MendLedger();
  // Returns true if the path now leads to another folder than the open one.
  bool IsFolderGone() const;
  absl::Status ReopenLedger();
  // Removes the ledger's records of extents that the segment map does not have, and the index's
  // entries of extents that the ledger has lost.
  absl::Status CompareLedger(Ledger::Batch& batch);

  // Adds the deletion of the record to the next batch, if the ledger has the record. If reclaim has
  // moved the image, also adds the deletion of the record of its old place.
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
  std::optional<uint64_t> done_epoch_;      // epoch of the ledger when it was opened
  std::optional<DeletionHistory> history_;  // content of the file when it was opened
  std::vector<Fd> files_;  // indexed by slot; set by `care` before the segment is ready
  std::thread commit_thread_, care_thread_;

  mutable Mutex mutex_;
  CondVar commit_due_, committed_, care_due_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kRecovering;
  std::string why_ ABSL_GUARDED_BY(mutex_);  // the reason of any state except kOk
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_trying_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ledger_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_mending_ ABSL_GUARDED_BY(mutex_) = false;     // the commit thread must not begin a round
  bool is_committing_ ABSL_GUARDED_BY(mutex_) = false;  // the commit thread runs a round
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_landed_ ABSL_GUARDED_BY(mutex_) = false;  // no more writes will come
  std::unique_ptr<SegmentMap> segments_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_seq_ ABSL_GUARDED_BY(mutex_) = 1;
  Round queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<TierDone> syncs_ ABSL_GUARDED_BY(mutex_);
  absl::Time sync_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // latest time of a sync
  // Running writes, in the order in which they began. A write runs from the reservation of its
  // place until its completion has returned. Moves of reclaim are writes, too. If the image of a
  // write is deleted meanwhile, the write may still record the image, and then frees it.
  std::set<uint64_t> writes_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_write_ ABSL_GUARDED_BY(mutex_) = 1;
  // Places that are reserved for writes whose bytes are not written yet.
  absl::flat_hash_map<uint64_t, uint64_t> reserved_ ABSL_GUARDED_BY(mutex_);
  // The old place of the copy whose move the index is about to confirm.
  std::optional<uint64_t> moving_from_ ABSL_GUARDED_BY(mutex_);
  // The old place of each image that reclaim has moved, by its new place. The ledger has both
  // records until the old segment is reclaimed, because the new bytes are not durable before.
  absl::flat_hash_map<uint64_t, ExtentPlace> moved_from_ ABSL_GUARDED_BY(mutex_);
  // Records whose segments could not be read at start, with the space and block of each.
  std::map<ExtentPlace, std::pair<proto::Fingerprint, proto::BlockKey>> unread_
      ABSL_GUARDED_BY(mutex_);
  // Rounds of the commit thread: the next one, and the last completed one.
  uint64_t next_round_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t rounds_over_ ABSL_GUARDED_BY(mutex_) = 0;
  // The last round that recorded anything, and the last round after which everything was durable.
  uint64_t recorded_round_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_round_ ABSL_GUARDED_BY(mutex_) = 0;
  // The last round after which the ledger was durable, and the round whose records a caller awaits.
  uint64_t records_synced_round_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t records_wanted_round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<proto::Fingerprint, SpaceNumber> spaces_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, uint64_t> space_ids_ ABSL_GUARDED_BY(mutex_);  // keyed by number
  uint32_t last_space_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time probe_again_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Duration probe_rest_ ABSL_GUARDED_BY(mutex_);
  absl::Time grow_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time reclaim_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  Counter written_bytes_, carried_bytes_, read_bytes_, reclaims_, resets_;
  Counter too_large_, no_segment_, corrupt_, dropped_at_open_, faults_;
};

}  // namespace cairn
