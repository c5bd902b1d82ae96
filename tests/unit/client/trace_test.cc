// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/trace.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace cairn {
namespace {

const std::string kGiven = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(Traceparent, TheLastEightBytesOfTheTraceCount) {
  EXPECT_EQ(ParseTraceparent(kGiven).value_or(0), 0xA3CE929D0E0E4736u);
  EXPECT_EQ(ParseTraceparent("cc" + kGiven.substr(2) + "-later").value_or(0), 0xA3CE929D0E0E4736u);
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

TEST(TraceScope, IsOfItsThreadAndNests) {
  EXPECT_EQ(CurrentTrace(), 0u);
  {
    const TraceScope outer(1);
    {
      const TraceScope inner(2);
      EXPECT_EQ(CurrentTrace(), 2u);
      std::thread([] { EXPECT_EQ(CurrentTrace(), 0u); }).join();
    }
    EXPECT_EQ(CurrentTrace(), 1u);
  }
  EXPECT_EQ(CurrentTrace(), 0u);
}

}  // namespace
}  // namespace cairn
