// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ledger of a tier on a drive: the place and the space of each extent. It is a RocksDB
// database. At start, the tier recovers its extents from it. Afterwards the index in memory is
// used. The ledger is disposable: if it cannot be read, the tier starts empty.
//
// A write that is not synced survives the end of the process, but not a power loss. A synced write,
// and all writes before it, survive both.
//
// RocksDB writes no log file here, because it would abort the process if there is no room for one.
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

// Thread-safety: Thread-safe. Calls wait for the drive: never make them on a lane or under a lock.
class Ledger {
 public:
  struct Options {
    std::string path;  // a folder that nothing else uses, on a drive with direct I/O
    // The limit for the memory of records that are not in tables yet. At least
    // kWriteBufferBytesMin.
    uint64_t write_buffer_bytes = kWriteBufferBytesDefault;
    // If true, an existing ledger is removed, even if it is intact, and an empty one is made. If
    // false, the ledger must exist.
    bool create = false;
  };
  static constexpr uint64_t kWriteBufferBytesDefault = uint64_t{48} << 20;
  static constexpr uint64_t kWriteBufferBytesMin = uint64_t{1} << 20;

  // Opens the ledger. Reads all of it once, so that damage is detected before any record is used.
  // This takes 0.2 s of CPU time per million extents. Errors:
  // - DataLoss: it is damaged, missing or not a ledger. The tier should start empty.
  // - Unavailable: the drive or another process prevents it. Delete nothing, and try again.
  // - ResourceExhausted: there is no space. Delete nothing, and try again.
  // - FailedPrecondition: the folder does not support direct I/O, or this program's options do not
  //   fit the database.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const Options& options);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Writes that are applied together or not at all, in the order of the calls.
  // Thread-safety: Thread-compatible.
  class Batch {
   public:
    Batch();
    ~Batch();
    Batch(Batch&& source) noexcept;
    Batch& operator=(Batch&& source) noexcept;

    void PutExtent(uint64_t seq, uint32_t page, const ExtentRecord& record);
    void DeleteExtent(uint64_t seq, uint32_t page);
    // Deletes the extents of that segment that earlier calls have put.
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

    std::unique_ptr<rocksdb::WriteBatch> writes_;  // null after a move
  };

  // After the first failure, every Write(), SyncWal() and Compact() fails with the same error until
  // Reopen(), because the contents of RocksDB's write-ahead log are then unknown.
  absl::Status Write(const Batch& batch, bool is_synced);
  // Makes all earlier writes durable.
  absl::Status SyncWal();

  // Scans visit records in the order of keys. `fn` returns false to stop. It must not call the
  // ledger. Records that cannot be read are counted, skipped and left in place. Errors: DataLoss
  // (the ledger is damaged; the rest cannot be read), Unavailable (the ledger could not be read
  // now).
  using ExtentFn = absl::FunctionRef<bool(uint64_t seq, uint32_t page, const ExtentRecord& record)>;
  using SegmentFn = absl::FunctionRef<bool(uint32_t slot, const SegmentRecord& record)>;
  using SpaceFn = absl::FunctionRef<bool(uint32_t number, const SpaceRecord& record)>;
  // Includes seq_first and seq_last.
  absl::Status ScanExtents(uint64_t seq_first, uint64_t seq_last, ExtentFn fn) const;
  // Deletes fields whose extent no longer exists. A program that does not know fields may have
  // removed the extent.
  absl::Status DropLostFields();
  absl::Status ScanSegments(SegmentFn fn) const;
  absl::Status ScanSpaces(SpaceFn fn) const;
  // Errors: NotFound; DataLoss and Unimplemented as in record.h; Unavailable.
  absl::StatusOr<std::string> GetMeta(std::string_view name) const;

  // Closes the database, opens it as Open() does, and accepts writes again. The database then has
  // all writes before the first failure, and may have failed ones as whole batches. Waits for
  // running calls, and returns Unavailable if some still run at `deadline`. The other errors are
  // those of Open(). After an error, nothing is read or written until a call returns OK.
  // Thread-safety: one thread at a time.
  absl::Status Reopen(absl::Time deadline);

  // The number of records that scans have skipped since the ledger was opened. Each scan counts
  // them.
  struct Skipped {
    uint64_t damaged = 0;
    uint64_t unknown = 0;  // their version or recipe is unknown to this program
  };
  Skipped skipped() const;
  // Returns OK until the first failure.
  absl::Status health() const;
  // The size of the ledger's files in the file system.
  uint64_t disk_bytes() const;
  // Rewrites the ledger without deleted records. Takes seconds per million records, and needs as
  // much free space as the ledger's size.
  absl::Status Compact();

 private:
  // Keeps the database open while it exists.
  class Call;

  Ledger(Options options, std::unique_ptr<rocksdb::DB> db);

  // Opens an existing database.
  static absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabase(const Options& options);
  // Records the first failure.
  absl::Status Remember(const rocksdb::Status& status);
  // Counts and logs a record that cannot be read.
  void NoteSkipped(const absl::Status& why) const;
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
  // Null if it could not be reopened. Changes only while no call runs.
  std::unique_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(mutex_);
  mutable CondVar calls_over_;
  mutable uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_reopening_ ABSL_GUARDED_BY(mutex_) = false;  // no call may begin
};

}  // namespace cairn
