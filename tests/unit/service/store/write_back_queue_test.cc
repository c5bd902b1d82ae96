// SPDX-License-Identifier: Apache-2.0
// Which images the drive is to get, in which order, and which it does without.
#include "service/index/write_back_queue.h"

#include "tests/unit/service/store/parts_fixture.h"

namespace cairn {
namespace {

class WriteBackQueueTest : public PartsTest {
 protected:
  // The next image to write, which stays in the queue.
  Image* Next() {
    Visits visits;
    return queue_.Next(queue_.BeginRound(), visits);
  }
  void Use(uint64_t number) { parts_.tiers.Touch(Find(number), clock_.Now()); }

  WriteBackQueue& queue_ = parts_.write_back;
};

TEST_F(WriteBackQueueTest, AncestorsComeFirst) {
  Image* third = Put(3);
  Image* second = Put(2);
  Image* first = Put(1);
  EXPECT_EQ(queue_.uncopied_count(), 3u);
  for (Image* image : {first, second, third}) {
    ASSERT_EQ(Next(), image);
    ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  }
  EXPECT_EQ(Next(), nullptr);
  EXPECT_EQ(queue_.uncopied_count(), 0u);
}

TEST_F(WriteBackQueueTest, AnImageThatIsBeingWrittenIsNotInTheQueue) {
  Image* image = Put(1);
  ASSERT_TRUE(parts_.tiers.BeginCopy(image, TierId::kSsd));
  EXPECT_EQ(queue_.uncopied_count(), 0u);
  parts_.tiers.GiveUpCopy(image, TierId::kSsd);
  EXPECT_EQ(Next(), image);
}

TEST_F(WriteBackQueueTest, APendingEncodingComesBeforeTheWrite) {
  Image* image = Put(1, TierId::kHost, /*is_encode_pending=*/true);
  Image* child = Put(2);
  EXPECT_EQ(queue_.FirstPending(), image);
  EXPECT_EQ(queue_.uncopied_count(), 1u);
  EXPECT_EQ(Next(), nullptr) << "the child waits for it";
  queue_.ClearPending(image);
  EXPECT_EQ(queue_.pending_count(), 0u);
  EXPECT_EQ(Next(), image);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  EXPECT_EQ(Next(), child);
}

TEST_F(WriteBackQueueTest, ADroppedCopyIsWantedAgainOnceItsBlockIsUsed) {
  Image* image = Put(1);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  EvictFromDrive(image);
  EXPECT_EQ(image->suppressed, Suppressed::kDropped);
  EXPECT_EQ(queue_.uncopied_count(), 0u) << "nobody used it since it was written";
  Use(1);
  EXPECT_EQ(image->suppressed, Suppressed::kNot);
  EXPECT_EQ(Next(), image);
}

TEST_F(WriteBackQueueTest, ADroppedCopyOfAUsedBlockIsWantedAtOnce) {
  Image* image = Put(1);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  Use(1);
  EvictFromDrive(image);
  EXPECT_EQ(Next(), image);
}

TEST_F(WriteBackQueueTest, AChildBringsBackADroppedParent) {
  Image* image = Put(1);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  EvictFromDrive(image);
  Put(2);
  EXPECT_EQ(Next(), image);
}

TEST_F(WriteBackQueueTest, AnUnusedChildIsWrittenWithoutAWithheldParent) {
  Image* image = Put(1);
  Image* child = Put(2);
  queue_.SetSuppressed(image, Suppressed::kWithheld);
  EXPECT_EQ(Next(), child);
  Use(2);
  EXPECT_EQ(Next(), image) << "it is used with its child";
}

TEST_F(WriteBackQueueTest, TheOldestCleanBlockIsCompleteOnTheDrive) {
  Image* first = Put(1);
  Visits visits;
  EXPECT_EQ(queue_.OldestClean(kRankCount, visits), nullptr);
  EXPECT_TRUE(queue_.HasDirty(*Find(1)));
  ASSERT_TRUE(CopyTo(first, TierId::kSsd));
  EXPECT_FALSE(queue_.HasDirty(*Find(1)));
  EXPECT_EQ(queue_.OldestClean(kRankCount, visits), Find(1));
  parts_.tiers.Pin(first->copies[IndexOf(TierId::kHost)]);
  EXPECT_EQ(queue_.OldestClean(kRankCount, visits), nullptr) << "held";
  parts_.tiers.Unpin(first->copies[IndexOf(TierId::kHost)]);
}

TEST_F(WriteBackQueueTest, ABlockThatWasUsedIsCleanOnceMoreLater) {
  Image* first = Put(1);
  ASSERT_TRUE(CopyTo(first, TierId::kSsd));
  Image* other = Put(9);
  ASSERT_TRUE(CopyTo(other, TierId::kSsd));
  Use(1);
  Visits visits;
  EXPECT_EQ(queue_.OldestClean(kRankCount, visits), Find(9));
}

TEST_F(WriteBackQueueTest, ExpediteMovesTheNearestMissingAncestor) {
  Image* first = Put(1);
  Image* second = Put(2);
  Put(5);
  using State = WriteBackProgress::State;
  Visits visits;
  WriteBackProgress progress = queue_.Expedite(*Find(2), 0, kSlice, visits);
  EXPECT_EQ(progress.state, State::kOnItsWay);
  EXPECT_EQ(progress.block, Name(2));
  EXPECT_EQ(Next(), first) << "before its child";
  ASSERT_TRUE(CopyTo(first, TierId::kSsd));
  ASSERT_TRUE(CopyTo(second, TierId::kSsd));
  progress = queue_.Expedite(*Find(2), 0, kSlice, visits);
  EXPECT_EQ(progress.state, State::kThere);
  EXPECT_EQ(progress.parts, 1u);
  EXPECT_EQ(queue_.Expedite(*Find(2), 1, kSlice, visits).state, State::kGone);
}

TEST_F(WriteBackQueueTest, WithoutADriveOnlyEncodingsArePending) {
  IndexParts parts({tiers_, 1}, 4096, UINT64_MAX, 64, 64, clock_, events_);
  Block* block = parts.chains.ReservePut(Claim(1));
  Image* image =
      parts.Add(block, {.claim = Claim(1), .copy = Bytes(TierId::kHost), .is_encode_pending = true},
                clock_.Now());
  parts.chains.EndReservation(block);
  EXPECT_EQ(parts.write_back.pending_count(), 1u);
  parts.write_back.ClearPending(image);
  EXPECT_EQ(parts.write_back.uncopied_count(), 0u);
  EXPECT_FALSE(parts.write_back.HasDirty(*block));
  parts.Unlink(block, RemovalReason::kDeleted);
}

}  // namespace
}  // namespace cairn
