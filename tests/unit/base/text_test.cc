// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <array>

#include "gtest/gtest.h"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 4> kNames{"status", "spaces", "host-bytes", "ls"};

TEST(Nearest, OneOrTwoEdits) {
  EXPECT_EQ(Nearest("statsu", kNames), "status");  // neighbours swapped
  EXPECT_EQ(Nearest("stauts", kNames), "status");
  EXPECT_EQ(Nearest("host-byte", kNames), "host-bytes");
  EXPECT_EQ(Nearest("space", kNames), "spaces");
  EXPECT_EQ(Nearest("sttaus", kNames), "status");
}

TEST(Nearest, NothingNear) {
  EXPECT_EQ(Nearest("evaluate", kNames), "");
  EXPECT_EQ(Nearest("x", kNames), "");
  EXPECT_EQ(Nearest("", kNames), "");
  EXPECT_EQ(Nearest(std::string(100'000, 's'), kNames), "");
}

TEST(Nearest, AsAQuestion) {
  EXPECT_EQ(DidYouMean("statsu", kNames), " (did you mean status?)");
  EXPECT_EQ(DidYouMean("evaluate", kNames), "");
}

}  // namespace
}  // namespace cairn
