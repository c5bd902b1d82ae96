// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "tests/support/random.h"

namespace cairn {
namespace {

static_assert(4_KiB == 4096 && 1_MiB == kMiB && 2_GiB == 2 * kGiB);

TEST(Units, ParsesWhatItShould) {
  EXPECT_EQ(ParseBytes("0").value(), 0);
  EXPECT_EQ(ParseBytes("17").value(), 17);
  EXPECT_EQ(ParseBytes("17B").value(), 17);
  EXPECT_EQ(ParseBytes("4KiB").value(), 4_KiB);
  EXPECT_EQ(ParseBytes("512Mi").value(), 512_MiB);
  EXPECT_EQ(ParseBytes("4GiB").value(), 4_GiB);
  EXPECT_EQ(ParseBytes("9223372036854775807").value(), std::numeric_limits<std::int64_t>::max());
}

TEST(Units, RefusesTheRest) {
  for (const std::string text :
       {"", "GiB", "-1", "+1", " 1", "1 ", "1 GiB", "1.5GiB", "4KB", "4K", "4G", "4gib", "4GiBB",
        "9223372036854775808", "99999999999999999999999", "8388608TiB", "1GiB\n"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParseBytes(std::string("4\0GiB", 6)).ok(), false);
}

TEST(Units, FormatReadsBackWhereExact) {
  EXPECT_EQ(FormatBytes(0), "0B");
  EXPECT_EQ(FormatBytes(1023), "1023B");
  EXPECT_EQ(FormatBytes(4_GiB), "4GiB");
  EXPECT_EQ(FormatBytes(1_GiB + 512_MiB), "1.5GiB");
  EXPECT_EQ(FormatBytes(1_MiB + 1), "1.0MiB");
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t bytes = (random() % 1023 + 1) << (10 * (random() % 4));
    EXPECT_EQ(ParseBytes(FormatBytes(bytes)).value(), bytes);
  }
}

}  // namespace
}  // namespace cairn
