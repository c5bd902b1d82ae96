// SPDX-License-Identifier: Apache-2.0
// The records of the ledger, by kind: batches of them, and scans.
#include <rocksdb/write_batch.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/status.h"
#include "service/tier/ssd/ledger.h"

namespace cairn {
namespace {

std::string StartOf(RecordKind kind) { return std::string(1, static_cast<char>(kind)); }
// Before which all keys of the kind are.
std::string EndOf(RecordKind kind) { return std::string(1, static_cast<char>(kind) + 1); }
std::string EndOfExtents(uint64_t seq_last) {
  return seq_last == std::numeric_limits<uint64_t>::max()
             ? EndOf(RecordKind::kExtent)
             : ExtentKey({.seq = seq_last + 1, .page = 0});
}

// What Scan() does with records whose keys are numbers.
template <typename Parse, typename Fn>
auto Numbered(RecordKind kind, Parse parse, Fn fn) {
  return [kind, parse, fn](std::string_view key, std::string_view value) -> absl::StatusOr<bool> {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t number, ParseNumberKey(kind, key));
    CAIRN_ASSIGN_OR_RETURN(const auto record, parse(key, value));
    return fn(number, record);
  };
}

}  // namespace

Ledger::Batch::Batch() : writes_(std::make_unique<rocksdb::WriteBatch>()) {}
Ledger::Batch::~Batch() = default;
Ledger::Batch::Batch(Batch&& source) noexcept = default;
Ledger::Batch& Ledger::Batch::operator=(Batch&& source) noexcept = default;

// A batch in memory takes what it is given: it has no limit of bytes.
void Ledger::Batch::Put(const std::string& key, const std::string& value) {
  CAIRN_CHECK(writes_->Put(key, value).ok());
}
void Ledger::Batch::Delete(const std::string& key) { CAIRN_CHECK(writes_->Delete(key).ok()); }

void Ledger::Batch::PutExtent(uint64_t seq, uint32_t page, const ExtentRecord& record) {
  const std::string key = ExtentKey({.seq = seq, .page = page});
  Put(key, EncodeExtent(key, record));
}
void Ledger::Batch::DeleteExtent(uint64_t seq, uint32_t page) {
  Delete(ExtentKey({.seq = seq, .page = page}));
}
void Ledger::Batch::DeleteExtentsOf(uint64_t seq) {
  CAIRN_CHECK(writes_->DeleteRange(ExtentKey({.seq = seq, .page = 0}), EndOfExtents(seq)).ok());
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
  return Scan(ExtentKey({.seq = seq_first, .page = 0}), EndOfExtents(seq_last),
              [fn](std::string_view key, std::string_view value) -> absl::StatusOr<bool> {
                CAIRN_ASSIGN_OR_RETURN(const ExtentPlace place, ParseExtentKey(key));
                CAIRN_ASSIGN_OR_RETURN(const ExtentRecord record, ParseExtent(key, value));
                return fn(place.seq, place.page, record);
              });
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
