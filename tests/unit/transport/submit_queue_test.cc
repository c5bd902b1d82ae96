// SPDX-License-Identifier: Apache-2.0
#include "transport/submit_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "base/check.h"

namespace cairn::transport {
namespace {

class NoLane final : public Lane {
 public:
  int index() const override { return 0; }
  absl::Status Submit(absl::AnyInvocable<void(Lane&)>) override { return absl::OkStatus(); }
  void Receive(Arrival, std::span<std::byte>, absl::Time, ReceiveDone) override {}
  void Reply(const ReplyTo&, const proto::FrameBytes&, std::span<const std::byte>, absl::Time,
             ReplyDone) override {}
  void Break(PeerId) override {}
};

bool IsReadable(int fd) {
  pollfd readable{fd, POLLIN, 0};
  return poll(&readable, 1, 0) == 1;
}

TEST(SubmitQueue, RunsTasksInOrderAndThoseOfTasksLater) {
  SubmitQueue queue(8);
  NoLane lane;
  std::vector<int> ran;
  ASSERT_TRUE(queue
                  .Push([&](Lane&) {
                    ran.push_back(1);
                    CAIRN_CHECK(queue.Push([&](Lane&) { ran.push_back(3); }).ok());
                  })
                  .ok());
  ASSERT_TRUE(queue.Push([&](Lane&) { ran.push_back(2); }).ok());
  EXPECT_EQ(queue.RunAll(lane), 2);
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_FALSE(queue.IsEmpty());
  EXPECT_EQ(queue.RunAll(lane), 1);
  EXPECT_EQ(ran.back(), 3);
}

TEST(SubmitQueue, RefusesWhenFullAndWhenClosed) {
  SubmitQueue queue(2);
  NoLane lane;
  EXPECT_TRUE(queue.Push([](Lane&) {}).ok());
  EXPECT_TRUE(queue.Push([](Lane&) {}).ok());
  EXPECT_EQ(queue.Push([](Lane&) {}).code(), absl::StatusCode::kResourceExhausted);
  queue.Close();
  EXPECT_EQ(queue.Push([](Lane&) {}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queue.RunAll(lane), 2);  // what was taken still runs
  EXPECT_EQ(queue.Push([](Lane&) {}).code(), absl::StatusCode::kUnavailable);
}

TEST(SubmitQueue, WakesOnlyALaneThatSleeps) {
  SubmitQueue queue(8);
  NoLane lane;
  ASSERT_TRUE(queue.Push([](Lane&) {}).ok());
  EXPECT_FALSE(IsReadable(queue.event_fd()));  // it was awake
  EXPECT_FALSE(queue.PrepareSleep());          // there is work
  queue.RunAll(lane);
  ASSERT_TRUE(queue.PrepareSleep());
  ASSERT_TRUE(queue.Push([](Lane&) {}).ok());
  EXPECT_TRUE(IsReadable(queue.event_fd()));
  queue.Awake();
  EXPECT_FALSE(IsReadable(queue.event_fd()));
  queue.Wake();
  EXPECT_TRUE(IsReadable(queue.event_fd()));
}

}  // namespace
}  // namespace cairn::transport
