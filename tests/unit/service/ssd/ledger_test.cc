// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/ledger.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>

#include <cstdarg>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "service/tier/ssd/record.h"
#include "tests/support/log_capture.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/service/ssd/records.h"

namespace cairn {
namespace {

class SilentLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

using Extents = std::map<std::pair<uint64_t, uint32_t>, ExtentRecord>;

absl::StatusOr<std::unique_ptr<Ledger>> Create(const std::string& path) {
  return Ledger::Open({.path = path, .create = true});
}
absl::StatusOr<std::unique_ptr<Ledger>> Reopen(const std::string& path) {
  return Ledger::Open({.path = path});
}

Extents Scan(const Ledger& ledger, uint64_t first = 0, uint64_t last = ~uint64_t{0}) {
  Extents found;
  const absl::Status status =
      ledger.ScanExtents(first, last, [&](uint64_t seq, uint32_t page, const ExtentRecord& record) {
        EXPECT_TRUE(found.emplace(std::pair(seq, page), record).second);
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

// `count` extents in each of the segments 1 to `segments`, a batch a segment.
Extents Fill(Ledger& ledger, uint64_t segments, uint32_t count) {
  std::mt19937_64 random = SeededRandom();
  Extents written;
  for (uint64_t seq = 1; seq <= segments; ++seq) {
    Ledger::Batch batch;
    for (uint32_t i = 0; i < count; ++i) {
      const ExtentRecord record = RandomExtent(random);
      batch.PutExtent(seq, 1 + 3 * i, record);
      written.emplace(std::pair(seq, 1 + 3 * i), record);
    }
    batch.PutSegment(static_cast<uint32_t>(seq), {.seq = seq});
    EXPECT_TRUE(ledger.Write(batch, false).ok());
  }
  return written;
}

TEST(Ledger, KeepsWhatIsWritten) {
  const TempDir folder;
  const std::string path = folder.File("index");
  Extents written;
  {
    auto ledger = Create(path).value();
    written = Fill(*ledger, 5, 20);
    EXPECT_EQ(Scan(*ledger), written);
  }
  auto ledger = Reopen(path).value();
  EXPECT_EQ(Scan(*ledger), written);
  EXPECT_EQ(ledger->skipped().damaged + ledger->skipped().unknown, 0U);
  EXPECT_GT(ledger->disk_bytes(), 0U);
}

// The keys of all records of fields, as the database has them.
std::vector<std::string> FieldsIn(const std::string& path) {
  rocksdb::Options options;
  options.info_log = std::make_shared<SilentLog>();
  rocksdb::DB* opened = nullptr;
  EXPECT_TRUE(rocksdb::DB::OpenForReadOnly(options, path, &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(rocksdb::ReadOptions()));
  std::vector<std::string> keys;
  for (at->Seek("x"); at->Valid(); at->Next()) keys.push_back(at->key().ToString());
  return keys;
}

TEST(Ledger, ExtentsKeepTheirNamesAndTakeThemAlong) {
  const TempDir folder;
  const std::string path = folder.File("index");
  {
    auto ledger = Create(path).value();
    Extents written = Fill(*ledger, 3, 4);
    Ledger::Batch batch;
    for (auto& [place, record] : written) {
      if (place.second % 2 == 1) continue;  // every other one has names
      record.names = SomeNames(place.second);
      batch.PutExtent(place.first, place.second, record);
    }
    ASSERT_TRUE(ledger->Write(batch, false).ok());
    for (const auto& [place, record] : Scan(*ledger)) {
      ASSERT_EQ(record.names != nullptr, place.second % 2 == 0);
      if (record.names != nullptr) {
        EXPECT_EQ(*record.names, *SomeNames(place.second));
      }
    }
    for (const auto& [place, record] : Scan(*ledger, 2, 2)) {
      EXPECT_EQ(record.names != nullptr, place.second % 2 == 0);
    }
    Ledger::Batch removal;
    removal.DeleteExtent(1, 4);
    removal.DeleteExtentsOf(2);
    ASSERT_TRUE(ledger->Write(removal, false).ok());
  }
  // Of pages 4 and 10 of the segments 1 and 3.
  EXPECT_EQ(FieldsIn(path), (std::vector<std::string>{FieldsKey({.seq = 1, .page = 10}),
                                                      FieldsKey({.seq = 3, .page = 4}),
                                                      FieldsKey({.seq = 3, .page = 10})}));
}

// As a release does that does not know fields.
TEST(Ledger, FieldsWithoutTheirExtentGo) {
  const TempDir folder;
  const std::string path = folder.File("index");
  std::mt19937_64 random = SeededRandom();
  ExtentRecord record = RandomExtent(random);
  record.names = SomeNames(1);
  {
    auto ledger = Create(path).value();
    Ledger::Batch batch;
    for (const uint32_t page : {1U, 2U, 3U}) batch.PutExtent(5, page, record);
    ASSERT_TRUE(ledger->Write(batch, true).ok());
  }
  {
    rocksdb::Options options;
    options.info_log = std::make_shared<SilentLog>();
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, path, &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    for (const uint32_t page : {1U, 3U}) {
      ASSERT_TRUE(db->Delete(rocksdb::WriteOptions(), ExtentKey({.seq = 5, .page = page})).ok());
    }
  }
  auto ledger = Reopen(path).value();
  EXPECT_EQ(Scan(*ledger).size(), 1U);
  ASSERT_TRUE(ledger->DropLostFields().ok());
  EXPECT_NE(Scan(*ledger).begin()->second.names, nullptr);
  ledger.reset();
  EXPECT_EQ(FieldsIn(path), (std::vector<std::string>{FieldsKey({.seq = 5, .page = 2})}));
}

TEST(Ledger, ScansARangeInOrderAndStops) {
  const TempDir folder;
  auto ledger = Create(folder.File("index")).value();
  const Extents written = Fill(*ledger, 5, 4);
  const Extents found = Scan(*ledger, 2, 3);
  EXPECT_EQ(found.size(), 8U);
  for (const auto& [place, record] : found) {
    EXPECT_TRUE(place.first == 2 || place.first == 3);
    EXPECT_EQ(record, written.at(place));
  }
  std::vector<uint64_t> seqs;
  EXPECT_TRUE(ledger
                  ->ScanExtents(0, 5,
                                [&](uint64_t seq, uint32_t, const ExtentRecord&) {
                                  seqs.push_back(seq);
                                  return seqs.size() < 5;
                                })
                  .ok());
  EXPECT_EQ(seqs, (std::vector<uint64_t>{1, 1, 1, 1, 2}));
}

TEST(Ledger, DeletesExtentsAndSegments) {
  const TempDir folder;
  auto ledger = Create(folder.File("index")).value();
  Extents written = Fill(*ledger, 4, 6);
  std::mt19937_64 random = SeededRandom(1);
  const ExtentRecord again = RandomExtent(random);
  Ledger::Batch batch;
  EXPECT_TRUE(batch.empty());
  batch.DeleteExtentsOf(2);
  batch.PutExtent(2, 9, again);  // after the deletion: it stays
  batch.DeleteExtent(3, 1);
  batch.DeleteSegment(2);
  EXPECT_FALSE(batch.empty());
  ASSERT_TRUE(ledger->Write(batch, true).ok());
  std::erase_if(written, [](const auto& entry) {
    return entry.first.first == 2 || entry.first == std::pair<uint64_t, uint32_t>(3, 1);
  });
  written.emplace(std::pair(2, 9), again);
  EXPECT_EQ(Scan(*ledger), written);
  ASSERT_TRUE(ledger->Compact().ok());
  EXPECT_EQ(Scan(*ledger), written);
  std::vector<uint32_t> slots;
  EXPECT_TRUE(ledger
                  ->ScanSegments([&](uint32_t slot, const SegmentRecord& record) {
                    EXPECT_EQ(record.seq, slot);
                    EXPECT_EQ(record.state, SegmentRecord::State::kOpen);
                    slots.push_back(slot);
                    return true;
                  })
                  .ok());
  EXPECT_EQ(slots, (std::vector<uint32_t>{1, 3, 4}));
  batch.Clear();
  EXPECT_TRUE(batch.empty());
}

TEST(Ledger, KeepsSpacesAndMeta) {
  const TempDir folder;
  std::mt19937_64 random = SeededRandom();
  const SpaceRecord space = RandomSpace(random);
  const SpaceRecord other = RandomSpace(random);
  {
    auto ledger = Create(folder.File("index")).value();
    Ledger::Batch batch;
    batch.PutSpace(300, space);
    batch.PutSpace(4, other);
    batch.PutSpace(5, other);
    batch.DeleteSpace(5);
    batch.PutMeta("tier", std::string("\0id", 3));
    batch.PutMeta("epoch", "1");
    batch.DeleteMeta("epoch");
    ASSERT_TRUE(ledger->Write(batch, false).ok());
    ASSERT_TRUE(ledger->SyncWal().ok());
  }
  auto ledger = Reopen(folder.File("index")).value();
  std::vector<uint32_t> numbers;
  EXPECT_TRUE(ledger
                  ->ScanSpaces([&](uint32_t number, const SpaceRecord& record) {
                    numbers.push_back(number);
                    EXPECT_TRUE(IsSame(record, number == 300 ? space : other));
                    return true;
                  })
                  .ok());
  EXPECT_EQ(numbers, (std::vector<uint32_t>{4, 300}));
  EXPECT_EQ(ledger->GetMeta("tier").value(), std::string("\0id", 3));
  EXPECT_TRUE(absl::IsNotFound(ledger->GetMeta("epoch").status()));
}

TEST(Ledger, OutlivesTheProcessUnsynced) {
  const TempDir folder;
  auto ledger = Create(folder.File("index")).value();
  const Extents written = Fill(*ledger, 3, 10);
  // What a process that is killed leaves: the files as they are while it is open.
  std::filesystem::copy(folder.File("index"), folder.File("copy"));
  auto copy = Reopen(folder.File("copy")).value();
  EXPECT_EQ(Scan(*copy), written);
}

TEST(Ledger, IsMadeOnlyWhenToldTo) {
  const TempDir folder;
  const std::string path = folder.File("index");
  EXPECT_TRUE(absl::IsDataLoss(Reopen(path).status()));
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::create_directory(path);
  EXPECT_TRUE(absl::IsDataLoss(Reopen(path).status()));
  { Fill(*Create(path).value(), 2, 2); }
  EXPECT_EQ(Scan(*Reopen(path).value()).size(), 4U);
  EXPECT_TRUE(Scan(*Create(path).value()).empty()) << "told to: what was there is gone";
  EXPECT_TRUE(Scan(*Reopen(path).value()).empty());
}

TEST(Ledger, IsOpenOnceAtATime) {
  const TempDir folder;
  auto ledger = Create(folder.File("index")).value();
  EXPECT_TRUE(absl::IsUnavailable(Reopen(folder.File("index")).status()));
  Fill(*ledger, 1, 1);
  EXPECT_FALSE(Create(folder.File("index")).ok());
  EXPECT_EQ(Scan(*ledger).size(), 1U) << "what another has open is not removed";
}

TEST(Ledger, WritesNoLogFile) {
  const TempDir folder;
  const LogCapture log;
  {
    auto ledger = Create(folder.File("index")).value();
    Fill(*ledger, 2, 2);
    ASSERT_TRUE(ledger->Compact().ok());
  }
  { EXPECT_EQ(Scan(*Reopen(folder.File("index")).value()).size(), 4U); }
  for (const auto& entry : std::filesystem::directory_iterator(folder.File("index"))) {
    EXPECT_NE(entry.path().filename().string().substr(0, 3), "LOG") << entry.path();
  }
  EXPECT_TRUE(log.Lines().empty()) << log.Lines().front();
}

// A later release, and a broken memory.
TEST(Ledger, SkipsRecordsItCannotReadAndLeavesThem) {
  const TempDir folder;
  const std::string path = folder.File("index");
  const Extents written = Fill(*Create(path).value(), 2, 3);
  const std::string later = ExtentKey({.seq = 1, .page = 2});
  const std::string damaged = ExtentKey({.seq = 2, .page = 2});
  const auto with_database = [&path](auto use) {
    rocksdb::DB* opened = nullptr;
    rocksdb::Options options;
    options.info_log = std::make_shared<SilentLog>();
    ASSERT_TRUE(rocksdb::DB::Open(options, path, &opened).ok());
    const std::unique_ptr<rocksdb::DB> database(opened);
    use(*database);
  };
  std::string later_value(1, '\x09');
  SealRecord(later, &later_value);
  with_database([&](rocksdb::DB& database) {
    EXPECT_TRUE(database.Put({}, later, later_value).ok());
    EXPECT_TRUE(database.Put({}, damaged, "no record").ok());
  });
  {
    const LogCapture log;
    auto ledger = Reopen(path).value();
    EXPECT_EQ(Scan(*ledger), written);
    EXPECT_EQ(ledger->skipped().unknown, 1U);
    EXPECT_EQ(ledger->skipped().damaged, 1U);
    EXPECT_EQ(log.Count("ledger record skipped"), 2U);
  }
  with_database([&](rocksdb::DB& database) {
    std::string value;
    EXPECT_TRUE(database.Get({}, later, &value).ok());
    EXPECT_EQ(value, later_value);
  });
}

}  // namespace
}  // namespace cairn
