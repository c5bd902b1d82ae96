// SPDX-License-Identifier: Apache-2.0
#include "service/memory/fault_in.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/units.h"

namespace cairn {
namespace {

constexpr uint64_t kStepBytes = 64_MiB;
constexpr uint64_t kSmallPageBytes = 4_KiB;
constexpr unsigned kThreadsMax = 16;
constexpr int kCollapsesMax = 3;  // tries for a page that is busy
constexpr uint64_t kCollapsedBytes = 2_MiB;
constexpr int kMadvisePopulateWrite = 23;  // Linux 5.14; EINVAL before
constexpr int kMadviseCollapse = 25;       // Linux 6.1; EINVAL before

// Allocates the pages. Returns 0 or the error.
int TakePages(std::span<std::byte> pages) {
  int error = 0;
  do {  // a signal interrupts it only now and then
    error = ::madvise(pages.data(), pages.size(), kMadvisePopulateWrite) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error != EINVAL) return error;
  for (uint64_t i = 0; i < pages.size(); i += kSmallPageBytes) {
    *reinterpret_cast<volatile std::byte*>(&pages[i]) = std::byte{0};
  }
  return 0;
}

// Collapses each 2 MiB into one page, if the kernel can. Returns the number of collapsed bytes. The
// kernel needs only one allocated small page, so only one is allocated, and no other page is zeroed
// twice.
uint64_t Collapse(std::span<std::byte> pages) {
  uint64_t huge_bytes = 0;
  for (uint64_t at = 0; at + kCollapsedBytes <= pages.size(); at += kCollapsedBytes) {
    const std::span<std::byte> page = pages.subspan(at, kCollapsedBytes);
    if (TakePages(page.first(kSmallPageBytes)) != 0) return huge_bytes;  // the caller gets it
    int error = 0;
    for (int i = 0; i < kCollapsesMax; ++i) {
      error = ::madvise(page.data(), page.size(), kMadviseCollapse) == 0 ? 0 : errno;
      if (error != EAGAIN && error != EBUSY && error != EINTR) break;
    }
    if (error == EINVAL) return huge_bytes;  // the kernel does not support it
    huge_bytes += error == 0 ? kCollapsedBytes : 0;
  }
  return huge_bytes;
}

// The allocation of one mapping. Threads take it in steps.
class Work {
 public:
  Work(std::span<std::byte> mapping, bool collapses) : mapping_(mapping), collapses_(collapses) {}

  uint64_t huge_bytes() const { return huge_.load(std::memory_order_relaxed); }

  uint64_t step_count() const { return (mapping_.size() + kStepBytes - 1) / kStepBytes; }
  int error() const { return error_.load(std::memory_order_relaxed); }

  void Run(const FaultInProgress& progress) {
    absl::Time told = MonotonicNow();
    while (error() == 0) {  // returns when no step is left
      const uint64_t at = next_.fetch_add(1, std::memory_order_relaxed) * kStepBytes;
      if (at >= mapping_.size()) return;
      const uint64_t bytes = std::min<uint64_t>(kStepBytes, mapping_.size() - at);
      const std::span<std::byte> step = mapping_.subspan(at, bytes);
      if (collapses_) huge_.fetch_add(Collapse(step), std::memory_order_relaxed);
      if (const int error = TakePages(step); error != 0) {
        error_.store(error, std::memory_order_relaxed);
        return;
      }
      const uint64_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
      if (progress != nullptr && MonotonicNow() - told > absl::Seconds(1)) {
        told = MonotonicNow();
        progress(done);
      }
    }
  }

 private:
  const std::span<std::byte> mapping_;
  const bool collapses_;
  std::atomic<uint64_t> huge_ = 0;  // bytes
  std::atomic<uint64_t> next_ = 0;  // steps that threads have taken
  std::atomic<uint64_t> done_ = 0;  // bytes
  std::atomic<int> error_ = 0;
};

absl::Status RunAll(Work& work, std::span<std::byte> mapping, const FaultInProgress& progress) {
  const unsigned processors = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < std::min<uint64_t>(processors, work.step_count()); ++i) {
    threads.emplace_back([&work] {
      ::pthread_setname_np(::pthread_self(), "fault-in");
      work.Run(nullptr);
    });
  }
  work.Run(progress);
  for (std::thread& thread : threads) thread.join();
  if (const int error = work.error(); error != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the kernel refuses ", FormatBytes(mapping.size()), " of memory: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FaultIn(std::span<std::byte> mapping, const FaultInProgress& progress) {
  Work work(mapping, /*collapses=*/false);
  return RunAll(work, mapping, progress);
}

absl::Status FaultInShared(std::span<std::byte> mapping, const FaultInProgress& progress,
                           uint64_t* huge_bytes) {
  Work work(mapping, /*collapses=*/true);
  const absl::Status status = RunAll(work, mapping, progress);
  *huge_bytes = work.huge_bytes();
  return status;
}

}  // namespace cairn
