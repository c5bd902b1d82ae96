// SPDX-License-Identifier: Apache-2.0
// Profiles that upkeep mines out of a space's own blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/bf16_error.h"
#include "tests/support/metric_capture.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
constexpr uint64_t kBlocks = 33;     // of 16 tokens: 512 to mine of, and a block to judge by
constexpr uint64_t kSampleMax = 64;  // 1024 tokens
constexpr int kRoundsMax = 10'000;

class MiningTest : public testing::Test {
 protected:
  SpaceEntry& Cairn(std::string_view recipe = "cairn:2.3", bool turns = false) {
    auto identity = StoreFixture::Identity();
    identity.model = std::string(recipe);
    if (turns) {
      identity.groups[0].rope = {proto::Rope::Kind::kHalf, 32, 10000, {}};
    }
    return store_.OpenSpace(recipe, identity);
  }
  SideObjects& objects() { return store_.side_objects; }
  SideObjectRef Current(const SpaceEntry& space) {
    return objects().Current(space.id(), 0, proto::SideObjectKind::kProfile);
  }
  double Metric(const std::string& name) {
    MetricCapture metrics;
    store_.upkeep->Report(metrics);
    return metrics.Value(name);
  }
  // Rounds of upkeep until nothing is due at once.
  void RunUpkeep() {
    for (int i = 0; i < kRoundsMax; ++i) {
      if (store_.upkeep->RunOnce() > store_.clock.Now()) return;
    }
    FAIL() << "upkeep goes on and on";
  }
  // The first slices: all blocks are pinned, of which there are no more than a sample takes, and
  // nothing is mined yet.
  void BeginMining() {
    const auto has_sample = [&] {
      return store_.index->pinned_bytes() == store_.host->used_bytes();
    };
    for (int i = 0; i < kRoundsMax && !has_sample(); ++i) {
      store_.upkeep->RunOnce();
    }
    ASSERT_TRUE(has_sample());
    ASSERT_EQ(objects().count(), 0u);
  }
  std::string RecipeOf(const SpaceEntry& space, const proto::BlockKey& key) {
    const auto answer = store_.RunGet(space, key, StoreFixture::Whole(space), proto::Form::kImage);
    CAIRN_CHECK_OK(answer);
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(answer->payload, &view) == codecs::Error::kOk);
    return std::string(codecs::FormatRecipe(view.spec().recipe));
  }
  // A block of zeros.
  void PutZeros(const SpaceEntry& space, uint64_t key) {
    const Bytes source(
        StoreFixture::Source(space, StoreFixture::Key(key), 0, StoreFixture::Whole(space)).size());
    const auto frame =
        StoreFixture::PutFrame(space, StoreFixture::Key(key), StoreFixture::Whole(space), source);
    CAIRN_CHECK_OK(store_.RunPut(frame, source, store_.session));
  }
  double ImageShare(const SpaceEntry& space, uint64_t key) {
    const auto pins =
        store_.index->Lookup({space.id(), StoreFixture::Key(key)}, 0, StoreFixture::Whole(space));
    CAIRN_CHECK(pins.size() == 1);
    return static_cast<double>(pins[0].copy().image_bytes) /
           static_cast<double>(pins[0].facts().source_bytes);
  }
  // What puts of so many tokens say of queries: those of the first channel are four times as large.
  void AddQueries(const SpaceEntry& space, uint32_t tokens) {
    const codecs::GroupShape& shape = space.groups()[0];
    std::vector<float> means(size_t{shape.layers} * shape.heads * shape.tile.k_dim, 1);
    for (size_t i = 0; i < means.size(); i += shape.tile.k_dim) means[i] = 16;
    ASSERT_TRUE(store_.query_squares.Add({space.id(), 0, space.tenant()}, shape,
                                         StoreFixture::Whole(space), means, tokens));
  }
  // Of a head's second channel and its first.
  int StepsBetween(const SpaceEntry& space) {
    const SideObjectRef mined = Current(space);
    return mined.profile()->Channel(0, {1, 2}, 1).step_log -
           mined.profile()->Channel(0, {1, 2}, 0).step_log;
  }
  void RunUpkeepAfter(absl::Duration pause) {
    store_.clock.Advance(pause);
    RunUpkeep();
  }
  // Root of the mean square of what a block's values are off by.
  double ErrorOf(const SpaceEntry& space, const proto::BlockKey& key) {
    const auto whole = StoreFixture::Whole(space);
    const auto got = store_.RunGet(space, key, whole);
    CAIRN_CHECK_OK(got);
    return Bf16Error(StoreFixture::Source(space, key, 0, whole), got->payload);
  }

  StoreFixture store_;
};

TEST_F(MiningTest, FiveHundredTokensMakeAProfile) {
  SpaceEntry& space = Cairn("cairn:4.3", true);
  const auto keys = store_.PutChain(space, kBlocks - 1);
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr) << "too few tokens";
  const auto last = store_.PutSource(space, StoreFixture::Key(kBlocks), StoreFixture::Whole(space),
                                     keys.back(), (kBlocks - 1) * 16);
  ASSERT_TRUE(last.ok()) << last.status();
  store_.clock.Advance(absl::Seconds(1));
  RunUpkeep();
  const SideObjectRef mined = Current(space);
  ASSERT_NE(mined.get(), nullptr);
  EXPECT_EQ(objects().OriginOf(mined), SideObjectOrigin::kMined);
  EXPECT_EQ(objects().List(space.id())[0].origin, SideObjectOrigin::kMined);
  ASSERT_EQ(mined.profile()->PairCount(), 16u) << "the space says how K turns";
  EXPECT_NEAR(std::ldexp(static_cast<double>(mined.profile()->PairTurns(0)), -64),
              1 / (2 * 3.14159265), 1e-8);
  for (const uint32_t bits : {23U, 30U, 43U}) {
    EXPECT_TRUE(mined.profile()->MultiplierOf(bits).has_value());
  }
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 1);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 0);
  // What is there stays as it is; what comes is coded with it.
  EXPECT_EQ(RecipeOf(space, keys[0]), "exact");
  const auto later = StoreFixture::Key(1000);
  ASSERT_TRUE(store_.PutSource(space, later, StoreFixture::Whole(space)).ok());
  EXPECT_EQ(RecipeOf(space, later), "cairn:4.3");
  EXPECT_GT(ErrorOf(space, later), 0);
  EXPECT_LT(ErrorOf(space, later), 0.2) << "values are about 1.5";
  store_.clock.Advance(absl::Seconds(2));
  RunUpkeep();
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 1) << "once";
}

// In a cluster, another member may be the one that mines.
class Turns final : public MiningTurns {
 public:
  bool is_ours = false;
  int asked = 0, mined = 0;
  Need need;
  std::vector<codecs::Digest> given_up;

  bool IsOurs(const SpaceRef&, uint16_t, Need told, absl::Time) override {
    ++asked;
    need = told;
    return is_ours;
  }
  void Mined(uint64_t, uint16_t) override { ++mined; }
  void GaveUp(uint64_t, uint16_t, const codecs::Digest& id) override { given_up.push_back(id); }
};

TEST_F(MiningTest, WhatAnotherMemberMinesIsNotMinedHere) {
  Turns turns;
  store_.upkeep->SetTurns(&turns);
  SpaceEntry& space = Cairn();
  const auto keys = store_.PutChain(space, 1);
  RunUpkeep();
  EXPECT_TRUE(turns.need.wants);
  EXPECT_FALSE(turns.need.can_mine) << "it takes a profile also then";
  store_.PutChain(space, kBlocks, 1000);
  RunUpkeepAfter(absl::Seconds(1));
  EXPECT_TRUE(turns.need.can_mine);
  EXPECT_TRUE(Mining::HasEnough(space, 0, store_.index->figures(space.id()).source_bytes));
  EXPECT_EQ(Current(space).get(), nullptr);
  turns.is_ours = true;
  RunUpkeepAfter(absl::Seconds(1));
  ASSERT_NE(Current(space).get(), nullptr);
  EXPECT_EQ(turns.mined, 1);
  // Who follows another member does not mine again either.
  turns.is_ours = false;
  AddQueries(space, 512);
  RunUpkeepAfter(absl::Seconds(2));
  EXPECT_FALSE(turns.need.wants);
  EXPECT_EQ(turns.mined, 1);
  turns.is_ours = true;
  RunUpkeepAfter(absl::Seconds(1));
  EXPECT_EQ(turns.mined, 2);
  const int asked = turns.asked;
  Cairn("exact");
  RunUpkeepAfter(absl::Seconds(1));
  EXPECT_EQ(turns.asked, asked + 1) << "of spaces that need a profile only";
}

TEST_F(MiningTest, SlicesOfTwoRanksAreOneSample) {
  SpaceEntry& space = Cairn();
  for (uint64_t i = 1; i <= kBlocks; ++i) {
    ASSERT_TRUE(store_.PutSource(space, StoreFixture::Key(i), kLeft).ok());
    ASSERT_TRUE(store_.PutSource(space, StoreFixture::Key(1000 + i), kRight).ok());
  }
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr) << "no block is whole";
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  for (uint64_t i = 1; i <= kBlocks; ++i) {
    ASSERT_TRUE(store_.PutSource(space, StoreFixture::Key(i), kRight).ok());
  }
  store_.clock.Advance(absl::Minutes(10));
  RunUpkeep();
  EXPECT_NE(Current(space).get(), nullptr);
}

TEST_F(MiningTest, LatentsHaveAProfileOfOnePlane) {
  auto identity = StoreFixture::Identity();
  identity.groups[0].kind = proto::GroupGeometry::Kind::kLatent;
  identity.groups[0].kv_heads = 1;
  identity.groups[0].v_dim = 0;
  identity.groups[0].rope = {proto::Rope::Kind::kHalf, 16, 10000, {}};
  SpaceEntry& space = store_.OpenSpace("cairn-hot:3.5", identity);
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  const SideObjectRef mined = Current(space);
  ASSERT_NE(mined.get(), nullptr);
  EXPECT_EQ(mined.profile()->planes(), 1u);
  EXPECT_EQ(mined.profile()->PairCount(), 0u) << "it is not said which channels turn";
  const auto later = StoreFixture::Key(1000);
  ASSERT_TRUE(store_.PutSource(space, later, StoreFixture::Whole(space)).ok());
  EXPECT_EQ(RecipeOf(space, later), "cairn-hot:3.5");
}

TEST_F(MiningTest, StepsAreFineWhereQueriesAreLarge) {
  SpaceEntry& space = Cairn();
  AddQueries(space, 16);
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  ASSERT_NE(Current(space).get(), nullptr);
  EXPECT_NEAR(StepsBetween(space), 512, 2) << "two octaves: a sixteenth of the square";
}

TEST_F(MiningTest, QueriesThatComeLaterMakeAnotherProfile) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  const codecs::Digest first = Current(space).get()->id();
  EXPECT_EQ(StepsBetween(space), 0) << "nothing is known of queries";
  const auto coded = StoreFixture::Key(1000);
  ASSERT_TRUE(store_.PutSource(space, coded, StoreFixture::Whole(space)).ok());
  const double error = ErrorOf(space, coded);
  AddQueries(space, 511);
  RunUpkeepAfter(absl::Seconds(2));
  EXPECT_EQ(Current(space).get()->id(), first) << "of too few tokens";
  AddQueries(space, 1);
  RunUpkeepAfter(absl::Seconds(2));
  const codecs::Digest second = Current(space).get()->id();
  EXPECT_NE(second, first);
  EXPECT_EQ(objects().OriginOf(Current(space)), SideObjectOrigin::kMined);
  EXPECT_NEAR(StepsBetween(space), 512, 2);
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 2);
  EXPECT_EQ(Metric("cairn_upkeep_mined_again_total"), 1);
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  // Each image keeps the profile that it names.
  const auto later = StoreFixture::Key(1001);
  ASSERT_TRUE(store_.PutSource(space, later, StoreFixture::Whole(space)).ok());
  EXPECT_EQ(ErrorOf(space, coded), error);
  EXPECT_GT(ErrorOf(space, later), 0);
  EXPECT_EQ(objects().count(), 2u);
  EXPECT_EQ(store_.index->Delete(space.id(), {&coded, 1}), 1u);
  EXPECT_EQ(objects().count(), 1u) << "no image names the first";
  EXPECT_EQ(Current(space).get()->id(), second);
}

TEST_F(MiningTest, EightTimesTheQueriesMakeAnotherProfileTwiceAtMost) {
  SpaceEntry& space = Cairn();
  AddQueries(space, 512);
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  uint32_t known = 512;
  for (int again = 0; again < 4; ++again) {
    AddQueries(space, 7 * known - 1);
    RunUpkeepAfter(absl::Seconds(2));
    EXPECT_EQ(Metric("cairn_upkeep_mined_again_total"), std::min(again, 2));
    AddQueries(space, 1);
    RunUpkeepAfter(absl::Seconds(2));
    EXPECT_EQ(Metric("cairn_upkeep_mined_again_total"), std::min(again + 1, 2));
    known *= 8;
  }
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 3);
}

// A profile says by itself whether it knows of queries: that outlives the process.
TEST_F(MiningTest, AfterARestartOnlyAProfileWithoutQueriesIsMinedAgain) {
  const auto restart = [&] {
    store_.upkeep =
        std::make_unique<Upkeep>(store_.spaces, *store_.index, *store_.tiers, store_.clock);
    store_.puts->SetAwaitDurable(store_.upkeep->await_durable());
    store_.gets->SetNoteRead(store_.upkeep->note_read());
  };
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  const codecs::Digest first = Current(space).get()->id();
  AddQueries(space, 512);
  restart();
  RunUpkeepAfter(absl::Seconds(2));
  const codecs::Digest second = Current(space).get()->id();
  EXPECT_NE(second, first);
  EXPECT_EQ(Metric("cairn_upkeep_mined_again_total"), 1);
  AddQueries(space, 100'000);
  restart();
  RunUpkeepAfter(absl::Seconds(2));
  EXPECT_EQ(Current(space).get()->id(), second);
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 0);
}

TEST_F(MiningTest, WithoutExactBlocksAMinedProfileStays) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  const codecs::Digest first = Current(space).get()->id();
  EXPECT_EQ(store_.index->Invalidate(space.id()), kBlocks);
  const auto keys = store_.PutChain(space, kBlocks, 2000);
  EXPECT_EQ(RecipeOf(space, keys[0]), "cairn:2.3");
  AddQueries(space, 512);
  RunUpkeepAfter(absl::Seconds(2));
  EXPECT_EQ(Current(space).get()->id(), first);
  EXPECT_EQ(RecipeOf(space, keys[0]), "cairn:2.3");
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 0);
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
}

TEST_F(MiningTest, QueriesReplaceNoProfileThatWasInstalled) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  const Bytes mined(Current(space).get()->bytes().begin(), Current(space).get()->bytes().end());
  ASSERT_TRUE(space.coding().Install(0, proto::SideObjectKind::kProfile, mined).ok());
  AddQueries(space, 512);
  RunUpkeepAfter(absl::Seconds(2));
  EXPECT_EQ(Current(space).get()->id(), proto::SideObjectId(mined));
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 1);
}

TEST_F(MiningTest, WhatWasInstalledIsNeverReplacedByWhatIsMined) {
  SpaceEntry& space = Cairn();
  const Bytes installed =
      codecs::ProfileBytes({.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32}, std::mt19937_64(1))
          .bytes();
  store_.PutChain(space, kBlocks);
  BeginMining();
  ASSERT_TRUE(space.coding().Install(0, proto::SideObjectKind::kProfile, installed).ok());
  RunUpkeep();
  EXPECT_EQ(Current(space).get()->id(), proto::SideObjectId(installed));
  EXPECT_EQ(objects().OriginOf(Current(space)), SideObjectOrigin::kInstalled);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 1);
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  const Bytes other =
      codecs::ProfileBytes({.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32}, std::mt19937_64(2))
          .bytes();
  EXPECT_TRUE(absl::IsAlreadyExists(
      space.coding()
          .Install(0, proto::SideObjectKind::kProfile, other, SideObjectOrigin::kMined)
          .status()));
}

TEST_F(MiningTest, WhatIsInstalledReplacesWhatWasMined) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  ASSERT_NE(Current(space).get(), nullptr);
  const Bytes mined(Current(space).get()->bytes().begin(), Current(space).get()->bytes().end());
  // Of equal bytes, who installs them is right.
  ASSERT_TRUE(space.coding().Install(0, proto::SideObjectKind::kProfile, mined).ok());
  EXPECT_EQ(objects().OriginOf(Current(space)), SideObjectOrigin::kInstalled);
}

TEST_F(MiningTest, AProfileThatMakesAnotherBlockLargerIsNotInstalled) {
  const SpaceEntry& space = Cairn();
  for (uint64_t key = 1; key <= kSampleMax; ++key) PutZeros(space, key);
  store_.PutChain(space, kBlocks, 1000);
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr);
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 0);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 1);
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  // The next sample is of the blocks behind.
  store_.clock.Advance(absl::Seconds(11));
  RunUpkeep();
  ASSERT_NE(Current(space).get(), nullptr);
  ASSERT_TRUE(store_.PutSource(space, StoreFixture::Key(5000), StoreFixture::Whole(space)).ok());
  EXPECT_EQ(RecipeOf(space, StoreFixture::Key(5000)), "cairn:2.3");
  EXPECT_LT(ImageShare(space, 5000), ImageShare(space, 1000)) << "than exact";
}

TEST_F(MiningTest, AMinedProfileWhoseImagesAreTooLargeIsWithdrawnAndMinedAgain) {
  Turns turns;
  turns.is_ours = true;
  store_.upkeep->SetTurns(&turns);
  const SpaceEntry& space = Cairn();
  for (uint64_t key = 1; key <= kSampleMax + 1; ++key) PutZeros(space, key);
  RunUpkeep();  // zeros judge it
  if (Current(space).get() == nullptr) {
    GTEST_SKIP() << "a profile of zeros does not take zeros";
  }
  const codecs::Digest bad = Current(space).get()->id();
  store_.PutChain(space, 8, 1000);
  EXPECT_EQ(RecipeOf(space, StoreFixture::Key(1000)), "cairn:2.3");
  EXPECT_GT(ImageShare(space, 1000), 0.9);
  store_.clock.Advance(absl::Seconds(11));
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr);
  EXPECT_EQ(Metric("cairn_upkeep_profiles_withdrawn_total"), 1);
  store_.PutChain(space, kBlocks, 2000);
  EXPECT_EQ(RecipeOf(space, StoreFixture::Key(2000)), "exact");
  store_.clock.Advance(absl::Seconds(31));
  RunUpkeep();
  ASSERT_NE(Current(space).get(), nullptr);
  EXPECT_NE(Current(space).get()->id(), bad);
  ASSERT_TRUE(store_.PutSource(space, StoreFixture::Key(5000), StoreFixture::Whole(space)).ok());
  EXPECT_EQ(RecipeOf(space, StoreFixture::Key(5000)), "cairn:2.3");
  EXPECT_LT(ImageShare(space, 5000), 0.5);
  store_.clock.Advance(absl::Seconds(11));
  RunUpkeep();
  EXPECT_EQ(Metric("cairn_upkeep_profiles_withdrawn_total"), 1) << "the good one stays";
  EXPECT_THAT(turns.given_up, testing::ElementsAre(bad));
}

TEST_F(MiningTest, AnotherRateIsMinedAgain) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  RunUpkeep();
  ASSERT_TRUE(store_.SetRecipe(space, "cairn:5.5").ok());
  store_.clock.Advance(absl::Seconds(1));
  RunUpkeep();
  ASSERT_NE(Current(space).get(), nullptr);
  EXPECT_TRUE(Current(space).profile()->MultiplierOf(55).has_value());
  EXPECT_EQ(Metric("cairn_upkeep_mined_total"), 2);
}

TEST_F(MiningTest, NoProfileIsMinedForRecipesThatNeedNone) {
  store_.PutChain(Cairn("exact"), kBlocks);
  RunUpkeep();
  EXPECT_EQ(objects().count(), 0u);
}

TEST_F(MiningTest, BlocksThatAreDeletedAreNoSample) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  BeginMining();
  EXPECT_EQ(store_.index->Invalidate(space.id()), kBlocks);
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr);
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  EXPECT_EQ(store_.host->used_bytes(), 0u);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 1);
  // Others are, a while later.
  store_.PutChain(space, kBlocks, 100);
  store_.clock.Advance(absl::Seconds(5));
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr);
  store_.clock.Advance(absl::Seconds(6));
  RunUpkeep();
  EXPECT_NE(Current(space).get(), nullptr);
}

TEST_F(MiningTest, MemoryThatWentBadIsNoSample) {
  SpaceEntry& space = Cairn();
  const auto keys = store_.PutChain(space, kBlocks);
  const auto flip = [&](uint64_t at) {
    const auto pins = store_.index->Lookup({space.id(), keys[7]}, 0, StoreFixture::Whole(space));
    store_.host->arena().mapping()[pins[0].extent().offset() + at] ^= std::byte{1};
  };
  flip(3000);  // of a tile
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 1);
  flip(20);  // of the header: too few blocks are left
  store_.clock.Advance(absl::Seconds(11));
  RunUpkeep();
  EXPECT_EQ(Current(space).get(), nullptr);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 1);
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
}

TEST_F(MiningTest, AFullTierGetsTheSampleBack) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  BeginMining();
  // Everything but the sample goes, and that is not enough.
  EXPECT_TRUE(absl::IsResourceExhausted(
      store_.host->Allocate(store_.host->capacity_bytes() - 4096).status()));
  RunUpkeep();
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
  EXPECT_EQ(Metric("cairn_upkeep_mining_given_up_total"), 1);
  EXPECT_TRUE(store_.host->Allocate(store_.host->capacity_bytes() - 4096).ok());
}

TEST_F(MiningTest, StopLetsGoOfTheSample) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  BeginMining();
  store_.upkeep->Stop();
  EXPECT_EQ(store_.index->pinned_bytes(), 0u);
}

// For the thread sanitizer: puts, gets, deletions and another's installs while the thread mines.
TEST_F(MiningTest, RunsBesideEverythingElse) {
  SpaceEntry& space = Cairn();
  store_.PutChain(space, kBlocks);
  store_.upkeep->Start();
  const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
  uint64_t key = 1000;
  while (Current(space).get() == nullptr && MonotonicNow() < deadline) {
    ASSERT_TRUE(store_.PutSource(space, StoreFixture::Key(key++), StoreFixture::Whole(space)).ok());
    store_.RunGet(space, StoreFixture::Key(1), StoreFixture::Whole(space)).IgnoreError();
    objects().List(space.id());
    Metric("cairn_upkeep_mined_total");
    store_.upkeep->Wake();
  }
  EXPECT_NE(Current(space).get(), nullptr);
  store_.upkeep->Stop();
}

}  // namespace
}  // namespace cairn
