// SPDX-License-Identifier: Apache-2.0
#include "proto/traceparent.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn::proto {
namespace {

const std::string kGiven = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(Traceparent, TheLastEightBytesOfTheTraceCountAndAllOfItIsPassedOn) {
  const auto given = ParseTraceparent(kGiven);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->trace(), 0xA3CE929D0E0E4736u);
  EXPECT_EQ(given->text(), kGiven);
  EXPECT_EQ(TraceName(given->trace()), "a3ce929d0e0e4736");
}

TEST(Traceparent, OneOfALaterVersionIsPassedOnAsOneOfOurs) {
  const auto later = ParseTraceparent("cc" + kGiven.substr(2) + "-later");
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->text(), kGiven);
}

TEST(Traceparent, ThereMayBeNone) {
  EXPECT_EQ(Traceparent().trace(), 0u);
  EXPECT_EQ(Traceparent().text(), "");
  EXPECT_EQ(TraceName(0), "none");
}

TEST(Traceparent, AllElseIsRefused) {
  const auto poke = [](size_t at, char c) {
    std::string changed = kGiven;
    changed[at] = c;
    return changed;
  };
  for (const std::string& wrong :
       {std::string(), kGiven.substr(1), kGiven.substr(0, 54), kGiven + "-later", kGiven + "0",
        "cc" + kGiven.substr(2) + "0", "ff" + kGiven.substr(2), poke(2, '0'), poke(35, '0'),
        poke(52, '0'), poke(0, 'x'), poke(10, 'A'), poke(30, 'g'), poke(40, ' '), poke(54, '-'),
        "00-4bf92f3577b34da6" + std::string(16, '0') + kGiven.substr(35)}) {
    EXPECT_EQ(ParseTraceparent(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace cairn::proto
