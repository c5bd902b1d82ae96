// SPDX-License-Identifier: Apache-2.0
#include "service/memory_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Config ConfigOf(const std::vector<std::string>& flags) {
  const auto line = ParseCommandLine(flags, {});
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->config : Config();
}

MemoryRoom RoomOf(uint64_t bytes, uint64_t huge_page_bytes = 0) {
  return {.bytes = bytes, .bound = "memory.max", .huge_page_bytes = huge_page_bytes};
}

TEST(MemoryNeedsTest, WhatIsTakenAtStartHasToFit) {
  const Config config = ConfigOf({"--host-bytes=4GiB", "--staging-bytes=512MiB"});
  EXPECT_EQ(StartBytesOf(config), 4_GiB + 512_MiB);
  EXPECT_TRUE(CheckMemoryRoom(config, RoomOf(4_GiB + 512_MiB)).ok());
  const absl::Status status = CheckMemoryRoom(config, RoomOf(3_GiB));
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), HasSubstr("host-bytes 4GiB and staging-bytes 512MiB"));
  EXPECT_THAT(status.message(), HasSubstr("3GiB, limited by memory.max: lower host-bytes to "));
  // As long as nothing else changes, the advice holds.
  const uint64_t beside = BytesMaxOf(config) - config.host_bytes;
  EXPECT_THAT(status.message(), HasSubstr(std::to_string((3_GiB - beside) / kMiB) + "MiB at most"));
  EXPECT_THAT(CheckMemoryRoom(config, RoomOf(16_MiB)).message(), HasSubstr("lower both"));
}

TEST(MemoryNeedsTest, SharedMemoryThatIsInTheWayIsNamed) {
  const Config config = ConfigOf({"--host-bytes=4GiB"});
  MemoryRoom room = RoomOf(3_GiB);
  EXPECT_FALSE(MayWaitForRoom(config, room));
  EXPECT_THAT(CheckMemoryRoom(config, room).message(), Not(HasSubstr("shared memory")));
  room.shared_bytes = 2_GiB;
  EXPECT_TRUE(MayWaitForRoom(config, room));
  EXPECT_THAT(CheckMemoryRoom(config, room).message(),
              HasSubstr("2GiB of shared memory are in use"));
  room = RoomOf(5_GiB);
  room.shared_bytes = 2_GiB;
  EXPECT_FALSE(MayWaitForRoom(config, room));
}

TEST(MemoryNeedsTest, AFullIndexIsWarnedOf) {
  const Config config = ConfigOf({"--host-bytes=4GiB", "--index-bytes=2GiB"});
  EXPECT_THAT(MemoryWarning(config, RoomOf(BytesMaxOf(config))), IsEmpty());
  EXPECT_TRUE(CheckMemoryRoom(config, RoomOf(5_GiB)).ok());
  EXPECT_THAT(MemoryWarning(config, RoomOf(5_GiB)), HasSubstr("once the index is full"));
}

TEST(MemoryNeedsTest, WhatTheDrivesTakeOfMemoryCounts) {
  const Config without = ConfigOf({"--host-bytes=4GiB"});
  const Config with = ConfigOf({"--host-bytes=4GiB", "--ssd=/a=1TiB,/b=1TiB"});
  // 128 bytes for each 512 KiB, and two write buffers of 48 MiB, of each drive.
  EXPECT_EQ(BytesMaxOf(with) - BytesMaxOf(without), 2 * (256_MiB + 96_MiB));
}

TEST(MemoryNeedsTest, TheTablesOfAMemberCount) {
  const Config alone = ConfigOf({"--host-bytes=4GiB"});
  Config member = alone;
  member.members = "file:/members";
  member.location_bytes = 256_MiB;
  EXPECT_EQ(BytesMaxOf(member) - BytesMaxOf(alone), 256_MiB + 64_MiB);
}

TEST(MemoryNeedsTest, HugePagesThatAreSetAsideAreNotOfTheRest) {
  const Config config = ConfigOf({"--host-bytes=4GiB"});
  EXPECT_FALSE(CheckMemoryRoom(config, RoomOf(1_GiB, 4_GiB)).ok());  // not enough for staging
  EXPECT_TRUE(CheckMemoryRoom(config, RoomOf(1_GiB, 8_GiB)).ok());
  EXPECT_THAT(MemoryWarning(config, RoomOf(1_GiB, 8_GiB)), IsEmpty());
  EXPECT_TRUE(CheckMemoryRoom(ConfigOf({"--host-bytes=4GiB", "--huge-pages=required"}),
                              RoomOf(1_GiB))
                  .ok());  // the arena refuses others itself
}

}  // namespace
}  // namespace cairn
