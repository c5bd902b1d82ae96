// SPDX-License-Identifier: Apache-2.0
// A ledger that finds no room, or cannot write: it says so, goes on reading, loses nothing that it
// took, and the process lives.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/tier/ssd/ledger.h"
#include "service/tier/ssd/record.h"
#include "tests/support/log_capture.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/service/ssd/records.h"

namespace cairn {
namespace {

constexpr uint32_t kBatchExtents = 64;  // of a segment, which is one batch

// Flushes often.
Ledger::Options Small(const std::string& path, bool create) {
  return {.path = path, .write_buffer_bytes = Ledger::kWriteBufferBytesMin, .create = create};
}

absl::Status WriteSegment(Ledger& ledger, uint64_t seq, std::mt19937_64& random) {
  Ledger::Batch batch;
  for (uint32_t page = 1; page <= kBatchExtents; ++page) {
    batch.PutExtent(seq, page, RandomExtent(random));
  }
  return ledger.Write(batch, seq % 4 == 0);
}

// Segments from 1 on until one is refused, at most `segments_max`. Returns the last that was taken.
uint64_t WriteUntilRefused(Ledger& ledger, uint64_t segments_max, absl::Status* refusal) {
  std::mt19937_64 random = SeededRandom();
  for (uint64_t seq = 1; seq <= segments_max; ++seq) {
    *refusal = WriteSegment(ledger, seq, random);
    if (!refusal->ok()) {
      return seq - 1;
    }
  }
  return segments_max;
}

// All extents of the segments 1 to `segments` are there; of one more, all or none.
void ExpectSegments(const Ledger& ledger, uint64_t segments) {
  uint64_t extents = 0;
  const absl::Status status = ledger.ScanExtents(
      0, ~uint64_t{0}, [&extents](uint64_t seq, uint32_t page, const ExtentRecord&) {
        EXPECT_EQ(seq, 1 + extents / kBatchExtents);
        EXPECT_EQ(page, 1 + extents % kBatchExtents);
        ++extents;
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(extents == segments * kBatchExtents || extents == (segments + 1) * kBatchExtents)
      << extents << " extents where " << segments << " segments were taken";
}

void ExpectAllRefused(Ledger& ledger, const absl::Status& refusal) {
  std::mt19937_64 random = SeededRandom(1);
  EXPECT_EQ(ledger.health(), refusal);
  EXPECT_EQ(WriteSegment(ledger, 1'000'000, random), refusal);
  EXPECT_EQ(ledger.SyncWal(), refusal);
  EXPECT_EQ(ledger.Compact(), refusal);
}

// A file system of a few MiB, which only this process sees and which goes with it.
class FullDisk : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Before any thread of RocksDB is there: they would stay outside.
    is_private_ = ::unshare(CLONE_NEWNS) == 0 &&
                  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }
  void Mount(const std::string& size) {
    const std::string options = "size=" + size;
    if (!is_private_ ||
        ::mount("tmpfs", folder_.path().c_str(), "tmpfs", flags_, options.c_str()) != 0) {
      GTEST_SKIP() << "cannot mount a small file system: " << std::strerror(errno);
    }
    flags_ = MS_REMOUNT;
  }
  ~FullDisk() override {
    if (flags_ != 0) {
      ::umount2(folder_.path().c_str(), MNT_DETACH);
    }
  }
  std::string path() const { return folder_.File("index"); }

  static bool is_private_;
  TempDir folder_;
  unsigned long flags_ = 0;  // of mount(2)
  LogCapture log_;           // RocksDB's complaints
};

bool FullDisk::is_private_ = false;

TEST_F(FullDisk, RefusesWritesAndLosesNothing) {
  for (int round = 0; round < 4; ++round) {
    Mount(absl::StrCat(1200 + 1500 * round, "k"));
    if (IsSkipped()) {
      return;
    }
    absl::Status refusal;
    uint64_t taken = 0;
    {
      auto ledger = Ledger::Open(Small(path(), true));
      ASSERT_TRUE(ledger.ok()) << ledger.status();
      taken = WriteUntilRefused(**ledger, 2000, &refusal);
      ASSERT_TRUE(absl::IsResourceExhausted(refusal)) << refusal;
      EXPECT_GT(taken, 0U);
      ExpectAllRefused(**ledger, refusal);
      ExpectSegments(**ledger, taken);
    }
    Mount("64m");
    auto ledger = Ledger::Open(Small(path(), false));
    ASSERT_TRUE(ledger.ok()) << ledger.status();
    ExpectSegments(**ledger, taken);
    std::mt19937_64 random = SeededRandom();
    EXPECT_TRUE(WriteSegment(**ledger, 1'000'000, random).ok());
  }
}

TEST_F(FullDisk, AtStartWipesNothing) {
  Mount("24m");
  if (IsSkipped()) {
    return;
  }
  absl::Status refusal;
  const uint64_t taken =
      WriteUntilRefused(*Ledger::Open(Small(path(), true)).value(), 100, &refusal);
  ASSERT_EQ(taken, 100U);
  {
    std::ofstream filler(folder_.File("filler"), std::ios::binary);
    const std::string page(4096, 'x');
    while (filler.write(page.data(), 4096).flush()) {
    }
  }
  const absl::Status full = Ledger::Open(Small(path(), false)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  std::filesystem::remove(folder_.File("filler"));
  const auto ledger = Ledger::Open(Small(path(), false));
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  ExpectSegments(**ledger, taken);
}

TEST_F(FullDisk, WithoutRoomForOneSaysSo) {
  Mount("16k");
  if (IsSkipped()) {
    return;
  }
  const absl::Status full = Ledger::Open(Small(path(), true)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
}

// Another errno, without a mount: files may not grow.
TEST(LedgerErrors, AFailedWriteIsTheLast) {
  const LogCapture log;
  const TempDir folder;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  auto ledger = Ledger::Open({.path = folder.File("index"), .create = true}).value();
  const rlimit small{.rlim_cur = 200'000, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status refusal;
  const uint64_t taken = WriteUntilRefused(*ledger, 2000, &refusal);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_TRUE(absl::IsUnavailable(refusal)) << refusal;
  EXPECT_GT(taken, 0U);
  ExpectAllRefused(*ledger, refusal);
  ExpectSegments(*ledger, taken);
  ledger.reset();
  ExpectSegments(*Ledger::Open({.path = folder.File("index")}).value(), taken);
}

}  // namespace
}  // namespace cairn
