// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/trace.h"

#include <gtest/gtest.h>

#include <thread>

namespace cairn {
namespace {

TEST(TraceScope, IsOfItsThreadAndNests) {
  const Traceparent one =
      ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").value();
  const Traceparent two =
      ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01").value();
  EXPECT_EQ(CurrentTrace(), Traceparent());
  {
    const TraceScope outer(one);
    {
      const TraceScope inner(two);
      EXPECT_EQ(CurrentTrace(), two);
      std::thread([] { EXPECT_EQ(CurrentTrace(), Traceparent()); }).join();
    }
    EXPECT_EQ(CurrentTrace(), one);
  }
  EXPECT_EQ(CurrentTrace(), Traceparent());
}

}  // namespace
}  // namespace cairn
