// SPDX-License-Identifier: Apache-2.0
#include "base/memory_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class MemoryRoomTest : public ::testing::Test {
 protected:
  std::string root() const { return folder_.path(); }
  void Has(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

 private:
  TempDir folder_;
};

TEST_F(MemoryRoomTest, NothingThatCanBeReadIsNoBound) {
  EXPECT_EQ(FindMemoryRoom(root()).bytes, UINT64_MAX);
  EXPECT_EQ(FindMemoryRoom(root()).bound, "");
}

TEST_F(MemoryRoomTest, TheMachineBoundsIt) {
  Has("/proc/meminfo",
      "MemTotal: 16777216 kB\nMemAvailable:    8388608 kB\nHugePages_Free:    512\n"
      "Hugepagesize:    2048 kB");
  EXPECT_EQ(FindMemoryRoom(root()).bytes, 8_GiB);
  EXPECT_THAT(FindMemoryRoom(root()).bound, HasSubstr("MemAvailable"));
  EXPECT_EQ(FindMemoryRoom(root()).huge_page_bytes, 1_GiB);
}

TEST_F(MemoryRoomTest, AGroupOfVersion2BoundsItAndThoseAroundIt) {
  Has("/proc/meminfo", "MemAvailable:    8388608 kB");
  Has("/proc/self/cgroup", "0::/pod/engine");
  Has("/sys/fs/cgroup/pod/engine/memory.max", "max");
  Has("/sys/fs/cgroup/pod/memory.max", std::to_string(4_GiB));
  Has("/sys/fs/cgroup/pod/memory.current", std::to_string(3_GiB));
  Has("/sys/fs/cgroup/pod/memory.stat",
      "anon 1073741824\nfile 2147483648\ninactive_file 1073741824");
  const MemoryRoom room = FindMemoryRoom(root());
  EXPECT_EQ(room.bytes, 2_GiB);  // pages of files that nobody used lately go when room is wanted
  EXPECT_EQ(room.cgroup_limit_bytes, 4_GiB);
  EXPECT_THAT(room.bound, HasSubstr("/sys/fs/cgroup/pod/memory.max (4GiB, 2GiB in use)"));
}

TEST_F(MemoryRoomTest, AGroupOfVersion1BoundsIt) {
  Has("/proc/self/cgroup", "8:pids:/other\n4:memory:/docker/a1\n0::/");
  Has("/sys/fs/cgroup/memory/docker/a1/memory.limit_in_bytes", std::to_string(1_GiB));
  Has("/sys/fs/cgroup/memory/docker/a1/memory.usage_in_bytes", std::to_string(256_MiB));
  Has("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  EXPECT_EQ(FindMemoryRoom(root()).bytes, 768_MiB);
  EXPECT_EQ(FindMemoryRoom(root()).cgroup_limit_bytes, 1_GiB);
}

// A container sees its own group as the root, and the path that the host knows.
TEST_F(MemoryRoomTest, AContainersGroupIsTheRootOfItsTree) {
  Has("/proc/self/cgroup", "4:memory:/docker/a1");
  Has("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(1_GiB));
  EXPECT_EQ(FindMemoryRoom(root()).bytes, 1_GiB);
}

TEST_F(MemoryRoomTest, AGroupThatHoldsMoreThanItsLimitLeavesNothing) {
  Has("/proc/self/cgroup", "0::/");
  Has("/sys/fs/cgroup/memory.max", std::to_string(1_GiB));
  Has("/sys/fs/cgroup/memory.current", std::to_string(2_GiB));
  EXPECT_EQ(FindMemoryRoom(root()).bytes, 0u);
}

}  // namespace
}  // namespace cairn
