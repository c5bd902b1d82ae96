// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "service/limits.h"
#include "service/remote/offered_blocks.h"

namespace cairn {
namespace {

constexpr uint64_t kCapacity = 1000;

TEST(OfferedRoom, FreeMemoryIsRoom) {
  OfferedRoom room;
  const absl::Time now = absl::UnixEpoch();
  EXPECT_TRUE(room.Take(900, 0, kCapacity, now));
  // What is coming uses memory, too: this one needs a tenth of the tier.
  EXPECT_TRUE(room.Take(100, 0, kCapacity, now));
  EXPECT_FALSE(room.Take(1, 0, kCapacity, now));
  room.Settle();
  EXPECT_TRUE(room.Take(900, 0, kCapacity, now)) << "the tier has evicted the rest meanwhile";
}

TEST(OfferedRoom, AShareOfAFullTierMayBeEvictedInTenMinutes) {
  OfferedRoom room;
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(room.Take(10, kCapacity, kCapacity, now)) << i;
  room.Settle();
  EXPECT_FALSE(room.Take(10, kCapacity, kCapacity, now));
  EXPECT_TRUE(room.Take(10, 0, kCapacity, now)) << "free memory does not count";
  now += absl::Seconds(limits::kOfferedUsedSeconds);
  EXPECT_TRUE(room.Take(100, kCapacity, kCapacity, now));
  EXPECT_FALSE(room.Take(10, kCapacity, kCapacity, now));
}

}  // namespace
}  // namespace cairn
