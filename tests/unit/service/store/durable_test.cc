// SPDX-License-Identifier: Apache-2.0
// Puts that ask to be durable: what they wait for, and what they are answered.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "service/put/put.h"
#include "tests/support/lasting_store.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

using proto::Durability;

class DurableTest : public testing::Test {
 protected:
  // What a put is answered, once it is.
  struct Answered {
    std::optional<proto::PutReply> reply;
  };
  static proto::BlockKey Key(uint64_t number) { return StoreFixture::Key(number); }

  ~DurableTest() override { store_.upkeep->Stop(); }

  // A put of the block, which is the `position`th of its chain.
  Answered& Put(uint64_t number, uint64_t parent = 0, uint64_t position = 0,
                bool is_durable = true) {
    const auto whole = StoreFixture::Whole(space_);
    const auto source = StoreFixture::Source(space_, Key(number), 0, whole);
    proto::Frame frame = StoreFixture::PutFrame(space_, Key(number), whole, source);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = parent == 0 ? proto::BlockKey{} : Key(parent);
    body.first_position = position * space_.tokens_per_block();
    body.is_durable = is_durable;
    auto op = store_.AdmitPut(frame, store_.session, store_.clock.Now() + kDeadline);
    CAIRN_CHECK_OK(op);
    Answered& answered = *answered_.emplace_back(std::make_unique<Answered>());
    (*op)->done = [&answered](const Request&, const absl::StatusOr<proto::PutReply>& reply) {
      CAIRN_CHECK(reply.ok() && !answered.reply.has_value());
      answered.reply = *reply;
    };
    if ((*op)->is_duplicate) {
      store_.puts->Reply(*std::move(op), absl::OkStatus());
    } else {
      store_.FinishPut(*std::move(op), source);
    }
    return answered;
  }
  void Round() { store_.upkeep->RunOnce(); }
  static Durability Of(const Answered& answered) {
    return answered.reply.has_value() ? answered.reply->durability : Durability::kNotAsked;
  }
  double Metric(const std::string& series) {
    MetricCapture metrics;
    store_.upkeep->Report(metrics);
    return metrics.Value(series);
  }

  static constexpr absl::Duration kDeadline = absl::Seconds(2);
  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  LastingStore store_{disk_};
  SpaceEntry& space_ = store_.OpenSpace("exact");
  std::vector<std::unique_ptr<Answered>> answered_;
};

TEST_F(DurableTest, AnsweredOnceWrittenAndSynced) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  EXPECT_FALSE(put.reply.has_value());
  Round();
  ASSERT_EQ(store_.lasting.waiting().size(), 1u) << "the write";
  EXPECT_EQ(Metric("cairn_waiting_durable_puts"), 1);
  store_.lasting.CompleteAll();
  EXPECT_FALSE(put.reply.has_value()) << "written is not durable yet";
  ASSERT_EQ(store_.lasting.waiting().size(), 1u) << "the sync";
  store_.lasting.CompleteAll();
  ASSERT_TRUE(put.reply.has_value());
  EXPECT_EQ(put.reply->durability, Durability::kDurable);
  EXPECT_FALSE(put.reply->is_duplicate);
  EXPECT_GT(put.reply->image_bytes, 0u);
  EXPECT_EQ(Metric("cairn_durable_puts_total{outcome=\"durable\"}"), 1);
  EXPECT_EQ(Metric("cairn_waiting_durable_puts"), 0);
}

// A flush of the tier failed, and its copy is lost; the next sync succeeds without it.
TEST_F(DurableTest, WhatIsLostBeforeItIsSyncedIsWrittenAgain) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  Round();
  store_.lasting.CompleteAll();
  ASSERT_EQ(store_.lasting.waiting().size(), 1u) << "the sync";
  store_.index->LoseCopies(TierId::kSsd, 0, UINT64_MAX);
  store_.lasting.CompleteAll();
  EXPECT_FALSE(put.reply.has_value()) << "nothing of it is in the tier";
  Round();
  store_.lasting.CompleteAll();
  EXPECT_FALSE(put.reply.has_value());
  store_.lasting.CompleteAll();
  EXPECT_EQ(Of(put), Durability::kDurable);
  EXPECT_TRUE(disk_->Find(Key(1)) != nullptr);
}

// Only the devices that have a part of the chain.
TEST(DurablePartsTest, SyncsWhatTheChainLiesOn) {
  TierTraits traits = LastingStore::kTraits;
  traits.part_shift = 14;  // of 16 KiB each
  const auto disk = std::make_shared<MemoryDisk>();
  LastingStore store(disk, 16_MiB, 64_MiB, traits);
  const SpaceEntry& space = store.OpenSpace("exact");
  const auto whole = StoreFixture::Whole(space);
  uint64_t offset = 0;
  for (uint64_t number = 1; number <= 4; ++number) {  // a chain of two, twice
    const auto source = StoreFixture::Source(space, StoreFixture::Key(number), 0, whole);
    proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(number), whole, source);
    if (number % 2 == 0) {
      auto& body = std::get<proto::Put>(frame.body);
      body.parent = StoreFixture::Key(number - 1);
      body.first_position = space.tokens_per_block();
    }
    CAIRN_CHECK_OK(store.RunPut(frame, source, store.session, false));
    store.WriteAllDown();
  }
  for (uint64_t number = 1; number <= 4; ++number) {
    uint64_t parts = 0;
    for (uint64_t of = number - (number + 1) % 2; of <= number; ++of) {
      const ImagePins pins = store.index->PinImages({space.id(), StoreFixture::Key(of)});
      ASSERT_EQ(pins.size(), 1u);
      offset = store.index->PinCopy(pins[0], TierId::kSsd).extent().offset();
      parts |= traits.PartOf(offset);
    }
    std::optional<Durability> answer;
    store.upkeep->await_durable()(
        {space.id(), StoreFixture::Key(number)}, {.group = 0, .slice = whole},
        store.clock.Now() + absl::Seconds(2), [&](Durability given) { answer = given; });
    EXPECT_EQ(answer, Durability::kDurable);
    EXPECT_EQ(store.lasting.synced_parts(), parts) << number;
  }
  EXPECT_GT(offset >> traits.part_shift, 0u) << "all lie in one part";
  store.upkeep->Stop();
}

TEST_F(DurableTest, OneThatDoesNotAskDoesNotWait) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1, 0, 0, /*is_durable=*/false);
  ASSERT_TRUE(put.reply.has_value());
  EXPECT_EQ(put.reply->durability, Durability::kNotAsked);
}

TEST_F(DurableTest, GoesBeforeAllThatWasPutBefore) {
  for (uint64_t number = 1; number <= 20; ++number) {
    Put(number, 0, 0, /*is_durable=*/false);
  }
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(100);
  Round();
  const auto waiting = store_.lasting.waiting();
  ASSERT_EQ(waiting.size(), 21u);
  store_.lasting.Complete(waiting.front(), absl::OkStatus());  // the first that was submitted
  ASSERT_EQ(store_.lasting.waiting().size(), 21u);
  store_.lasting.Complete(store_.lasting.waiting().back(), absl::OkStatus());  // its sync
  EXPECT_EQ(Of(put), Durability::kDurable);
  store_.lasting.CompleteAll();
}

TEST_F(DurableTest, AncestorsComeFirst) {
  for (uint64_t number = 1; number <= 4; ++number) {
    Put(number, number - 1, number - 1, /*is_durable=*/false);
  }
  Put(50, 0, 0, /*is_durable=*/false);
  store_.lasting.HoldCompletions(true);
  const Answered& tail = Put(5, 4, 4);
  Round();
  auto writes = store_.lasting.waiting();
  ASSERT_EQ(writes.size(), 6u);
  // The tail is written before its parent: it waits for it.
  store_.lasting.Complete(writes[4], absl::OkStatus());
  for (const int ancestor : {0, 1, 2}) {
    store_.lasting.Complete(writes[ancestor], absl::OkStatus());
  }
  EXPECT_EQ(store_.lasting.waiting().size(), 2u) << "no sync yet";
  EXPECT_EQ(Of(tail), Durability::kNotAsked);
  store_.lasting.Complete(writes[3], absl::OkStatus());
  ASSERT_EQ(store_.lasting.waiting().size(), 2u);
  store_.lasting.Complete(store_.lasting.waiting().back(), absl::OkStatus());
  EXPECT_EQ(Of(tail), Durability::kDurable);
  store_.lasting.CompleteAll();
}

TEST_F(DurableTest, AnAncestorOnItsWayIsWaitedFor) {
  const Answered& tail = Put(2, 1, 1);
  Round();
  EXPECT_EQ(Of(tail), Durability::kNotAsked);
  const Answered& root = Put(1);
  Round();
  EXPECT_EQ(Of(root), Durability::kDurable);
  EXPECT_EQ(Of(tail), Durability::kDurable);
}

TEST_F(DurableTest, AnAncestorThatIsNotThereIsNamedBeforeTheDeadline) {
  const Answered& tail = Put(2, 1, 1);
  Round();
  store_.clock.Advance(absl::Milliseconds(1899));
  Round();
  EXPECT_FALSE(tail.reply.has_value());
  store_.clock.Advance(absl::Milliseconds(1));
  Round();
  EXPECT_EQ(Of(tail), Durability::kAncestors) << "100 ms before the deadline";
  EXPECT_TRUE(store_.index->Contains(space_.id(), {Key(2)}, space_.whole())[0]) << "it is stored";
}

TEST_F(DurableTest, ADuplicateWaitsForTheImageThatIsThere) {
  Put(1, 0, 0, /*is_durable=*/false);
  store_.lasting.HoldCompletions(true);
  const Answered& again = Put(1);
  EXPECT_FALSE(again.reply.has_value());
  Round();
  store_.lasting.CompleteAll();
  store_.lasting.CompleteAll();
  ASSERT_TRUE(again.reply.has_value());
  EXPECT_TRUE(again.reply->is_duplicate);
  EXPECT_EQ(again.reply->durability, Durability::kDurable);
  const Answered& third = Put(1);
  EXPECT_EQ(store_.lasting.waiting().size(), 1u) << "written before: it is synced alone";
  store_.lasting.CompleteAll();
  EXPECT_EQ(Of(third), Durability::kDurable);
}

TEST_F(DurableTest, WithoutATierThatLastsItSaysSoAtOnce) {
  StoreFixture store;
  SpaceEntry& space = store.OpenSpace("exact");
  const auto whole = StoreFixture::Whole(space);
  const auto source = StoreFixture::Source(space, Key(1), 0, whole);
  proto::Frame frame = StoreFixture::PutFrame(space, Key(1), whole, source);
  std::get<proto::Put>(frame.body).is_durable = true;
  const auto reply = store.RunPut(frame, source, store.session);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->durability, Durability::kNoTier);
  EXPECT_TRUE(store.RunGet(space, Key(1), whole).ok()) << "it is stored";
  store.upkeep->Stop();
}

TEST_F(DurableTest, ATierThatTakesNoWritesAnswersAtOnce) {
  store_.lasting.SetOut(true);
  const Answered& put = Put(1);
  Round();
  EXPECT_EQ(Of(put), Durability::kReadOnly);
  const Answered& next = Put(2);
  Round();
  EXPECT_EQ(Of(next), Durability::kReadOnly) << "though the tier rests";
  store_.lasting.SetOut(false);
  const Answered& third = Put(3);
  Round();
  EXPECT_EQ(Of(third), Durability::kDurable) << "it is tried at once";
}

TEST_F(DurableTest, AShortWriteBudgetIsForItAndASpentOneIsNamed) {
  Put(100);
  Round();
  const uint64_t image_bytes = disk_->copies.begin()->second.bytes.size();
  store_.upkeep->Stop();
  store_.upkeep = std::make_unique<Upkeep>(
      store_.spaces, *store_.index, *store_.tiers, store_.clock,
      Upkeep::Options{.write_budget_bytes = limits::kWriteBudgetStartShare * 4 * image_bytes});
  store_.puts->SetAwaitDurable(store_.upkeep->await_durable());
  Put(200, 0, 0, /*is_durable=*/false);
  std::vector<const Answered*> puts;
  for (uint64_t number = 1; number <= 8; ++number) {
    puts.push_back(&Put(number));
    Round();
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Of(*puts[i]), Durability::kDurable) << i;
  }
  EXPECT_FALSE(puts.back()->reply.has_value());
  store_.clock.Advance(absl::Milliseconds(1900));
  Round();
  EXPECT_EQ(Of(*puts.back()), Durability::kNoRoom);
}

TEST_F(DurableTest, ASyncThatFailsIsNotDurable) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  Round();
  store_.lasting.CompleteAll();
  store_.lasting.CompleteAll(absl::UnavailableError("EIO"));
  EXPECT_EQ(Of(put), Durability::kReadOnly);
}

TEST_F(DurableTest, AWriteThatFailsIsTriedAgainUntilTheDeadline) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  Round();
  store_.lasting.CompleteAll(absl::DataLossError("EIO"));
  store_.lasting.HoldCompletions(false);
  EXPECT_FALSE(put.reply.has_value());
  Round();
  EXPECT_FALSE(put.reply.has_value()) << "the tier rests";
  store_.clock.Advance(absl::Milliseconds(100));
  Round();
  EXPECT_EQ(Of(put), Durability::kDurable);
}

TEST_F(DurableTest, LateIsAnsweredInTime) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  Round();
  store_.clock.Advance(kDeadline - absl::Milliseconds(100));
  Round();
  EXPECT_EQ(Of(put), Durability::kLate);
  store_.lasting.CompleteAll();  // it becomes durable all the same, and nobody hears of it
  store_.lasting.CompleteAll();
}

TEST_F(DurableTest, WhatIsDeletedMeanwhileIsNotWaitedForAnyMore) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  Round();
  store_.index->Delete(space_.id(), {Key(1)});
  store_.lasting.CompleteAll();
  EXPECT_EQ(Of(put), Durability::kGone);
}

TEST_F(DurableTest, AnEndAnswersThoseThatWait) {
  store_.lasting.HoldCompletions(true);
  const Answered& put = Put(1);
  store_.upkeep->Stop();
  EXPECT_EQ(Of(put), Durability::kStopping);
  const Answered& next = Put(2);
  EXPECT_EQ(Of(next), Durability::kStopping);
}

// Room comes back while the put waits.
TEST(DurableFullTest, NoRoomIsNamedAndWaitedFor) {
  const auto disk = std::make_shared<MemoryDisk>();
  LastingStore store(disk, 16_MiB, /*disk_bytes=*/32 * 1024);
  SpaceEntry& space = store.OpenSpace("exact");
  const auto whole = StoreFixture::Whole(space);
  // What the tier has is held.
  const auto keys = store.PutChain(space, 2);
  store.WriteAllDown();
  std::vector<ImagePins> pins;
  for (const proto::BlockKey& key : keys) {
    pins.push_back(store.index->PinImages({space.id(), key}));
    const CopyPin copy = store.index->PinCopy(pins.back()[0], TierId::kHost);
    EXPECT_TRUE(store.index->Drop(copy)) << "the tier has the last copy";
  }
  std::optional<Durability> durability;
  const auto source = StoreFixture::Source(space, StoreFixture::Key(9), 0, whole);
  proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(9), whole, source);
  std::get<proto::Put>(frame.body).is_durable = true;
  auto op = store.AdmitPut(frame, store.session, store.clock.Now() + absl::Seconds(2));
  ASSERT_TRUE(op.ok());
  (*op)->done = [&](const Request&, const absl::StatusOr<proto::PutReply>& reply) {
    durability = reply->durability;
  };
  store.FinishPut(*std::move(op), source);
  store.upkeep->RunOnce();
  EXPECT_FALSE(durability.has_value()) << "there may be room soon";
  store.clock.Advance(absl::Milliseconds(1900));
  store.upkeep->RunOnce();
  EXPECT_EQ(durability, Durability::kNoRoom);
  pins.clear();
  store.upkeep->Stop();
}

}  // namespace
}  // namespace cairn
