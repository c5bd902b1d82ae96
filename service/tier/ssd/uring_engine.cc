// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/io_engine.h"

#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "service/tier/ssd/io_queue.h"

namespace cairn {
namespace {

// The number of pieces that the kernel may have. The budgets of bytes are usually reached first,
// except with pieces of a few pages.
constexpr unsigned kEntries = 128;
// Needed for io_uring_wait_cqe_timeout() and a queue that cannot overflow. Linux 5.11 has both.
constexpr unsigned kFeatures = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
// The user_data of the poll of the eventfd. All other values are numbers of slots.
constexpr uint64_t kWake = kEntries;
constexpr absl::Duration kSleepMax = absl::Hours(1);

// Owns a ring. Thread-safety: Thread-compatible.
class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (is_open_) {
      io_uring_queue_exit(&ring_);
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  absl::Status Open() {
    // The queue has more entries than slots, because the eventfd also needs one.
    if (const int result = io_uring_queue_init(2 * kEntries, &ring_, 0); result < 0) {
      return absl::FailedPreconditionError(
          absl::ErrnoToStatus(-result, "io_uring_setup").message());
    }
    is_open_ = true;
    if ((ring_.features & kFeatures) != kFeatures) {
      return absl::FailedPreconditionError("the kernel's io_uring is older than Linux 5.11");
    }
    return Try();
  }
  io_uring& get() { return ring_; }

 private:
  // Tries one operation. A seccomp filter may allow making a ring, but not using it.
  absl::Status Try() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    io_uring_cqe* cqe = nullptr;
    int result = io_uring_submit(&ring_);
    if (result >= 0) {
      result = io_uring_wait_cqe(&ring_, &cqe);
    }
    if (result < 0) {
      return absl::FailedPreconditionError(
          absl::ErrnoToStatus(-result, "io_uring_enter").message());
    }
    io_uring_cqe_seen(&ring_, cqe);
    return absl::OkStatus();
  }

  io_uring ring_{};
  bool is_open_ = false;
};

class UringEngine final : public IoEngine {
 public:
  UringEngine(const IoLimits& limits, std::unique_ptr<Ring> ring, Fd wake)
      : queue_(limits, RealClock::Get()), ring_(std::move(ring)), wake_(std::move(wake)) {
    for (uint32_t slot = 0; slot < kEntries; ++slot) {
      free_.push_back(slot);
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~UringEngine() override { Stop(absl::InfiniteFuture()); }

  std::string_view name() const override { return "uring"; }
  IoId Submit(const IoTransfer& transfer, IoDone done) override {
    const IoId id = queue_.Submit(transfer, std::move(done));
    Wake();
    return id;
  }
  void Cancel(IoId id) override {
    queue_.Cancel(id);
    Wake();  // those behind the cancelled one
  }
  bool Stop(absl::Time deadline) override {
    queue_.Stop();
    Wake();
    if (!queue_.AwaitIdle(deadline)) {
      return false;
    }
    if (thread_.joinable()) {
      thread_.join();
    }
    return true;
  }
  size_t transfer_count() const override { return queue_.transfer_count(); }
  void Report(MetricSink& sink, MetricLabels labels) const override {
    queue_.Report(sink, labels, name());
  }

 private:
  struct Ended {
    uint64_t slot;
    int32_t result;
  };

  void Wake() {
    // The exchange pairs with the one in Run(). The caller that reads false writes to the eventfd.
    // If it reads true, the thread will still look into the queue.
    if (!is_awake_.exchange(true, std::memory_order_acq_rel)) {
      const uint64_t one = 1;
      std::ignore = ::write(wake_.get(), &one, sizeof(one));  // can fail only if it is awake
    }
  }

  void Run() {
    pthread_setname_np(pthread_self(), "io-ring");
    AwaitWake();
    while (true) {  // until the queue stops and the kernel has no piece
      is_awake_.exchange(false, std::memory_order_acq_rel);  // pairs with Wake()
      const absl::Time late = queue_.EndLate();
      Begin();
      if (queue_.is_stopping() && free_.size() == kEntries) {
        return;
      }
      Sleep(late);
      is_awake_.store(true, std::memory_order_relaxed);
      Reap();
    }
  }

  void AwaitWake() {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_->get());
    io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
    io_uring_sqe_set_data64(sqe, kWake);
  }

  void Begin() {
    while (!free_.empty()) {  // each iteration takes a slot
      const std::optional<IoPiece> piece = queue_.Take();
      if (!piece.has_value()) {
        return;
      }
      const uint32_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = *piece;
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_->get());
      CAIRN_CHECK(sqe != nullptr);  // there are more entries than slots
      const IoPiece& kept = slots_[slot];
      const auto count = static_cast<unsigned>(kept.parts_count);
      if (kept.kind == IoKind::kRead) {
        io_uring_prep_readv(sqe, kept.fd, kept.parts.data(), count, kept.offset);
      } else {
        io_uring_prep_writev(sqe, kept.fd, kept.parts.data(), count, kept.offset);
      }
      io_uring_sqe_set_data64(sqe, slot);
    }
  }

  // Submits the prepared pieces, and waits for a completion or a deadline.
  void Sleep(absl::Time late) {
    const absl::Duration rest = std::clamp(late - MonotonicNow(), absl::ZeroDuration(), kSleepMax);
    const timespec time = absl::ToTimespec(rest);
    __kernel_timespec timeout = {.tv_sec = time.tv_sec, .tv_nsec = time.tv_nsec};
    io_uring_cqe* cqe = nullptr;
    const int result = io_uring_submit_and_wait_timeout(&ring_->get(), &cqe, 1, &timeout, nullptr);
    CAIRN_CHECK(result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN ||
                    result == -EBUSY,
                absl::StrCat("io_uring_enter: ", result));
  }

  void Reap() {
    std::array<io_uring_cqe*, kEntries + 1> cqes;
    const unsigned count = io_uring_peek_batch_cqe(&ring_->get(), cqes.data(), cqes.size());
    std::array<Ended, kEntries + 1> ended;
    for (unsigned i = 0; i < count; ++i) {
      ended[i] = {io_uring_cqe_get_data64(cqes[i]), cqes[i]->res};
    }
    io_uring_cq_advance(&ring_->get(), count);
    for (unsigned i = 0; i < count; ++i) {
      if (ended[i].slot == kWake) {
        uint64_t wakes = 0;
        std::ignore = ::read(wake_.get(), &wakes, sizeof(wakes));
        AwaitWake();
        continue;
      }
      const IoPiece piece = slots_[ended[i].slot];
      free_.push_back(static_cast<uint32_t>(ended[i].slot));
      queue_.End(piece, ended[i].result);
    }
  }

  IoQueue queue_;
  const std::unique_ptr<Ring> ring_;
  const Fd wake_;
  std::atomic<bool> is_awake_{true};
  // Used by the thread only.
  std::array<IoPiece, kEntries> slots_;
  std::vector<uint32_t> free_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits& limits) {
  auto ring = std::make_unique<Ring>();
  CAIRN_RETURN_IF_ERROR(ring->Open());
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_valid()) {
    return absl::FailedPreconditionError(absl::ErrnoToStatus(errno, "eventfd").message());
  }
  return std::make_unique<UringEngine>(limits, std::move(ring), std::move(wake));
}

}  // namespace cairn
