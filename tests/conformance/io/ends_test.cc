// SPDX-License-Identifier: Apache-2.0
// Every transfer ends once, and says how: errors, deadlines, Cancel(), a full queue, Stop().
#include <thread>

#include "base/clock.h"
#include "tests/conformance/io/suite.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

class IoEnds : public IoSuite {
 protected:
  // The kernel has a page of reads and a page of writes at most.
  static IoLimits OnePage() {
    IoLimits limits;
    limits.piece_bytes = limits.read_inflight_bytes = kPage;
    limits.write_inflight_bytes = limits.inflight_beside_reads_bytes = kPage;
    limits.queue_max = 4;
    return limits;
  }
  // The kernel has `sent` of `kind`, and keeps it.
  void AwaitInflight(const std::string& op, uint64_t bytes) {
    EXPECT_TRUE(WaitFor(
        [&] { return Metric("cairn_ssd_io_inflight_bytes", op) == static_cast<double>(bytes); }));
  }
  PageBuffer memory_{16 * kPage};
  std::span<std::byte> page_ = memory_.part(0, kPage);
};

INSTANTIATE_TEST_SUITE_P(Engines, IoEnds, ::testing::Values("threads", "uring"),
                         [](const auto& param) { return param.param; });

TEST_P(IoEnds, TheEndOfTheFileIsDataLoss) {
  CAIRN_START_OR_SKIP();
  const Fd file = Open("file");
  ASSERT_TRUE(Move(WriteOf(file.get(), 0, page_)).ok());
  EXPECT_TRUE(absl::IsDataLoss(Move(ReadOf(file.get(), kPage, page_))));
  const absl::Status across = Move(ReadOf(file.get(), 0, memory_.part(0, 2 * kPage)));
  EXPECT_TRUE(absl::IsDataLoss(across)) << across;
  EXPECT_EQ(Metric("cairn_ssd_io_errors_total", "read"), 2);
}

TEST_P(IoEnds, AnErrorOfTheMediumIsDataLoss) {
  CAIRN_START_OR_SKIP();
  // Nothing is mapped at its start, which the kernel calls EIO.
  const Fd hole(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(hole.is_valid());
  for (const absl::Status& status :
       {Move(ReadOf(hole.get(), 0, page_)), Move(WriteOf(hole.get(), 0, page_))}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find("Input/output error"), std::string::npos) << status;
  }
}

TEST_P(IoEnds, OtherErrorsAreInternalAndNamed) {
  CAIRN_START_OR_SKIP();
  const Fd file(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  const absl::Status status = Move(ReadOf(file.get(), 0, page_));
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_NE(status.message().find("Bad file descriptor"), std::string::npos) << status;
}

TEST_P(IoEnds, AShortTransferGoesOn) {
  CAIRN_START_OR_SKIP();
  const HeldFile held;
  const SentTransfer& read = Submit(ReadOf(held.source(), 0, memory_.part(0, 3 * kPage)));
  AwaitInflight("read", 3 * kPage);
  held.Feed(kPage);
  AwaitInflight("read", 2 * kPage);
  EXPECT_FALSE(read.is_over);
  held.Feed(2 * kPage);
  EXPECT_TRUE(read.Await().ok()) << read.status;
  EXPECT_EQ(memory_.all()[3 * kPage - 1], std::byte{'f'});
}

TEST_P(IoEnds, TheDeadlineEndsWhatHasNotBegun) {
  IoLimits limits = OnePage();
  limits.read_threads = limits.write_threads = 1;
  CAIRN_START_OR_SKIP(limits);
  const HeldFile held;
  IoTransfer read = ReadOf(held.source(), 0, page_);
  read.deadline = MonotonicNow() + absl::Seconds(60);
  const SentTransfer& begun = Submit(read);
  AwaitInflight("read", kPage);
  // The nearest deadline comes last.
  const SentTransfer& patient = Submit(read);
  read.deadline = MonotonicNow() + absl::Milliseconds(10);
  const SentTransfer& late = Submit(read);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Await())) << late.status;
  EXPECT_GE(MonotonicNow(), read.deadline);
  EXPECT_FALSE(begun.is_over || patient.is_over);
  held.Feed(2 * kPage);
  EXPECT_TRUE(begun.Await().ok() && patient.Await().ok());
  EXPECT_EQ(Metric("cairn_ssd_io_late_total", "read"), 1);
}

TEST_P(IoEnds, CancelEndsWhatHasNotBegun) {
  CAIRN_START_OR_SKIP(OnePage());
  const HeldFile held;
  const SentTransfer& begun = Submit(ReadOf(held.source(), 0, page_));
  AwaitInflight("read", kPage);
  const SentTransfer& waiting = Submit(ReadOf(held.source(), 0, page_));
  engine_->Cancel(begun.id);
  engine_->Cancel(waiting.id);
  EXPECT_TRUE(waiting.is_over) << "at once";
  EXPECT_TRUE(absl::IsCancelled(waiting.status)) << waiting.status;
  EXPECT_FALSE(begun.is_over);
  held.Feed(kPage);
  EXPECT_TRUE(begun.Await().ok()) << begun.status;
  engine_->Cancel(begun.id);
  engine_->Cancel(0);
}

TEST_P(IoEnds, AFullQueueRefusesAndTakesAgain) {
  CAIRN_START_OR_SKIP(OnePage());
  const HeldFile held;
  for (int i = 0; i < 4; ++i) {
    Submit(ReadOf(held.source(), 0, page_));
  }
  const SentTransfer& refused = Submit(ReadOf(held.source(), 0, page_));
  EXPECT_EQ(refused.id, 0u);
  EXPECT_TRUE(refused.is_over && absl::IsResourceExhausted(refused.status)) << refused.status;
  held.Feed(4 * kPage);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(sent_[i].Await().ok());
  }
  held.Feed(kPage);
  EXPECT_TRUE(Move(ReadOf(held.source(), 0, page_)).ok());
}

TEST_P(IoEnds, WritesHaveASmallBudgetBesideReads) {
  IoLimits limits = OnePage();
  limits.write_inflight_bytes = 4 * kPage;
  limits.queue_max = 100;
  limits.write_threads = 8;
  CAIRN_START_OR_SKIP(limits);
  const HeldFile reads, writes(true);
  const SentTransfer& read = Submit(ReadOf(reads.source(), 0, page_));
  AwaitInflight("read", kPage);
  for (int i = 0; i < 50; ++i) {
    Submit(WriteOf(writes.target(), 0, page_));
  }
  AwaitInflight("write", kPage);
  for (int i = 0; i < 10; ++i) {  // turns of the budget
    writes.Drain();
    AwaitInflight("write", kPage);
  }
  reads.Feed(kPage);
  EXPECT_TRUE(read.Await().ok());
  // Some time after it they may take their whole budget.
  for (int i = 0; i < 40; ++i) {
    writes.Drain();
    if (WaitFor([&] { return Metric("cairn_ssd_io_inflight_bytes", "write") == 4 * kPage; },
                absl::Milliseconds(10))) {
      break;
    }
  }
  EXPECT_EQ(Metric("cairn_ssd_io_inflight_bytes", "write"), 4 * kPage);
  const auto are_over = [this] {
    return std::all_of(sent_.begin(), sent_.end(), [](const auto& sent) { return !!sent.is_over; });
  };
  EXPECT_TRUE(WaitFor([&] {
    writes.Drain();
    return are_over();
  }));
}

TEST_P(IoEnds, StopEndsWhatWaitsAndAwaitsWhatTheKernelHas) {
  CAIRN_START_OR_SKIP(OnePage());
  const HeldFile held, full(true);
  const SentTransfer& read = Submit(ReadOf(held.source(), 0, page_));
  const SentTransfer& write = Submit(WriteOf(full.target(), 0, page_));
  AwaitInflight("read", kPage);
  AwaitInflight("write", kPage);
  const SentTransfer& waiting = Submit(ReadOf(held.source(), 0, page_));
  EXPECT_FALSE(engine_->Stop(MonotonicNow() + absl::Milliseconds(1)));
  EXPECT_TRUE(waiting.is_over && absl::IsUnavailable(waiting.status)) << waiting.status;
  EXPECT_FALSE(read.is_over || write.is_over) << "the kernel may still touch their memory";
  const SentTransfer& after = Submit(ReadOf(held.source(), 0, page_));
  EXPECT_TRUE(after.is_over && absl::IsUnavailable(after.status)) << after.status;
  held.Feed(kPage);
  full.Drain();
  EXPECT_TRUE(engine_->Stop(absl::InfiniteFuture()));
  EXPECT_TRUE(read.is_over && read.status.ok()) << read.status;
  EXPECT_TRUE(write.is_over && write.status.ok()) << write.status;
  EXPECT_TRUE(engine_->Stop(absl::InfiniteFuture()));
}

TEST_P(IoEnds, StopFinishesTheRestOfAShortTransfer) {
  CAIRN_START_OR_SKIP();
  HeldFile held;
  const SentTransfer& read = Submit(ReadOf(held.source(), 0, memory_.part(0, 2 * kPage)));
  AwaitInflight("read", 2 * kPage);
  EXPECT_FALSE(engine_->Stop(absl::InfinitePast()));
  held.Feed(kPage);
  AwaitInflight("read", kPage);
  held.CloseTarget();
  EXPECT_TRUE(engine_->Stop(absl::InfiniteFuture()));
  EXPECT_TRUE(read.is_over && absl::IsDataLoss(read.status)) << read.status;
}

TEST_P(IoEnds, OnceEachWhileThreadsSubmitAndCancelAndTheEngineStops) {
  IoLimits limits;
  limits.queue_max = 64;
  CAIRN_START_OR_SKIP(limits);
  const Fd file = Open("file");
  ASSERT_TRUE(Move(WriteOf(file.get(), 0, memory_.all())).ok());
  constexpr size_t kThreads = 4, kTransfers = 2000;
  std::vector<std::deque<SentTransfer>> sent(kThreads);
  std::atomic<int> begun{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random = SeededRandom(i);
      const PageBuffer target(4 * kPage);
      for (size_t j = 0; j < kTransfers; ++j) {
        SentTransfer& transfer = sent[i].emplace_back();
        IoTransfer read = ReadOf(file.get(), 0, target.part(0, (1 + random() % 4) * kPage));
        read.deadline = random() % 4 == 0 ? MonotonicNow() + absl::Microseconds(random() % 300)
                                          : absl::InfiniteFuture();
        const IoId id = engine_->Submit(read, transfer.Done());
        if (random() % 4 == 0) {
          engine_->Cancel(id);
        }
        if (id == 0) {
          std::this_thread::yield();
        }
        ++begun;
      }
      EXPECT_TRUE(WaitFor([&] {
        return std::all_of(sent[i].begin(), sent[i].end(),
                           [](const SentTransfer& one) { return one.is_over.load(); });
      }));
    });
  }
  EXPECT_TRUE(WaitFor([&] { return begun > static_cast<int>(kThreads * kTransfers / 2); }));
  EXPECT_TRUE(engine_->Stop(absl::InfiniteFuture()));
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::deque<SentTransfer>& of_thread : sent) {
    for (const SentTransfer& one : of_thread) {
      EXPECT_TRUE(one.status.ok() || absl::IsCancelled(one.status) ||
                  absl::IsDeadlineExceeded(one.status) || absl::IsResourceExhausted(one.status) ||
                  absl::IsUnavailable(one.status))
          << one.status;
    }
  }
}

}  // namespace
}  // namespace cairn
