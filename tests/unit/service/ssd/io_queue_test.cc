// SPDX-License-Identifier: Apache-2.0
// Order, budgets and ends of transfers, with a kernel that answers what the test says.
#include "service/tier/ssd/io_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

constexpr uint64_t kPage = kPageBytes;

// In pages: pieces of 4, 8 in flight of each kind, 2 beside reads.
IoLimits SmallLimits() {
  IoLimits limits;
  limits.piece_bytes = 4 * kPage;
  limits.read_inflight_bytes = limits.write_inflight_bytes = 8 * kPage;
  limits.inflight_beside_reads_bytes = 2 * kPage;
  limits.queue_max = 16;
  return limits;
}

class IoQueueTest : public ::testing::Test {
 protected:
  // A transfer, and how often and how it ended.
  struct Sent {
    IoId id = 0;
    absl::Status status;
    int ends = 0;
  };

  void TearDown() override {
    queue_.Stop();
    const std::vector<IoPiece> taken = taken_;
    for (const IoPiece& piece : taken) {
      End(piece, -EIO);
    }
    for (const Sent& sent : sent_) {
      EXPECT_EQ(sent.ends, 1);
    }
  }

  IoTransfer Make(IoKind kind, uint64_t pages, bool is_background = false) {
    const std::span<std::byte> memory(memory_);
    return {.kind = kind,
            .fd = 7,
            .offset = 100 * kPage,
            .parts = {memory.first(pages * kPage)},
            .is_background = is_background};
  }
  IoTransfer Read(uint64_t pages) { return Make(IoKind::kRead, pages); }
  IoTransfer Write(uint64_t pages) { return Make(IoKind::kWrite, pages); }
  const Sent& Submit(const IoTransfer& transfer) {
    Sent& sent = sent_.emplace_back();
    sent.id = queue_.Submit(transfer, [&sent](absl::Status status) {
      sent.status = std::move(status);
      ++sent.ends;
    });
    return sent;
  }
  std::optional<IoPiece> Take() {
    const std::optional<IoPiece> piece = queue_.Take();
    if (piece.has_value()) {
      taken_.push_back(*piece);
    }
    return piece;
  }
  IoPiece TakeOne() {
    const std::optional<IoPiece> piece = Take();
    CAIRN_CHECK(piece.has_value(), "nothing may begin");
    return *piece;
  }
  std::vector<IoPiece> TakeAll() {
    std::vector<IoPiece> pieces;
    while (const std::optional<IoPiece> piece = Take()) {
      pieces.push_back(*piece);
    }
    return pieces;
  }
  void End(const IoPiece& piece, int64_t result) {
    taken_.erase(std::find_if(taken_.begin(), taken_.end(), [&piece](const IoPiece& taken) {
      return taken.id == piece.id && taken.offset == piece.offset;
    }));
    queue_.End(piece, result);
  }
  void Finish(const IoPiece& piece) { End(piece, static_cast<int64_t>(piece.bytes)); }
  static uint64_t PagesOf(const std::vector<IoPiece>& pieces) {
    uint64_t bytes = 0;
    for (const IoPiece& piece : pieces) {
      bytes += piece.bytes;
    }
    return bytes / kPage;
  }
  // Reads are neither there nor were lately.
  void LetReadsPass() { clock_.Advance(absl::Seconds(1)); }

  struct alignas(kPageBytes) Memory : std::array<std::byte, 64 * kPageBytes> {};
  static inline Memory memory_;
  std::deque<Sent> sent_;
  std::vector<IoPiece> taken_;
  FakeClock clock_;
  IoQueue queue_{SmallLimits(), clock_};
};

TEST_F(IoQueueTest, PiecesCoverBothPartsInOrder) {
  IoTransfer read = Read(6);
  read.parts[1] = std::span<std::byte>(memory_).subspan(20 * kPage, kPage);
  const Sent& sent = Submit(read);
  const IoPiece first = TakeOne(), second = TakeOne();
  EXPECT_FALSE(Take().has_value());
  EXPECT_EQ(first.fd, 7);
  EXPECT_EQ(first.offset, 100 * kPage);
  EXPECT_EQ(first.bytes, 4 * kPage);
  ASSERT_EQ(first.parts_count, 1);
  EXPECT_EQ(first.parts[0].iov_base, memory_.data());
  EXPECT_EQ(second.offset, 104 * kPage);
  EXPECT_EQ(second.bytes, 3 * kPage);
  ASSERT_EQ(second.parts_count, 2);
  EXPECT_EQ(second.parts[0].iov_base, memory_.data() + 4 * kPage);
  EXPECT_EQ(second.parts[0].iov_len, 2 * kPage);
  EXPECT_EQ(second.parts[1].iov_base, memory_.data() + 20 * kPage);
  EXPECT_EQ(second.parts[1].iov_len, kPage);
  Finish(second);
  EXPECT_EQ(sent.ends, 0);
  Finish(first);
  EXPECT_EQ(sent.ends, 1);
  EXPECT_TRUE(sent.status.ok()) << sent.status;
}

TEST_F(IoQueueTest, ShortTransfersGoOnFromTheirLastWholePage) {
  IoTransfer read = Read(3);
  read.parts[1] = std::span<std::byte>(memory_).subspan(20 * kPage, kPage);
  const Sent& sent = Submit(read);
  End(TakeOne(), 3 * kPage + 17);
  EXPECT_EQ(sent.ends, 0);
  const IoPiece rest = TakeOne();
  EXPECT_EQ(rest.offset, 103 * kPage);
  EXPECT_EQ(rest.bytes, kPage);
  ASSERT_EQ(rest.parts_count, 1);
  EXPECT_EQ(rest.parts[0].iov_base, memory_.data() + 20 * kPage);
  Finish(rest);
  EXPECT_EQ(sent.ends, 1);
  EXPECT_TRUE(sent.status.ok()) << sent.status;
}

TEST_F(IoQueueTest, SignalsInterruptAndDoNotEndATransfer) {
  const Sent& sent = Submit(Write(1));
  End(TakeOne(), -EINTR);
  End(TakeOne(), -EAGAIN);
  Finish(TakeOne());
  EXPECT_TRUE(sent.status.ok() && sent.ends == 1) << sent.status;
  const Sent& pestered = Submit(Write(1));
  for (int turns = 0; pestered.ends == 0; ++turns) {
    End(TakeOne(), -EINTR);
    ASSERT_LT(turns, 1000) << "never ends";
  }
  EXPECT_TRUE(absl::IsInternal(pestered.status)) << pestered.status;
}

TEST_F(IoQueueTest, ErrorsOfTheMediumAreDataLossAndOthersNamed) {
  const auto status_of = [this](const IoTransfer& transfer, int64_t result) {
    const Sent& sent = Submit(transfer);
    End(TakeOne(), result);
    CAIRN_CHECK(sent.ends == 1);
    return sent.status;
  };
  for (const int error : {EIO, ENODATA, EILSEQ, EREMOTEIO}) {
    EXPECT_TRUE(absl::IsDataLoss(status_of(Read(1), -error))) << error;
    EXPECT_TRUE(absl::IsDataLoss(status_of(Write(1), -error))) << error;
  }
  const absl::Status other = status_of(Write(1), -ENOSPC);
  EXPECT_TRUE(absl::IsInternal(other));
  EXPECT_NE(other.message().find("No space left"), std::string::npos) << other;
  EXPECT_NE(other.message().find("write of 4096 bytes at 409600"), std::string::npos) << other;
  EXPECT_TRUE(absl::IsDataLoss(status_of(Read(1), 0)));    // the end of the file
  EXPECT_TRUE(absl::IsDataLoss(status_of(Read(2), 100)));  // likewise, inside a page
  EXPECT_TRUE(absl::IsInternal(status_of(Write(1), 0)));
}

TEST_F(IoQueueTest, AFailedPieceIsTheLastAndWaitsForThoseInFlight) {
  const Sent& sent = Submit(Read(16));
  const std::vector<IoPiece> pieces = TakeAll();
  ASSERT_EQ(pieces.size(), 2u);
  End(pieces[0], -EIO);
  EXPECT_EQ(sent.ends, 0);
  EXPECT_FALSE(Take().has_value());
  End(pieces[1], kPage);  // short, but nobody wants the rest
  EXPECT_EQ(sent.ends, 1);
  EXPECT_TRUE(absl::IsDataLoss(sent.status)) << sent.status;
}

TEST_F(IoQueueTest, DeadlinesEndWhatHasNotBegun) {
  IoTransfer read = Read(8);
  read.deadline = clock_.Now() + absl::Seconds(1);
  const Sent& begun = Submit(read);
  TakeOne();
  const Sent& late = Submit(read);
  read.deadline = clock_.Now() + absl::Seconds(3);
  const Sent& in_time = Submit(read);
  EXPECT_EQ(queue_.EndLate(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(queue_.EndLate(), clock_.Now() + absl::Seconds(2));
  EXPECT_EQ(late.ends, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status)) << late.status;
  EXPECT_EQ(begun.ends, 0);
  EXPECT_EQ(TakeOne().offset, 104 * kPage) << "the rest of what had begun";
  clock_.Advance(absl::Seconds(2));
  EXPECT_FALSE(Take().has_value());
  EXPECT_TRUE(in_time.ends == 1 && absl::IsDeadlineExceeded(in_time.status)) << in_time.status;
}

TEST_F(IoQueueTest, CancelEndsWhatHasNotBegunAndTheRestOfWhatHas) {
  const Sent& begun = Submit(Read(16));
  const IoPiece piece = TakeOne();
  const Sent& waiting = Submit(Read(1));
  queue_.Cancel(waiting.id);
  EXPECT_TRUE(waiting.ends == 1 && absl::IsCancelled(waiting.status)) << waiting.status;
  queue_.Cancel(begun.id);
  EXPECT_EQ(begun.ends, 0) << "the kernel has a piece of it";
  EXPECT_FALSE(Take().has_value());
  Finish(piece);
  EXPECT_TRUE(begun.ends == 1 && absl::IsCancelled(begun.status)) << begun.status;
  queue_.Cancel(begun.id);
  queue_.Cancel(0);

  const Sent& whole = Submit(Read(2));  // the kernel has all of it: too late to cancel
  const IoPiece all = TakeOne();
  queue_.Cancel(whole.id);
  Finish(all);
  EXPECT_TRUE(whole.ends == 1 && whole.status.ok()) << whole.status;
}

TEST_F(IoQueueTest, RefusesWhatIsOneTooManyAndWhatComesAfterStop) {
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NE(Submit(Read(1)).id, 0u);
  }
  const Sent& refused = Submit(Read(1));
  EXPECT_EQ(refused.id, 0u);
  EXPECT_TRUE(refused.ends == 1 && absl::IsResourceExhausted(refused.status));
  const IoPiece begun = TakeOne();
  queue_.Stop();
  EXPECT_EQ(sent_[0].ends, 0);
  for (size_t i = 1; i < 16; ++i) {
    EXPECT_TRUE(sent_[i].ends == 1 && absl::IsUnavailable(sent_[i].status)) << i;
  }
  const Sent& after = Submit(Read(1));
  EXPECT_EQ(after.id, 0u);
  EXPECT_TRUE(after.ends == 1 && absl::IsUnavailable(after.status));
  EXPECT_FALSE(queue_.AwaitIdle(absl::InfinitePast()));
  Finish(begun);
  EXPECT_TRUE(queue_.AwaitIdle(absl::InfinitePast()));
  EXPECT_TRUE(sent_[0].ends == 1 && sent_[0].status.ok());
}

TEST_F(IoQueueTest, ForegroundReadsComeFirstAndTheBackgroundLast) {
  const IoId scrub = Submit(Make(IoKind::kRead, 1, true)).id;
  const IoId demotion = Submit(Make(IoKind::kWrite, 1, true)).id;
  const IoId reclaim = Submit(Make(IoKind::kRead, 1, true)).id;
  const IoId put = Submit(Write(1)).id;
  const IoId get = Submit(Read(1)).id;
  std::vector<IoId> order;
  for (int i = 0; i < 5; ++i) {
    const IoPiece piece = TakeOne();
    order.push_back(piece.id);
    Finish(piece);
  }
  EXPECT_EQ(order, (std::vector<IoId>{get, put, scrub, demotion, reclaim}));
}

TEST_F(IoQueueTest, SmallTransfersPassBetweenThePiecesOfLargeOnes) {
  const IoId large_id = Submit(Read(32)).id;
  const IoId small_id = Submit(Read(1)).id;
  const IoPiece first = TakeOne(), second = TakeOne();
  EXPECT_EQ(first.id, large_id);
  EXPECT_EQ(second.id, small_id);
  Finish(first);
  EXPECT_EQ(TakeOne().offset, 104 * kPage);
}

TEST_F(IoQueueTest, EachKindHasItsBudgetOfBytesInFlight) {
  LetReadsPass();
  Submit(Write(32));
  std::vector<IoPiece> writes = TakeAll();
  EXPECT_EQ(PagesOf(writes), 8u);
  Submit(Read(32));
  EXPECT_EQ(PagesOf(TakeAll()), 8u) << "reads do not wait for writes";
  for (const IoPiece& write : writes) {
    Finish(write);
  }
  writes = TakeAll();
  EXPECT_EQ(PagesOf(writes), 2u) << "beside reads";
  EXPECT_EQ(writes.size(), 1u) << "and cut to what may be in flight";
}

TEST_F(IoQueueTest, WritesHoldBackWhileReadsAreThereAndShortlyAfter) {
  Submit(Read(1));
  const IoPiece read = TakeOne();
  Submit(Write(16));
  Submit(Make(IoKind::kRead, 16, true));
  const IoPiece write = TakeOne();
  EXPECT_EQ(write.bytes, 2 * kPage);
  EXPECT_FALSE(Take().has_value()) << "the background shares what is left beside reads";
  Finish(read);
  EXPECT_FALSE(Take().has_value()) << "the next read may be on its way";
  LetReadsPass();
  EXPECT_EQ(PagesOf(TakeAll()), 4u) << "of 8, 2 are in flight";
  Finish(write);
}

TEST_F(IoQueueTest, ABudgetSmallerThanATransferLetsOnePieceThrough) {
  IoLimits limits = SmallLimits();
  limits.read_inflight_bytes = kPage;
  IoQueue queue(limits, clock_);
  int ended = 0;
  const auto done = [&ended](absl::Status) { ++ended; };
  queue.Submit(Read(4), done);
  queue.Submit(Read(4), done);
  for (int i = 0; i < 2; ++i) {
    const std::optional<IoPiece> piece = queue.Take();
    ASSERT_TRUE(piece.has_value());
    EXPECT_FALSE(queue.Take().has_value());
    queue.End(*piece, static_cast<int64_t>(piece->bytes));
  }
  EXPECT_EQ(ended, 2);
}

TEST_F(IoQueueTest, ReportsWhatItMoved) {
  Submit(Read(2));
  End(TakeOne(), kPage);
  Finish(TakeOne());
  Submit(Write(1));
  End(TakeOne(), -EIO);
  Submit(Write(1));
  const IoPiece inflight = TakeOne();
  Submit(Write(3));
  MetricCapture metrics;
  queue_.Report(metrics, {{"device", "0"}}, "threads");
  const auto value = [&metrics](const std::string& name, const std::string& op) {
    return metrics.Value(name + "{device=\"0\",op=\"" + op + "\"}");
  };
  EXPECT_EQ(metrics.Value("cairn_ssd_engine_info{device=\"0\",engine=\"threads\"}"), 1);
  EXPECT_EQ(value("cairn_ssd_io_bytes_total", "read"), 2 * kPage);
  EXPECT_EQ(value("cairn_ssd_io_bytes_total", "write"), 0);
  EXPECT_EQ(value("cairn_ssd_io_seconds", "read"), 1) << "a transfer with its rest";
  EXPECT_EQ(value("cairn_ssd_io_errors_total", "write"), 1);
  EXPECT_EQ(value("cairn_ssd_io_inflight_bytes", "write"), kPage);
  EXPECT_EQ(value("cairn_ssd_io_inflight_bytes", "read"), 0);
  EXPECT_EQ(value("cairn_ssd_io_waiting", "write"), 1);
  Finish(inflight);
}

}  // namespace
}  // namespace cairn
