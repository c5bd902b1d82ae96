// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/io_engine.h"

#include <pthread.h>

#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/tier/ssd/io_queue.h"

namespace cairn {
namespace {

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(const IoLimits& limits, IoCall call)
      : call_(std::move(call)), queue_(limits, RealClock::Get()) {
    CAIRN_CHECK(limits.read_threads > 0 && limits.write_threads > 0);
    for (int i = 0; i < limits.read_threads; ++i) {
      threads_.emplace_back([this, i] { Run(IoKind::kRead, absl::StrCat("io-read-", i)); });
    }
    for (int i = 0; i < limits.write_threads; ++i) {
      threads_.emplace_back([this, i] { Run(IoKind::kWrite, absl::StrCat("io-write-", i)); });
    }
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "io-late");
      queue_.KeepDeadlines();
    });
  }
  ~ThreadEngine() override { Stop(absl::InfiniteFuture()); }

  std::string_view name() const override { return "threads"; }
  IoId Submit(const IoTransfer& transfer, IoDone done) override {
    return queue_.Submit(transfer, std::move(done));
  }
  void Cancel(IoId id) override { queue_.Cancel(id); }
  bool Stop(absl::Time deadline) override {
    queue_.Stop();
    if (!queue_.AwaitIdle(deadline)) {
      return false;
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) {
        thread.join();
      }
    }
    return true;
  }
  size_t transfer_count() const override { return queue_.transfer_count(); }
  void Report(MetricSink& sink, MetricLabels labels) const override {
    queue_.Report(sink, labels, name());
  }

 private:
  void Run(IoKind kind, const std::string& name) {
    pthread_setname_np(pthread_self(), name.c_str());
    while (const std::optional<IoPiece> piece = queue_.AwaitPiece(kind)) {
      const ssize_t moved = call_(kind, piece->fd, piece->parts.data(), piece->parts_count,
                                  static_cast<off_t>(piece->offset));
      queue_.End(*piece, moved < 0 ? -errno : moved);
    }
  }

  const IoCall call_;
  IoQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace

ssize_t CallKernel(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset) {
  return kind == IoKind::kRead ? ::preadv(fd, parts, parts_count, offset)
                               : ::pwritev(fd, parts, parts_count, offset);
}

std::unique_ptr<IoEngine> MakeThreadEngine(const IoLimits& limits, IoCall call) {
  return std::make_unique<ThreadEngine>(limits, std::move(call));
}

#ifndef CAIRN_HAS_URING  // else in uring_engine.cc
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits&) {
  return absl::FailedPreconditionError("built without liburing");
}
#endif

absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoChoice choice, const IoLimits& limits) {
  if (choice == IoChoice::kThreads) {
    return MakeThreadEngine(limits);
  }
  absl::StatusOr<std::unique_ptr<IoEngine>> uring = MakeUringEngine(limits);
  if (uring.ok() || choice == IoChoice::kUring) {
    return uring;
  }
  LogInfo("ssd", "io_uring is refused: using threads", {{"reason", uring.status().message()}});
  return MakeThreadEngine(limits);
}

}  // namespace cairn
