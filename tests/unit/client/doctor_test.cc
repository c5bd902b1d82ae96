// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_join.h"
#include "client/cli/machine.h"
#include "client/cli/scrape.h"
#include "kernels/backend.h"
#include "tests/support/temp_dir.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

// A machine by its files.
class MachineTest : public ::testing::Test {
 protected:
  void Has(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  std::string root() { return folder_.path().string(); }

  TempDir folder_;
};

constexpr char kThp[] = "/sys/kernel/mm/transparent_hugepage/enabled";

TEST_F(MachineTest, HugePagesAreThoseSetAsideElseTransparentOnes) {
  Has("/proc/meminfo",
      "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB");
  EXPECT_EQ(CheckHugePages(root()).verdict, Verdict::kWarn);
  Has(kThp, "always madvise [never]");
  EXPECT_EQ(CheckHugePages(root()).verdict, Verdict::kWarn);
  EXPECT_THAT(CheckHugePages(root()).advice, HasSubstr("echo madvise >"));
  Has(kThp, "always [madvise] never");
  EXPECT_EQ(CheckHugePages(root()).verdict, Verdict::kOk);
  EXPECT_EQ(CheckHugePages(root()).found,
            "none reserved, transparent ones: always [madvise] never");
  Has("/proc/meminfo",
      "HugePages_Total:    1024\nHugePages_Free:      512\nHugepagesize:       2048 kB");
  EXPECT_EQ(CheckHugePages(root()).found, "1GiB free of 2GiB reserved");
  Has("/sys/fs/cgroup/hugetlb.2MB.max", "0");
  EXPECT_THAT(CheckHugePages(root()).found, HasSubstr("the container may use none"));
}

TEST_F(MachineTest, MemoryIsThatOfTheMachineAndOfTheContainer) {
  Has("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB");
  EXPECT_EQ(CheckMemory(root()).found, "8GiB free of 16GiB");
  Has("/proc/self/cgroup", "0::/\n");
  Has("/sys/fs/cgroup/memory.max", "4294967296");
  EXPECT_EQ(CheckMemory(root()).found, "8GiB free of 16GiB, the container's limit is 4GiB");
}

TEST_F(MachineTest, ASlowClockIsWarnedOf) {
  constexpr char kSource[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
  Has(kSource, "tsc");
  EXPECT_THAT(CheckClock(root()).found, HasSubstr("monotonic from tsc"));
  Has(kSource, "hpet");
  EXPECT_EQ(CheckClock(root()).verdict, Verdict::kWarn);
  EXPECT_THAT(CheckClock(root()).advice, HasSubstr("clocksource=tsc"));
}

TEST_F(MachineTest, LimitsAreThoseOfTheProcess) {
  EXPECT_EQ(CheckLockedMemory(RLIM_INFINITY).verdict, Verdict::kOk);
  EXPECT_EQ(CheckLockedMemory(8 << 20).found, "at most 8MiB");
  EXPECT_EQ(CheckLockedMemory(8 << 20).verdict, Verdict::kWarn);
  EXPECT_EQ(CheckOpenFiles(65536).verdict, Verdict::kOk);
  EXPECT_EQ(CheckOpenFiles(1024).verdict, Verdict::kWarn);
}

TEST_F(MachineTest, AFolderHasToBeOnADisk) {
  const Finding absent = CheckSsdFolder(folder_.File("absent"));
  EXPECT_EQ(absent.verdict, Verdict::kFail);
  EXPECT_THAT(absent.advice, HasSubstr("create it"));
  const Finding memory = CheckSsdFolder("/dev/shm");
  EXPECT_EQ(memory.verdict, Verdict::kFail);
  EXPECT_THAT(memory.found, HasSubstr("tmpfs"));
  const Finding disk = CheckSsdFolder(CAIRN_TEST_DISK);
  EXPECT_EQ(disk.verdict, Verdict::kOk) << disk.found;
  EXPECT_THAT(disk.found, HasSubstr("takes O_DIRECT"));
}

TEST_F(MachineTest, ADeviceIsNamedAndNoneIsNoFault) {
  const Finding found = CheckKernels();
  if (kernels::Probe().is_available) {
    EXPECT_EQ(found.verdict, Verdict::kOk);
    EXPECT_EQ(found.found, absl::StrJoin(CudaDevices(), ", "));
  } else {
    EXPECT_EQ(found.verdict, Verdict::kAbsent);
    EXPECT_THAT(found.found, testing::StartsWith("none: "));
    EXPECT_EQ("unavailable: " + found.found.substr(6), std::string(kernels::Probe().reason));
  }
}

TEST_F(MachineTest, EveryCheckOfThisMachineSaysWhatItFound) {
  for (const Finding& finding : CheckMachine()) {
    EXPECT_FALSE(finding.found.empty()) << finding.check;
    const bool is_fine = finding.verdict == Verdict::kOk || finding.verdict == Verdict::kAbsent;
    EXPECT_EQ(finding.advice.empty(), is_fine) << finding.check;
  }
}

TEST(ScrapeTest, SumsTheSeriesThatHaveTheLabels) {
  const Scrape scrape = Scrape::Parse(
      "# TYPE a counter\na{op=\"get\",tier=\"host\"} 3\na{op=\"get\",tier=\"ssd\"} 4\n"
      "a{op=\"put\",tier=\"host\"} 5\nab 7\nb{version=\"1.2\"} 1\nnonsense\n");
  EXPECT_EQ(scrape.Sum("a"), 12);
  EXPECT_EQ(scrape.Sum("a", {"op=\"get\""}), 7);
  EXPECT_EQ(scrape.Sum("a", {"op=\"get\"", "tier=\"ssd\""}), 4);
  EXPECT_EQ(scrape.Sum("ab"), 7);
  EXPECT_EQ(scrape.Sum("c"), 0);
  EXPECT_EQ(scrape.LabelOf("b", "version"), "1.2");
  EXPECT_EQ(scrape.LabelOf("b", "other"), "");
}

}  // namespace
}  // namespace cairn::cli
