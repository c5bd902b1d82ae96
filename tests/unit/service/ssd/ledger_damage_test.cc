// SPDX-License-Identifier: Apache-2.0
// A ledger whose files are damaged says so, or is what it once was: never something else.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/file.h"
#include "service/tier/ssd/ledger.h"
#include "service/tier/ssd/record.h"
#include "tests/support/log_capture.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/service/ssd/records.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

using Extents = std::map<std::pair<uint64_t, uint32_t>, ExtentRecord>;

constexpr uint32_t kExtents = 24;  // of a segment

// A ledger with a table, two logs' worth of batches, deletions, and every state that it was in.
class LedgerDamage : public testing::Test {
 protected:
  LedgerDamage() {
    {
      auto ledger = Ledger::Open({.path = source(), .create = true}).value();
      states_.emplace_back();
      for (uint64_t seq = 1; seq <= 6; ++seq) {
        WriteSegment(*ledger, seq);
      }
      EXPECT_TRUE(ledger->Compact().ok());
      WriteSegment(*ledger, 7);
    }
    auto ledger = Ledger::Open({.path = source()}).value();
    for (uint64_t seq = 8; seq <= 12; ++seq) {
      WriteSegment(*ledger, seq);
    }
    // As a process that is killed leaves it.
    fs::copy(source(), folder_.File("killed"));
  }

  std::string source() const { return folder_.File("index"); }

  void WriteSegment(Ledger& ledger, uint64_t seq) {
    Extents state = states_.back();
    Ledger::Batch batch;
    for (uint32_t page = 1; page <= kExtents; ++page) {
      const ExtentRecord record = RandomExtent(random_);
      batch.PutExtent(seq, page, record);
      state.emplace(std::pair(seq, page), record);
    }
    if (seq > 3) {
      batch.DeleteExtentsOf(seq - 3);
      std::erase_if(state, [seq](const auto& entry) { return entry.first.first == seq - 3; });
    }
    EXPECT_TRUE(ledger.Write(batch, false).ok());
    written_.insert(state.begin(), state.end());
    states_.push_back(std::move(state));
  }

  // A fresh copy, to be damaged.
  std::string Copy() {
    const std::string copy = folder_.File("copy");
    fs::remove_all(copy);
    fs::copy(folder_.File("killed"), copy);
    return copy;
  }
  std::vector<std::string> FilesOf(const std::string& kind) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.File("killed"))) {
      const std::string name = entry.path().filename();
      if (absl::StartsWith(name, kind) || absl::EndsWith(name, kind)) {
        names.push_back(name);
      }
    }
    EXPECT_FALSE(names.empty()) << kind;
    return names;
  }

  // What a ledger that is not refused may hold.
  enum class Holds {
    kOneState,    // all that it held at one time
    kOwnRecords,  // records that it held at some time
  };

  // A manifest that ends early, or says so in the length of a record, looks as if its last edits
  // had never been made. What they deleted can be there again.
  static Holds HoldsWithout(const std::string& kind) {
    return kind == "MANIFEST-" ? Holds::kOwnRecords : Holds::kOneState;
  }

  // Opens and reads it. Returns whether it was refused.
  bool IsRefused(const std::string& path, const std::string& what, Holds holds = Holds::kOneState) {
    const auto ledger = Ledger::Open({.path = path});
    if (!ledger.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(ledger.status())) << what << ": " << ledger.status();
      return true;
    }
    Extents found;
    const absl::Status status = (*ledger)->ScanExtents(
        0, ~uint64_t{0}, [&](uint64_t seq, uint32_t page, const ExtentRecord& record) {
          const auto at = written_.find({seq, page});
          EXPECT_TRUE(at != written_.end() && at->second == record) << what << ": a wrong record";
          found.emplace(std::pair(seq, page), record);
          return true;
        });
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << what << ": " << status;
    EXPECT_TRUE(!status.ok() || holds == Holds::kOwnRecords ||
                std::ranges::count(states_, found) > 0)
        << what << ": " << found.size() << " records, which it never had";
    return !status.ok();
  }

  void Flip(const std::string& file, uint64_t at) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    const int byte = bytes.get();
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(static_cast<char>(byte ^ (1 << (random_() % 8))));
  }

  TempDir folder_;
  std::mt19937_64 random_ = SeededRandom();
  std::vector<Extents> states_;
  Extents written_;
  LogCapture log_;  // RocksDB's complaints
};

TEST_F(LedgerDamage, NoneIsRead) { EXPECT_FALSE(IsRefused(Copy(), "whole")); }

TEST_F(LedgerDamage, MissingFilesAreRefused) {
  for (const std::string kind : {"CURRENT", "MANIFEST-", ".sst"}) {
    const std::string path = Copy();
    for (const std::string& name : FilesOf(kind)) {
      fs::remove(fs::path(path) / name);
    }
    EXPECT_TRUE(IsRefused(path, "no " + kind));
  }
}

TEST_F(LedgerDamage, MissingLogLosesWhatWasInIt) {
  const std::string path = Copy();
  for (const std::string& name : FilesOf(".log")) {
    fs::remove(fs::path(path) / name);
  }
  (void)IsRefused(path, "no log");
}

TEST_F(LedgerDamage, TruncatedFilesAreRefusedOrAPrefix) {
  for (const std::string kind : {"CURRENT", "MANIFEST-", ".sst", ".log"}) {
    for (const std::string& name : FilesOf(kind)) {
      const uint64_t bytes = fs::file_size(fs::path(folder_.File("killed")) / name);
      for (int i = 0; i < 8; ++i) {
        const std::string path = Copy();
        const uint64_t kept = i == 0 ? 0 : random_() % bytes;
        fs::resize_file(fs::path(path) / name, kept);
        const std::string what = name + " cut to " + std::to_string(kept);
        const bool is_refused = IsRefused(path, what, HoldsWithout(kind));
        EXPECT_TRUE(is_refused || kind == ".log" || kind == "MANIFEST-") << what;
      }
    }
  }
}

TEST_F(LedgerDamage, FlippedBitsAreRefusedOrAPrefix) {
  for (const std::string kind : {"CURRENT", "MANIFEST-", ".sst", ".log", "IDENTITY", "OPTIONS-"}) {
    for (const std::string& name : FilesOf(kind)) {
      const uint64_t bytes = fs::file_size(fs::path(folder_.File("killed")) / name);
      for (int i = 0; i < 12 && bytes > 0; ++i) {
        const std::string path = Copy();
        const uint64_t at = random_() % bytes;
        Flip((fs::path(path) / name).string(), at);
        (void)IsRefused(path, name + " flipped at " + std::to_string(at), HoldsWithout(kind));
      }
    }
  }
}

TEST_F(LedgerDamage, AnotherLedgersFilesAreRefusedOrReadAsTheirs) {
  auto other = Ledger::Open({.path = folder_.File("other"), .create = true}).value();
  Ledger::Batch batch;
  batch.PutExtent(9, 1, RandomExtent(random_));
  ASSERT_TRUE(other->Write(batch, true).ok());
  ASSERT_TRUE(other->Compact().ok());
  other.reset();
  const std::string path = Copy();
  for (const auto& entry : fs::directory_iterator(folder_.File("other"))) {
    if (absl::EndsWith(entry.path().string(), ".sst")) {
      fs::copy_file(entry.path(), fs::path(path) / FilesOf(".sst").front(),
                    fs::copy_options::overwrite_existing);
    }
  }
  EXPECT_TRUE(IsRefused(path, "a table of another ledger"));
}

}  // namespace
}  // namespace cairn
