// SPDX-License-Identifier: Apache-2.0
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace cairn {
namespace {

absl::Time Soon() { return MonotonicNow() + absl::Seconds(20); }

TEST(BoundedQueue, RefusesWhatDoesNotFitAndLeavesItAlone) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.TryPush(std::move(third)));
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(queue.Count(), 2);
  EXPECT_EQ(queue.Capacity(), 2);
  EXPECT_EQ(**queue.TryPop(), 1);
  EXPECT_TRUE(queue.TryPush(std::move(third)));
  EXPECT_EQ(**queue.PopUntil(Soon()), 2);
  EXPECT_EQ(**queue.PopUntil(Soon()), 3);
  EXPECT_FALSE(queue.TryPop().has_value());
}

TEST(BoundedQueue, PopEndsAtItsDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_FALSE(queue.PopUntil(MonotonicNow() + absl::Milliseconds(5)).has_value());
  EXPECT_FALSE(queue.PopUntil(absl::InfinitePast()).has_value());
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_EQ(queue.PopUntil(absl::InfinitePast()), 1);
}

TEST(BoundedQueue, CloseWakesWaitersAndKeepsWhatIsThere) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(5));
  queue.Close();
  EXPECT_TRUE(queue.is_closed());
  EXPECT_FALSE(queue.TryPush(6));
  EXPECT_EQ(queue.PopUntil(Soon()), 5);
  EXPECT_FALSE(queue.PopUntil(absl::InfiniteFuture()).has_value());

  BoundedQueue<int> empty(1);
  std::thread waiter(
      [&empty] { EXPECT_FALSE(empty.PopUntil(absl::InfiniteFuture()).has_value()); });
  empty.Close();
  waiter.join();
}

TEST(BoundedQueue, EveryValueArrivesOnce) {
  constexpr int kPerProducer = 2000;
  BoundedQueue<int> queue(8);
  std::atomic<long> sum{0};
  std::atomic<int> count{0};
  std::vector<std::thread> producers;
  std::vector<std::thread> consumers;
  for (int i = 0; i < 2; ++i) {
    consumers.emplace_back([&] {
      while (const std::optional<int> value = queue.PopUntil(Soon())) {
        sum += *value;
        ++count;
      }
    });
    producers.emplace_back([&] {
      for (int value = 1; value <= kPerProducer;) {
        int copy = value;
        if (queue.TryPush(std::move(copy))) {
          ++value;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  queue.Close();
  for (std::thread& consumer : consumers) {
    consumer.join();
  }
  EXPECT_EQ(count, 2 * kPerProducer);
  EXPECT_EQ(sum, 2L * kPerProducer * (kPerProducer + 1) / 2);
}

}  // namespace
}  // namespace cairn
