// SPDX-License-Identifier: Apache-2.0
#include "base/in_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace cairn {
namespace {

TEST(InFlight, CountsOperations) {
  InFlight in_flight;
  EXPECT_EQ(in_flight.count(), 0U);
  in_flight.Enter();
  in_flight.Enter();
  EXPECT_EQ(in_flight.count(), 2U);
  in_flight.Leave();
  EXPECT_EQ(in_flight.count(), 1U);
  in_flight.Leave();
  EXPECT_EQ(in_flight.count(), 0U);
}

TEST(InFlight, AwaitReturnsAtOnceWithoutOperations) {
  InFlight in_flight;
  in_flight.Await();
  EXPECT_TRUE(in_flight.AwaitUntil(absl::InfinitePast()));
}

TEST(InFlight, AwaitUntilEndsAtItsDeadline) {
  InFlight in_flight;
  in_flight.Enter();
  EXPECT_FALSE(in_flight.AwaitUntil(absl::InfinitePast()));
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(20);
  EXPECT_FALSE(in_flight.AwaitUntil(deadline));
  EXPECT_GE(MonotonicNow(), deadline);
  in_flight.Leave();
}

TEST(InFlight, AwaitWaitsForTheLast) {
  InFlight in_flight;
  in_flight.Enter();
  in_flight.Enter();
  std::atomic<int> ended{0};
  std::thread operations([&] {
    for (int i = 0; i < 2; ++i) {
      ended.fetch_add(1);
      in_flight.Leave();
    }
  });
  in_flight.Await();
  EXPECT_EQ(ended.load(), 2);
  operations.join();
}

// Under the sanitizers: Leave() touches nothing once Await() has returned.
TEST(InFlight, TheOwnerMayBeDestroyedAfterAwait) {
  for (int round = 0; round < 100; ++round) {
    auto in_flight = std::make_unique<InFlight>();
    in_flight->Enter();
    std::thread operation([gate = in_flight.get()] { gate->Leave(); });
    in_flight->Await();
    in_flight.reset();
    operation.join();
  }
}

TEST(InFlightDeathTest, AnOperationMayNotOutliveIt) {
  EXPECT_DEATH(
      {
        InFlight in_flight;
        in_flight.Enter();
      },
      "outlives its owner");
}

}  // namespace
}  // namespace cairn
