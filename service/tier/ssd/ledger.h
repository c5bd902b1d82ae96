// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ledger of a tier on a disk: which extent lies where, and of which space. It is a RocksDB, and
// what the tier finds its extents by when it starts; while it runs, the index in memory is asked.
// It is disposable: where it is unreadable, the tier starts empty, never wrong.
//
// A write that is not synced outlives the death of the process, not a power cut. One that is
// synced, and all that were written before it, outlive both.
//
// Nothing of RocksDB is written to a log file: one that finds no room makes it abort the process.
// Its warnings and errors go to base/log.h.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/tier/ssd/record.h"

namespace rocksdb {
class DB;
class Iterator;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace cairn {

// Thread-safety: Thread-safe. Calls wait for the disk: none belongs on a lane or under a lock.
class Ledger {
 public:
  struct Options {
    std::string path;  // a folder of its own, on a disk that takes direct I/O
    // Memory of what is not yet in tables, at most. At least kWriteBufferBytesMin.
    uint64_t write_buffer_bytes = kWriteBufferBytesDefault;
    // Removes a ledger that is there, damaged or not, and makes an empty one. Without it the ledger
    // has to be there: none is ever made in silence.
    bool create = false;
  };
  static constexpr uint64_t kWriteBufferBytesDefault = uint64_t{48} << 20;
  static constexpr uint64_t kWriteBufferBytesMin = uint64_t{1} << 20;

  // Reads all of it once, so that damage is known before anything is taken from it: 0.2 s of CPU a
  // million extents. What to do about an error:
  // - DataLoss: it is damaged, missing or foreign. The tier is to start empty.
  // - Unavailable: the disk or another process is in the way. Wipe nothing, try again.
  // - ResourceExhausted: there is no space. Likewise.
  // - FailedPrecondition: the folder takes no direct I/O, or options of this program do not suit.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const Options& options);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Writes that happen together or not at all, in the order of the calls.
  // Thread-safety: Thread-compatible.
  class Batch {
   public:
    Batch();
    ~Batch();
    Batch(Batch&& source) noexcept;
    Batch& operator=(Batch&& source) noexcept;

    void PutExtent(uint64_t seq, uint32_t page, const ExtentRecord& record);
    void DeleteExtent(uint64_t seq, uint32_t page);
    // Of that segment all that were put before.
    void DeleteExtentsOf(uint64_t seq);
    void PutSegment(uint32_t slot, const SegmentRecord& record);
    void DeleteSegment(uint32_t slot);
    void PutSpace(uint32_t number, const SpaceRecord& record);
    void DeleteSpace(uint32_t number);
    void PutMeta(std::string_view name, std::string_view bytes);
    void DeleteMeta(std::string_view name);

    [[nodiscard]] bool empty() const;
    void Clear();

   private:
    friend class Ledger;
    void Put(const std::string& key, const std::string& value);
    void Delete(const std::string& key);

    std::unique_ptr<rocksdb::WriteBatch> writes_;  // null once moved from
  };

  // After the first failure, of whatever kind, every Write(), SyncWal() and Compact() fails with
  // its error until Reopen(): what lies in its log is not known any more.
  absl::Status Write(const Batch& batch, bool is_synced);
  // Makes durable all that was written before.
  absl::Status SyncWal();

  // Scans, in the order of keys. `fn` returns false to stop; it must not call the ledger. A record
  // that cannot be read is counted, skipped and left in place. DataLoss: the ledger is damaged, and
  // what comes after is not to be had; Unavailable: it could not be read now.
  using ExtentFn = absl::FunctionRef<bool(uint64_t seq, uint32_t page, const ExtentRecord& record)>;
  using SegmentFn = absl::FunctionRef<bool(uint32_t slot, const SegmentRecord& record)>;
  using SpaceFn = absl::FunctionRef<bool(uint32_t number, const SpaceRecord& record)>;
  // first and last included.
  absl::Status ScanExtents(uint64_t seq_first, uint64_t seq_last, ExtentFn fn) const;
  absl::Status ScanSegments(SegmentFn fn) const;
  absl::Status ScanSpaces(SpaceFn fn) const;
  // NotFound; DataLoss and Unimplemented as record.h says; Unavailable.
  absl::StatusOr<std::string> GetMeta(std::string_view name) const;

  // Closes the database, opens it as Open() does, and takes writes again. What was written before
  // the first failure is there, and what failed may be, in whole batches. Waits until `deadline`
  // for calls under way: Unavailable. After an error, whose codes are those of Open(), nothing is
  // read nor written until a call returns OK. Thread-safety: one thread at a time.
  absl::Status Reopen(absl::Time deadline);

  // Records that scans met since it was opened, each as often as it was met.
  struct Skipped {
    uint64_t damaged = 0;
    uint64_t unknown = 0;  // of a version or recipe that this program does not know
  };
  Skipped skipped() const;
  // OK until the first failure.
  absl::Status health() const;
  // That its files take of the file system.
  uint64_t disk_bytes() const;
  // Writes all of it anew, without what was deleted. Takes seconds per million records; needs as
  // much free space as the ledger has bytes.
  absl::Status Compact();

 private:
  // While it lives the database stays open.
  class Call;

  Ledger(Options options, std::unique_ptr<rocksdb::DB> db);

  // What is there already.
  static absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabase(const Options& options);
  // Keeps the first failure.
  absl::Status Remember(const rocksdb::Status& status);
  // Calls `fn` with each key from `first` to before `last`.
  absl::Status Scan(
      const std::string& first, const std::string& last,
      absl::FunctionRef<absl::StatusOr<bool>(std::string_view key, std::string_view value)> fn)
      const;

  const Options options_;
  mutable std::atomic<uint64_t> damaged_{0};
  mutable std::atomic<uint64_t> unknown_{0};
  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // Null: it could not be opened anew. Changes while there are no calls alone.
  std::unique_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(mutex_);
  mutable CondVar calls_over_;
  mutable uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_reopening_ ABSL_GUARDED_BY(mutex_) = false;  // no call begins
};

}  // namespace cairn
