// SPDX-License-Identifier: Apache-2.0
// A daemon with three devices loses power while clients work: it is killed, and of what it wrote
// and had not synced, pages at random are as they were before (tests/fault/ssd/cut_log.h).
#include <cstdlib>

#include "tests/fault/daemon/restart_fixture.h"
#include "tests/fault/ssd/cut_log.h"

namespace cairn {
namespace {

class DaemonPowerCut : public RestartFixture {
 protected:
  DaemonPowerCut() : DaemonPowerCut(Load{}) {}
  explicit DaemonPowerCut(const Load& load) : RestartFixture(load) {
    io_ = "threads";  // whose calls are the C library's
  }
  ~DaemonPowerCut() override { EndRecord(); }
  // What a daemon writes from now on can be taken back.
  void BeginRecord() {
    ::setenv("LD_PRELOAD", CAIRN_CUT_CALLS, 1);
    ::setenv(kCutRootVariable, disk_.path().c_str(), 1);
    ::setenv(kCutLogVariable, Log().c_str(), 1);
  }
  void EndRecord() {
    for (const char* name : {"LD_PRELOAD", kCutRootVariable, kCutLogVariable}) {
      ::unsetenv(name);
    }
  }
  std::string Log() const { return outside_.File("log"); }
  // A round that ends with the cut. `unbelieved`: syncs of files with it in their path do nothing.
  void CutRound(const Keeper::Expected& expected, const std::string& unbelieved = "") {
    BeginRecord();
    ASSERT_NO_FATAL_FAILURE(Round(expected, /*is_damaged=*/true));
    EndRecord();
    const CutFigures cut = RevertUnsynced(Log(), random_, [&](const std::string& path) {
      return unbelieved.empty() || path.find(unbelieved) == std::string::npos;
    });
    std::filesystem::remove(Log());
    writes_ += cut.writes;
    pages_ += cut.pages;
  }

  const TempDir outside_{std::filesystem::path(CAIRN_TEST_DISK)};
  uint64_t writes_ = 0, pages_ = 0;
};

TEST_F(DaemonPowerCut, LosesNothingThatIsDurable) {
  // On a busy machine a round may end before anything was written that a cut takes back.
  for (int round = 0; round <= Rounds(2) || (pages_ == 0 && round < 20); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    ASSERT_NO_FATAL_FAILURE(CutRound({.is_whole = !may_evict_, .is_closed = false, .spared = {}}));
  }
  Print();
  std::cout << writes_ << " writes, " << pages_ << " pages taken back\n";
  EXPECT_GT(pages_, 0u);
}

class DaemonReclaimCut : public DaemonPowerCut {
 protected:
  DaemonReclaimCut() : DaemonPowerCut(kReclaiming) {}
};

TEST_F(DaemonReclaimCut, LosesNothingThatIsDurableAndBringsNothingBack) {
  // Fills the device, which need not be recorded. An end meets a segment under reclaim about every
  // second time, and may come before anything was written that a cut takes back.
  ASSERT_NO_FATAL_FAILURE(Round({}, /*is_damaged=*/false));
  for (int round = 0; round <= Rounds(3) || ((in_reclaim_ == 0 || pages_ == 0) && round < 30);
       ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    ASSERT_NO_FATAL_FAILURE(CutRound({.is_whole = !may_evict_, .is_closed = false, .spared = {}}));
  }
  Print();
  std::cout << writes_ << " writes, " << pages_ << " pages taken back\n";
  EXPECT_GT(pages_, 0u);
  EXPECT_GT(in_reclaim_, 0);
}

// A daemon that did not sync what it has to would lose durable blocks: the test above would see it.
TEST_F(DaemonPowerCut, ThatTakesBackSegmentsIsSeen) {
  const auto lost = [this] {
    uint64_t sum = 0;
    for (const auto& keeper : keepers_) sum += keeper->counts().lost;
    return sum;
  };
  for (int round = 0; round < 20 && lost() == 0; ++round) {
    ASSERT_NO_FATAL_FAILURE(
        CutRound({.is_whole = false, .is_closed = false, .spared = {}}, "/segments/"));
  }
  EXPECT_GT(lost(), 0u);
}

}  // namespace
}  // namespace cairn
