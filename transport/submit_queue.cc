// SPDX-License-Identifier: Apache-2.0
#include "transport/submit_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"

namespace cairn::transport {

SubmitQueue::SubmitQueue(size_t tasks_max)
    : tasks_(tasks_max), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CAIRN_CHECK(event_.is_valid(), "no file descriptor left for a lane");
}

absl::Status SubmitQueue::Push(Task task) {
  if (!tasks_.TryPush(std::move(task))) {
    return tasks_.is_closed() ? absl::UnavailableError("the lane is stopping")
                              : absl::ResourceExhaustedError("the lane's queue is full");
  }
  // Pairs with the store in PrepareSleep(). Either this thread sees that the lane sleeps, or the
  // lane sees the task.
  if (is_asleep_.exchange(false)) {
    Wake();
  }
  return absl::OkStatus();
}

void SubmitQueue::Close() { tasks_.Close(); }

void SubmitQueue::Wake() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the event is already set.
  const ssize_t written = write(event_.get(), &one, sizeof(one));
  CAIRN_CHECK(written == sizeof(one) || errno == EAGAIN);
}

int SubmitQueue::RunAll(Lane& lane) {
  const size_t count = tasks_.Count();  // tasks that these tasks submit run in the next turn
  int run = 0;
  for (size_t i = 0; i < count; ++i) {
    std::optional<Task> task = tasks_.TryPop();
    if (!task.has_value()) {
      break;
    }
    (*task)(lane);
    ++run;
  }
  return run;
}

bool SubmitQueue::PrepareSleep() {
  is_asleep_.store(true);  // seq_cst: pairs with the exchange in Push()
  if (tasks_.Count() > 0) {
    is_asleep_.store(false);
    return false;
  }
  return true;
}

void SubmitQueue::Awake() {
  is_asleep_.store(false);
  uint64_t count = 0;
  // EAGAIN: the counter is 0.
  const ssize_t bytes = read(event_.get(), &count, sizeof(count));
  CAIRN_CHECK(bytes == sizeof(count) || errno == EAGAIN);
}

}  // namespace cairn::transport
