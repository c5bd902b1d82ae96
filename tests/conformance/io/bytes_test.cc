// SPDX-License-Identifier: Apache-2.0
// What is written is what is read.
#include <thread>

#include "base/units.h"
#include "tests/conformance/io/suite.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"

namespace cairn {
namespace {

class IoBytes : public IoSuite {};

INSTANTIATE_TEST_SUITE_P(Engines, IoBytes, ::testing::Values("threads", "uring"),
                         [](const auto& param) { return param.param; });

bool Equal(std::span<const std::byte> left, std::span<const std::byte> right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

TEST_P(IoBytes, ComeBackWholeAndInParts) {
  CAIRN_START_OR_SKIP();
  const Fd file = Open("file");
  constexpr uint64_t kBytes = 10_MiB;  // pieces of 4, 4 and 2 MiB
  const PageBuffer source(kBytes, 1), tail(kPage, 2);
  IoTransfer write = WriteOf(file.get(), 3 * kPage, source.all());
  write.parts[1] = tail.all();
  ASSERT_TRUE(Move(write).ok());

  const PageBuffer target(kBytes + kPage);
  ASSERT_TRUE(Move(ReadOf(file.get(), 3 * kPage, target.all())).ok());
  EXPECT_TRUE(Equal(target.part(0, kBytes), source.all()));
  EXPECT_TRUE(Equal(target.part(kBytes, kPage), tail.all()));

  const PageBuffer first(kBytes - 5 * kPage), second(6 * kPage);
  IoTransfer read = ReadOf(file.get(), 3 * kPage, first.all());
  read.parts[1] = second.all();
  ASSERT_TRUE(Move(read).ok());
  EXPECT_TRUE(Equal(first.all(), source.part(0, kBytes - 5 * kPage)));
  EXPECT_TRUE(Equal(second.part(0, 5 * kPage), source.part(kBytes - 5 * kPage, 5 * kPage)));
  EXPECT_TRUE(Equal(second.part(5 * kPage, kPage), tail.all()));
  EXPECT_EQ(Metric("cairn_ssd_io_bytes_total", "write"), kBytes + kPage);
  EXPECT_EQ(Metric("cairn_ssd_io_bytes_total", "read"), 2 * (kBytes + kPage));
  EXPECT_EQ(Metric("cairn_ssd_io_inflight_bytes", "read"), 0);
}

TEST_P(IoBytes, AReadWritesItsTargetAndNothingElse) {
  CAIRN_START_OR_SKIP();
  const Fd file = Open("file");
  const PageBuffer source(4 * kPage, 1), target(3 * kPage, 2), before(3 * kPage, 2);
  ASSERT_TRUE(Move(WriteOf(file.get(), 0, source.all())).ok());
  ASSERT_TRUE(Move(ReadOf(file.get(), kPage, target.part(kPage, kPage))).ok());
  EXPECT_TRUE(Equal(target.part(0, kPage), before.part(0, kPage)));
  EXPECT_TRUE(Equal(target.part(kPage, kPage), source.part(kPage, kPage)));
  EXPECT_TRUE(Equal(target.part(2 * kPage, kPage), before.part(2 * kPage, kPage)));
}

TEST_P(IoBytes, ManyThreadsReadAndWriteAtOnce) {
  CAIRN_START_OR_SKIP();
  const Fd file = Open("file");
  constexpr uint64_t kBytesEach = 1_MiB;
  constexpr int kThreads = 4, kRounds = 100 / kSlowdown;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random = SeededRandom(i);
      const PageBuffer source(kBytesEach, i), target(kBytesEach);
      const auto move = [&](IoTransfer transfer) {
        transfer.is_background = random() % 2 == 0;
        SentTransfer sent;
        engine_->Submit(transfer, sent.Done());
        return sent.Await().ok();
      };
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t pages = 1 + random() % (kBytesEach / kPage);
        const uint64_t from = random() % (kBytesEach / kPage - pages + 1) * kPage;
        const std::span<std::byte> written = source.part(from, pages * kPage);
        const std::span<std::byte> read = target.part(from, pages * kPage);
        std::fill(read.begin(), read.end(), std::byte{});
        const bool is_right = move(WriteOf(file.get(), i * kBytesEach + from, written)) &&
                              move(ReadOf(file.get(), i * kBytesEach + from, read)) &&
                              Equal(read, written);
        wrong += is_right ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(IoBytes, MorePiecesThanTheKernelIsGivenAtOnce) {
  IoLimits limits;
  limits.piece_bytes = kPage;
  CAIRN_START_OR_SKIP(limits);
  const Fd file = Open("file");
  const PageBuffer source(2_MiB, 1), target(2_MiB);
  ASSERT_TRUE(Move(WriteOf(file.get(), 0, source.all())).ok());
  std::vector<const SentTransfer*> reads;
  for (uint64_t at = 0; at < 2_MiB; at += 4 * kPage) {
    reads.push_back(&Submit(ReadOf(file.get(), at, target.part(at, 4 * kPage))));
  }
  for (const SentTransfer* read : reads) {
    EXPECT_TRUE(read->Await().ok());
  }
  EXPECT_TRUE(Equal(target.all(), source.all()));
}

TEST_P(IoBytes, ACompletionMaySubmit) {
  CAIRN_START_OR_SKIP();
  const Fd file = Open("file");
  const PageBuffer memory(kPage, 1);
  ASSERT_TRUE(Move(WriteOf(file.get(), 0, memory.all())).ok());
  std::atomic<int> left{100}, failed{0};
  std::function<void()> next = [&] {
    engine_->Submit(ReadOf(file.get(), 0, memory.all()), [&](absl::Status status) {
      failed += status.ok() ? 0 : 1;
      if (--left > 0) {
        next();
      }
    });
  };
  next();
  EXPECT_TRUE(WaitFor([&] { return left == 0; }));
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace cairn
