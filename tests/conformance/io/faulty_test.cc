// SPDX-License-Identifier: Apache-2.0
// The faults that tests of the tier inject are those that they ask for.
#include "tests/support/faulty_io_engine.h"

#include "base/clock.h"
#include "tests/conformance/io/suite.h"

namespace cairn {
namespace {

class FaultyIoEngineTest : public IoSuite {
 protected:
  FaultyIoEngineTest() {
    IoLimits limits;
    limits.read_threads = 1;
    auto engine = std::make_unique<FaultyIoEngine>(limits);
    faulty_ = engine.get();
    engine_ = std::move(engine);
  }
  absl::Status Write(const Fd& file, uint64_t offset) {
    return Move(WriteOf(file.get(), offset, memory_.all()));
  }
  absl::Status Read(const Fd& file, uint64_t offset) {
    return Move(ReadOf(file.get(), offset, target_.all()));
  }

  FaultyIoEngine* faulty_ = nullptr;
  const PageBuffer memory_{2 * kPage, 1}, target_{2 * kPage};
};

TEST_F(FaultyIoEngineTest, FailsWhatItIsTold) {
  const Fd one = Open("one"), two = Open("two");
  faulty_->Inject({.kind = IoKind::kRead, .file = "/two", .first_byte = kPage, .calls_max = 2});
  EXPECT_TRUE(Write(one, 0).ok() && Write(two, 0).ok() && Read(one, 0).ok());
  EXPECT_TRUE(Move(ReadOf(two.get(), 0, target_.part(0, kPage))).ok()) << "before the first byte";
  EXPECT_TRUE(absl::IsDataLoss(Read(two, 0)));
  EXPECT_TRUE(absl::IsDataLoss(Read(two, 0)));
  EXPECT_TRUE(Read(two, 0).ok()) << "only twice";
  EXPECT_EQ(faulty_->met(), 2u);
  faulty_->Inject({.error = ENOSPC, .kind = IoKind::kWrite});
  EXPECT_TRUE(absl::IsInternal(Write(one, 0)));
  faulty_->Clear();
  EXPECT_TRUE(Write(one, 0).ok());
}

TEST_F(FaultyIoEngineTest, HoldsAsAHungDriveDoes) {
  const Fd file = Open("file");
  ASSERT_TRUE(Write(file, 0).ok());
  faulty_->Inject({.act = FaultyIoEngine::kHold, .kind = IoKind::kRead});
  const SentTransfer& held = Submit(ReadOf(file.get(), 0, target_.all()));
  EXPECT_TRUE(WaitFor([this] { return faulty_->held() == 1; }));
  const PageBuffer unread(kPage);
  IoTransfer behind = ReadOf(file.get(), 0, unread.all());
  behind.deadline = MonotonicNow() + absl::Milliseconds(5);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Submit(behind).Await()));
  EXPECT_TRUE(Write(file, 0).ok()) << "writes are not held";
  EXPECT_FALSE(engine_->Stop(MonotonicNow()));
  EXPECT_FALSE(held.is_over);
  EXPECT_EQ(target_.all()[0], std::byte{});
  faulty_->Clear();
  EXPECT_TRUE(held.Await().ok());
  EXPECT_TRUE(std::equal(target_.all().begin(), target_.all().end(), memory_.all().begin()));
}

TEST_F(FaultyIoEngineTest, LosesWhatItSaysIsDone) {
  const Fd file = Open("file");
  ASSERT_TRUE(Write(file, 0).ok());
  faulty_->Inject({.act = FaultyIoEngine::kLose, .kind = IoKind::kWrite});
  const PageBuffer other(2 * kPage, 2);
  EXPECT_TRUE(Move(WriteOf(file.get(), 0, other.all())).ok());
  EXPECT_TRUE(Read(file, 0).ok());
  EXPECT_TRUE(std::equal(target_.all().begin(), target_.all().end(), memory_.all().begin()));
}

}  // namespace
}  // namespace cairn
