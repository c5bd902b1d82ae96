// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every engine keeps to. Each case runs over each engine, and is skipped with its reason where
// the system refuses one.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "service/tier/ssd/io_engine.h"
#include "tests/support/awaited_transfer.h"
#include "tests/support/metric_capture.h"
#include "tests/support/temp_dir.h"

namespace cairn {

constexpr uint64_t kPage = kPageBytes;

// A file whose transfers stay with the kernel until the test lets them go: a pipe. io_uring reads
// one at any offset, threads with CallPipes().
class HeldFile {
 public:
  explicit HeldFile(bool is_full = false) {
    int ends[2];
    CAIRN_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    source_ = Fd(ends[0]);
    target_ = Fd(ends[1]);
    if (is_full) {
      CAIRN_CHECK(::fcntl(target_.get(), F_SETPIPE_SZ, kPage) == static_cast<int>(kPage));
      CAIRN_CHECK(::fcntl(source_.get(), F_SETFL, O_NONBLOCK) == 0);
      Feed(kPage);
    }
  }
  int source() const { return source_.get(); }  // to read
  int target() const { return target_.get(); }  // to write
  void Feed(size_t bytes) const {
    const std::vector<char> content(bytes, 'f');
    CAIRN_CHECK(::write(target_.get(), content.data(), bytes) == static_cast<ssize_t>(bytes));
  }
  // Of a full one: takes what is there, a page at most.
  void Drain() const {
    std::vector<char> content(kPage);
    std::ignore = ::read(source_.get(), content.data(), kPage);
  }
  void CloseTarget() { target_.Reset(); }

 private:
  Fd source_, target_;
};

inline ssize_t CallPipes(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset) {
  const ssize_t moved = CallKernel(kind, fd, parts, parts_count, offset);
  if (moved >= 0 || errno != ESPIPE) {
    return moved;
  }
  return kind == IoKind::kRead ? ::readv(fd, parts, parts_count) : ::writev(fd, parts, parts_count);
}

// Pages with content: zero, or random.
class PageBuffer {
 public:
  // REQUIRES: whole pages.
  explicit PageBuffer(size_t bytes) : memory_(bytes) {
    std::fill(all().begin(), all().end(), std::byte{});
  }
  PageBuffer(size_t bytes, uint64_t seed) : memory_(bytes) {
    std::mt19937_64 random(seed);
    std::generate(all().begin(), all().end(), [&] { return static_cast<std::byte>(random()); });
  }
  std::span<std::byte> all() const { return memory_.bytes(); }
  std::span<std::byte> part(size_t offset, size_t bytes) const {
    return all().subspan(offset, bytes);
  }

 private:
  PageMemory memory_;
};

struct SentTransfer : AwaitedTransfer {
  IoId id = 0;
};

// The parameter is the name of the engine.
class IoSuite : public ::testing::TestWithParam<std::string> {
 protected:
  // False: skipped.
  bool Start(const IoLimits& limits = {}) {
    if (GetParam() == "threads") {
      engine_ = MakeThreadEngine(limits, CallPipes);
      return true;
    }
    auto engine = MakeUringEngine(limits);
    if (engine.ok()) {
      engine_ = *std::move(engine);
    }
    reason_ = std::string(engine.status().message());
    return engine.ok();
  }
  SentTransfer& Submit(const IoTransfer& transfer) {
    SentTransfer& sent = sent_.emplace_back();
    sent.id = engine_->Submit(transfer, sent.Done());
    return sent;
  }
  absl::Status Move(const IoTransfer& transfer) { return Submit(transfer).Await(); }
  // Past the page cache where the file system can.
  Fd Open(const std::string& name) const {
    const std::string path = folder_.File(name);
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
    if (fd < 0) {
      fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    CAIRN_CHECK(fd >= 0, path);
    return Fd(fd);
  }
  double Metric(const std::string& name, const std::string& op) const {
    MetricCapture metrics;
    engine_->Report(metrics, {});
    return metrics.Value(name + "{op=\"" + op + "\"}");
  }

  const TempDir folder_;
  std::deque<SentTransfer> sent_;  // outlives the engine
  std::string reason_;             // why there is no engine
  std::unique_ptr<IoEngine> engine_;
};

inline IoTransfer ReadOf(int fd, uint64_t offset, std::span<std::byte> target) {
  return {.kind = IoKind::kRead, .fd = fd, .offset = offset, .parts = {target}};
}
inline IoTransfer WriteOf(int fd, uint64_t offset, std::span<std::byte> source) {
  return {.kind = IoKind::kWrite, .fd = fd, .offset = offset, .parts = {source}};
}

}  // namespace cairn

// Starts the engine, or skips the test.
#define CAIRN_START_OR_SKIP(...)                      \
  do {                                                \
    if (!Start(__VA_ARGS__)) GTEST_SKIP() << reason_; \
  } while (false)
