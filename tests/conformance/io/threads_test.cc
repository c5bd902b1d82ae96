// SPDX-License-Identifier: Apache-2.0
// Answers of the kernel that it seldom gives, for the engine whose calls can be replaced.
#include "tests/conformance/io/suite.h"

namespace cairn {
namespace {

class ThreadEngineTest : public IoSuite {
 protected:
  // Answers `errors` first, then a page of each call at a time.
  void StartWith(std::vector<int> errors) {
    errors_ = std::move(errors);
    IoLimits limits;
    limits.read_threads = limits.write_threads = 1;
    engine_ = MakeThreadEngine(
        limits, [this](IoKind kind, int fd, const iovec* parts, int, off_t offset) -> ssize_t {
          const size_t call = calls_++;
          if (call < errors_.size()) {
            errno = errors_[call];
            return -1;
          }
          const iovec page = {parts[0].iov_base, kPage};
          return CallKernel(kind, fd, &page, 1, offset);
        });
  }
  std::vector<int> errors_;
  std::atomic<size_t> calls_{0};
};

TEST_F(ThreadEngineTest, ShortCountsAndSignalsLoseNoByte) {
  StartWith({EINTR, EINTR, EAGAIN});
  const Fd file = Open("file");
  const PageBuffer source(4 * kPage, 1), target(4 * kPage);
  IoTransfer write = WriteOf(file.get(), kPage, source.part(0, 3 * kPage));
  write.parts[1] = source.part(3 * kPage, kPage);
  EXPECT_TRUE(Move(write).ok());
  EXPECT_EQ(calls_, 7u);
  EXPECT_TRUE(Move(ReadOf(file.get(), kPage, target.all())).ok());
  EXPECT_EQ(calls_, 11u);
  EXPECT_TRUE(std::equal(target.all().begin(), target.all().end(), source.all().begin()));
}

TEST_F(ThreadEngineTest, AnErrorInTheMiddleEndsTheTransfer) {
  StartWith({EIO});
  const Fd file = Open("file");
  const PageBuffer memory(16 * kPage);
  EXPECT_TRUE(absl::IsDataLoss(Move(WriteOf(file.get(), 0, memory.all()))));
  EXPECT_EQ(calls_, 1u);
  EXPECT_TRUE(Move(WriteOf(file.get(), 0, memory.all())).ok()) << "the next one is as good as any";
}

}  // namespace
}  // namespace cairn
