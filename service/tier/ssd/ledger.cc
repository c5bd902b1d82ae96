// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/ledger.h"

#include <dirent.h>
#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/slice.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace cairn {
namespace {

constexpr char kComponent[] = "ssd";

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Forwards only warnings and errors. The log limits the number of each kind.
class LogForwarder : public rocksdb::Logger {
 public:
  LogForwarder() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using rocksdb::Logger::Logv;
  void LogHeader(const char*, va_list) override {}
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level != rocksdb::InfoLogLevel::WARN_LEVEL && level != rocksdb::InfoLogLevel::ERROR_LEVEL &&
        level != rocksdb::InfoLogLevel::FATAL_LEVEL) {
      return;
    }
    std::array<char, 1024> text{};
    (void)std::vsnprintf(text.data(), text.size(), format, arguments);
    // RocksDB logs this whenever checksums are verified, because it then opens tables by path
    // alone.
    if (absl::StrContains(text.data(), "opened without unique ID")) {
      return;
    }
    const bool is_warning = level == rocksdb::InfoLogLevel::WARN_LEVEL;
    Log(is_warning ? LogLevel::kWarn : LogLevel::kError, kComponent,
        is_warning ? "the ledger's database warns" : "the ledger's database reports an error",
        {{"text", std::string_view(text.data())}});
  }
};

rocksdb::Options DatabaseOptions(const Ledger::Options& options) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  rocksdb::Options to;
  to.info_log = std::make_shared<LogForwarder>();
  to.create_if_missing = options.create;
  to.error_if_exists = options.create;
  to.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  to.track_and_verify_wals_in_manifest = true;
  to.compression = rocksdb::kLZ4Compression;
  to.max_write_buffer_number = 3;
  to.write_buffer_size = options.write_buffer_bytes / 3;
  to.max_total_wal_size = 64 * kMiB;
  to.max_background_jobs = 2;
  to.max_open_files = 64;
  to.max_manifest_file_size = 4 * kMiB;
  to.use_direct_reads = true;
  to.use_direct_io_for_flush_and_compaction = true;
  // Do not retry a failed flush or compaction: the tier must learn of the error.
  to.max_bgerror_resume_count = 0;
  to.stats_dump_period_sec = 0;
  to.stats_persist_period_sec = 0;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.block_cache = rocksdb::NewLRUCache(16 * kMiB);
  to.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return to;
}

rocksdb::ReadOptions ReadsOfAll() {
  rocksdb::ReadOptions how;
  how.fill_cache = false;
  how.readahead_size = size_t{1} << 20;
  return how;
}

// Converts a status of the database to the codes of Ledger::Open().
absl::Status StatusFrom(const rocksdb::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("ledger: ", status.ToString());
  if (status.IsNoSpace()) {
    return absl::ResourceExhaustedError(text);
  }
  if (status.IsCorruption() || status.IsInvalidArgument() || status.IsPathNotFound()) {
    return absl::DataLossError(text);
  }
  if (status.IsNotSupported()) {
    return absl::FailedPreconditionError(text);
  }
  return absl::UnavailableError(text);
}

// RocksDB returns InvalidArgument for damage, and also for a file that it cannot open for any
// reason. This function distinguishes the two. Returns OK if the file can be opened.
absl::Status CheckOpening(const std::string& path) {
  const std::string current = absl::StrCat(path, "/CURRENT");
  const Fd plain(::open(current.c_str(), O_RDONLY | O_CLOEXEC));
  if (!plain.is_valid()) {
    return errno == ENOENT || errno == ENOTDIR
               ? absl::DataLossError(absl::StrCat("ledger: no ", current))
               : absl::UnavailableError(absl::ErrnoToStatus(errno, current).message());
  }
  const Fd direct(::open(current.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!direct.is_valid()) {
    const absl::Status why = absl::ErrnoToStatus(errno, absl::StrCat("direct I/O of ", current));
    return errno == EINVAL ? absl::FailedPreconditionError(why.message())
                           : absl::UnavailableError(why.message());
  }
  return absl::OkStatus();
}

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  const absl::Status why = absl::ErrnoToStatus(errno, absl::StrCat("ledger: make ", path));
  return errno == ENOSPC ? why : absl::UnavailableError(why.message());
}

// REQUIRES: the parent folder of `path` exists.
absl::Status MakeEmpty(const std::string& path, const rocksdb::Options& options) {
  CAIRN_RETURN_IF_ERROR(MakeFolder(path));  // DestroyDB() takes a lock in the folder
  CAIRN_RETURN_IF_ERROR(StatusFrom(rocksdb::DestroyDB(path, options)));
  return MakeFolder(path);  // DestroyDB() has removed the folder
}

// Makes the folder's entry in its parent folder durable, too.
absl::Status SyncParent(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return SyncFolder(slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash));
}

std::string StartOf(RecordKind kind) { return std::string(1, static_cast<char>(kind)); }
// Returns a text that sorts after all keys of the kind.
std::string EndOf(RecordKind kind) { return std::string(1, static_cast<char>(kind) + 1); }
// Return a range of keys for the extents of segments, or for the extents' fields. The range is
// [PlacesFrom(), PlacesUntil()).
std::string PlacesFrom(RecordKind kind, uint64_t seq) {
  const ExtentPlace place = {.seq = seq, .page = 0};
  return kind == RecordKind::kExtent ? ExtentKey(place) : FieldsKey(place);
}
std::string PlacesUntil(RecordKind kind, uint64_t seq_last) {
  return seq_last == std::numeric_limits<uint64_t>::max() ? EndOf(kind)
                                                          : PlacesFrom(kind, seq_last + 1);
}

// The callback of Scan() for records whose keys are numbers.
template <typename Parse, typename Fn>
auto Numbered(RecordKind kind, Parse parse, Fn fn) {
  return [kind, parse, fn](std::string_view key, std::string_view value) -> absl::StatusOr<bool> {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t number, ParseNumberKey(kind, key));
    CAIRN_ASSIGN_OR_RETURN(const auto record, parse(key, value));
    return fn(number, record);
  };
}

}  // namespace

// --- Open and close ------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<rocksdb::DB>> Ledger::OpenDatabase(const Options& options) {
  CAIRN_RETURN_IF_ERROR(CheckOpening(options.path));
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(options), options.path, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (status.IsInvalidArgument()) {
    CAIRN_RETURN_IF_ERROR(CheckOpening(options.path));
  }
  CAIRN_RETURN_IF_ERROR(StatusFrom(status));
  CAIRN_RETURN_IF_ERROR(StatusFrom(db->VerifyChecksum(ReadsOfAll())));
  return db;
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const Options& options) {
  CAIRN_CHECK(options.write_buffer_bytes >= kWriteBufferBytesMin);
  Options kept = options;
  kept.create = false;
  if (options.create) {
    const rocksdb::Options to = DatabaseOptions(options);
    CAIRN_RETURN_IF_ERROR(MakeEmpty(options.path, to));
    rocksdb::DB* made = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(to, options.path, &made);
    std::unique_ptr<rocksdb::DB> db(made);
    CAIRN_RETURN_IF_ERROR(StatusFrom(status));
    CAIRN_RETURN_IF_ERROR(SyncParent(options.path));
    return std::unique_ptr<Ledger>(new Ledger(std::move(kept), std::move(db)));
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<rocksdb::DB> db, OpenDatabase(options));
  return std::unique_ptr<Ledger>(new Ledger(std::move(kept), std::move(db)));
}

Ledger::Ledger(Options options, std::unique_ptr<rocksdb::DB> db)
    : options_(std::move(options)), db_(std::move(db)) {}

Ledger::~Ledger() {
  std::unique_ptr<rocksdb::DB> db;
  bool is_failed = false;
  {
    const MutexLock lock(mutex_);
    db = std::move(db_);
    is_failed = !failure_.ok();
  }
  if (db == nullptr) {
    return;
  }
  if (const rocksdb::Status status = db->Close(); !status.ok() && !is_failed) {
    LogWarn(kComponent, "ledger did not close cleanly", {{"why", StatusFrom(status)}});
  }
}

absl::Status Ledger::Reopen(absl::Time deadline) {
  std::unique_ptr<rocksdb::DB> closed;
  {
    const MutexLock lock(mutex_);
    failure_.Update(absl::UnavailableError("ledger: it is being reopened"));
    is_reopening_ = true;
    while (calls_ > 0) {
      if (!calls_over_.WaitUntil(mutex_, deadline)) {
        is_reopening_ = false;
        return absl::UnavailableError("ledger: a call does not complete");
      }
    }
    closed = std::move(db_);
  }
  if (closed != nullptr) {
    (void)closed->Close();  // its error is known; opening it shows its contents
    closed.reset();
  }
  absl::StatusOr<std::unique_ptr<rocksdb::DB>> opened = OpenDatabase(options_);
  const MutexLock lock(mutex_);
  is_reopening_ = false;
  CAIRN_RETURN_IF_ERROR(opened.status());
  db_ = *std::move(opened);
  failure_ = absl::OkStatus();
  return absl::OkStatus();
}

// --- Calls ---------------------------------------------------------------------------------------

class Ledger::Call {
 public:
  // A call that writes fails if a write has failed before.
  Call(const Ledger& ledger, bool is_write) : ledger_(ledger) {
    const MutexLock lock(ledger.mutex_);
    if (is_write && !ledger.failure_.ok()) {
      status_ = ledger.failure_;
    } else if (ledger.db_ == nullptr || ledger.is_reopening_) {
      status_ = absl::UnavailableError("ledger: it is not open");
    } else {
      db_ = ledger.db_.get();
      ++ledger.calls_;
    }
  }
  ~Call() {
    if (db_ != nullptr) {
      const MutexLock lock(ledger_.mutex_);
      --ledger_.calls_;
      ledger_.calls_over_.NotifyAll();
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const absl::Status& status() const { return status_; }
  // REQUIRES: status() is OK.
  rocksdb::DB* operator->() const { return db_; }

 private:
  const Ledger& ledger_;
  absl::Status status_;
  rocksdb::DB* db_ = nullptr;
};

absl::Status Ledger::health() const {
  const MutexLock lock(mutex_);
  return failure_;
}

Ledger::Skipped Ledger::skipped() const {
  return {.damaged = damaged_.load(std::memory_order_relaxed),
          .unknown = unknown_.load(std::memory_order_relaxed)};
}

absl::Status Ledger::Remember(const rocksdb::Status& status) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const MutexLock lock(mutex_);
  if (failure_.ok()) {
    failure_ = StatusFrom(status);
  }
  return failure_;
}

absl::Status Ledger::Write(const Batch& batch, bool is_synced) {
  const Call call(*this, /*is_write=*/true);
  CAIRN_RETURN_IF_ERROR(call.status());
  if (batch.writes_ == nullptr) {
    return absl::OkStatus();
  }
  rocksdb::WriteOptions how;
  how.sync = is_synced;
  return Remember(call->Write(how, batch.writes_.get()));
}

absl::Status Ledger::SyncWal() {
  const Call call(*this, /*is_write=*/true);
  CAIRN_RETURN_IF_ERROR(call.status());
  return Remember(call->SyncWAL());
}

absl::Status Ledger::Compact() {
  const Call call(*this, /*is_write=*/true);
  CAIRN_RETURN_IF_ERROR(call.status());
  rocksdb::CompactRangeOptions how;
  how.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  return Remember(call->CompactRange(how, nullptr, nullptr));
}

absl::Status Ledger::Scan(
    const std::string& first, const std::string& last,
    absl::FunctionRef<absl::StatusOr<bool>(std::string_view key, std::string_view value)> fn)
    const {
  const Call call(*this, /*is_write=*/false);
  CAIRN_RETURN_IF_ERROR(call.status());
  const rocksdb::Slice end(last);
  rocksdb::ReadOptions how = ReadsOfAll();
  how.iterate_upper_bound = &end;
  const std::unique_ptr<rocksdb::Iterator> at(call->NewIterator(how));
  for (at->Seek(first); at->Valid(); at->Next()) {
    const absl::StatusOr<bool> go_on = fn(ToView(at->key()), ToView(at->value()));
    if (!go_on.ok()) {
      NoteSkipped(go_on.status());
    } else if (!*go_on) {
      return absl::OkStatus();
    }
  }
  return StatusFrom(at->status());
}

void Ledger::NoteSkipped(const absl::Status& why) const {
  const bool is_unknown = absl::IsUnimplemented(why);
  (is_unknown ? unknown_ : damaged_).fetch_add(1, std::memory_order_relaxed);
  LogWarn(kComponent, "ledger record skipped", {{"why", why}});
}

absl::StatusOr<std::string> Ledger::GetMeta(std::string_view name) const {
  const Call call(*this, /*is_write=*/false);
  CAIRN_RETURN_IF_ERROR(call.status());
  const std::string key = MetaKey(name);
  std::string value;
  const rocksdb::Status status = call->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) {
    return absl::NotFoundError(absl::StrCat("ledger: no value named ", ToAbsl(name)));
  }
  CAIRN_RETURN_IF_ERROR(StatusFrom(status));
  return ParseMeta(key, value);
}

uint64_t Ledger::disk_bytes() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(options_.path.c_str()), &::closedir);
  if (folder == nullptr) {
    return 0;
  }
  uint64_t blocks = 0;
  while (const dirent* entry = ::readdir(folder.get())) {  // until the end of the folder
    struct stat facts {};
    if (::fstatat(::dirfd(folder.get()), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(facts.st_mode)) {
      blocks += static_cast<uint64_t>(facts.st_blocks);
    }
  }
  constexpr uint64_t kBlockBytes = 512;  // unit of st_blocks on every file system
  return blocks * kBlockBytes;
}

// --- Batches and scans ---------------------------------------------------------------------------
Ledger::Batch::Batch() : writes_(std::make_unique<rocksdb::WriteBatch>()) {}
Ledger::Batch::~Batch() = default;
Ledger::Batch::Batch(Batch&& source) noexcept = default;
Ledger::Batch& Ledger::Batch::operator=(Batch&& source) noexcept = default;

// A batch in memory has no size limit, so neither call can fail.
void Ledger::Batch::Put(const std::string& key, const std::string& value) {
  CAIRN_CHECK(writes_->Put(key, value).ok());
}
void Ledger::Batch::Delete(const std::string& key) { CAIRN_CHECK(writes_->Delete(key).ok()); }

void Ledger::Batch::PutExtent(uint64_t seq, uint32_t page, const ExtentRecord& record) {
  const std::string key = ExtentKey({.seq = seq, .page = page});
  Put(key, EncodeExtent(key, record));
  if (record.names != nullptr) {
    const std::string fields_key = FieldsKey({.seq = seq, .page = page});
    Put(fields_key, EncodeFields(fields_key, record.names));
  }
}
void Ledger::Batch::DeleteExtent(uint64_t seq, uint32_t page) {
  Delete(ExtentKey({.seq = seq, .page = page}));
  Delete(FieldsKey({.seq = seq, .page = page}));
}
void Ledger::Batch::DeleteExtentsOf(uint64_t seq) {
  for (const RecordKind kind : {RecordKind::kExtent, RecordKind::kFields}) {
    CAIRN_CHECK(writes_->DeleteRange(PlacesFrom(kind, seq), PlacesUntil(kind, seq)).ok());
  }
}
void Ledger::Batch::PutSegment(uint32_t slot, const SegmentRecord& record) {
  const std::string key = SegmentKey(slot);
  Put(key, EncodeSegment(key, record));
}
void Ledger::Batch::DeleteSegment(uint32_t slot) { Delete(SegmentKey(slot)); }
void Ledger::Batch::PutSpace(uint32_t number, const SpaceRecord& record) {
  const std::string key = SpaceKey(number);
  Put(key, EncodeSpace(key, record));
}
void Ledger::Batch::DeleteSpace(uint32_t number) { Delete(SpaceKey(number)); }
void Ledger::Batch::PutMeta(std::string_view name, std::string_view bytes) {
  const std::string key = MetaKey(name);
  Put(key, EncodeMeta(key, bytes));
}
void Ledger::Batch::DeleteMeta(std::string_view name) { Delete(MetaKey(name)); }

bool Ledger::Batch::empty() const { return writes_ == nullptr || writes_->Count() == 0; }
void Ledger::Batch::Clear() { writes_ = std::make_unique<rocksdb::WriteBatch>(); }

absl::Status Ledger::ScanExtents(uint64_t seq_first, uint64_t seq_last, ExtentFn fn) const {
  const Call call(*this, /*is_write=*/false);
  CAIRN_RETURN_IF_ERROR(call.status());
  const std::string last = PlacesUntil(RecordKind::kFields, seq_last);
  const rocksdb::Slice end(last);
  rocksdb::ReadOptions how = ReadsOfAll();
  how.iterate_upper_bound = &end;
  const std::unique_ptr<rocksdb::Iterator> fields(call->NewIterator(how));
  fields->Seek(PlacesFrom(RecordKind::kFields, seq_first));
  const auto extent = [&](std::string_view key, std::string_view value) -> absl::StatusOr<bool> {
    CAIRN_ASSIGN_OR_RETURN(const ExtentPlace place, ParseExtentKey(key));
    CAIRN_ASSIGN_OR_RETURN(ExtentRecord record, ParseExtent(key, value));
    const std::string wanted = FieldsKey(place);
    while (fields->Valid() && fields->key().compare(wanted) < 0) {  // until the iterator ends
      fields->Next();
    }
    if (fields->Valid() && fields->key() == rocksdb::Slice(wanted)) {
      const auto names = ParseFields(wanted, ToView(fields->value()));
      if (names.ok()) {
        record.names = *names;
      } else {  // the image is complete without its names
        NoteSkipped(names.status());
      }
    }
    return fn(place.seq, place.page, record);
  };
  CAIRN_RETURN_IF_ERROR(Scan(PlacesFrom(RecordKind::kExtent, seq_first),
                             PlacesUntil(RecordKind::kExtent, seq_last), extent));
  return StatusFrom(fields->status());
}

absl::Status Ledger::DropLostFields() {
  Batch batch;
  {
    const Call call(*this, /*is_write=*/false);
    CAIRN_RETURN_IF_ERROR(call.status());
    const rocksdb::ReadOptions how = ReadsOfAll();
    const std::unique_ptr<rocksdb::Iterator> fields(call->NewIterator(how));
    const std::unique_ptr<rocksdb::Iterator> extents(call->NewIterator(how));
    const std::string end = EndOf(RecordKind::kFields);
    fields->Seek(StartOf(RecordKind::kFields));
    if (fields->Valid() && fields->key().compare(end) < 0) {
      extents->Seek(StartOf(RecordKind::kExtent));
    }
    for (; fields->Valid() && fields->key().compare(end) < 0; fields->Next()) {
      std::string wanted = fields->key().ToString();
      wanted[0] = static_cast<char>(RecordKind::kExtent);
      while (extents->Valid() && extents->key().compare(wanted) < 0) {  // until the iterator ends
        extents->Next();
      }
      if (!extents->Valid() || extents->key() != rocksdb::Slice(wanted)) {
        batch.Delete(fields->key().ToString());
      }
    }
    CAIRN_RETURN_IF_ERROR(StatusFrom(fields->status()));
    CAIRN_RETURN_IF_ERROR(StatusFrom(extents->status()));
  }
  return batch.empty() ? absl::OkStatus() : Write(batch, /*is_synced=*/false);
}

absl::Status Ledger::ScanSegments(SegmentFn fn) const {
  return Scan(StartOf(RecordKind::kSegment), EndOf(RecordKind::kSegment),
              Numbered(RecordKind::kSegment, ParseSegment, fn));
}

absl::Status Ledger::ScanSpaces(SpaceFn fn) const {
  return Scan(StartOf(RecordKind::kSpace), EndOf(RecordKind::kSpace),
              Numbered(RecordKind::kSpace, ParseSpace, fn));
}

}  // namespace cairn
