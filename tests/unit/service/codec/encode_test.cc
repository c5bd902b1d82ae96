// SPDX-License-Identifier: Apache-2.0
// What a device encodes is what a processor does, and many images go together.
#include "codecs/image/image.h"
#include "tests/unit/service/codec/codec_fixture.h"

namespace cairn {
namespace {

class EncodeTest : public CodecTest {
 protected:
  // Blocks of the chain, put one after another.
  void PutChain(const SpaceEntry& space, uint64_t count, bool keeps_raw = false) {
    for (uint64_t number = 1; number <= count; ++number) {
      const auto put = StartPut(space, number, keeps_raw);
      ASSERT_TRUE(put->Await().ok()) << put->Await().status();
    }
  }
  static std::string RecipeOf(const Image& image) {
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(image, &view) == codecs::Error::kOk);
    return std::string(codecs::FormatRecipe(view.spec().recipe));
  }
  // A space of its own with the profile of that seed.
  SpaceEntry& OpenWith(uint64_t seed, StoreFixture& store) {
    identity_.weights_revision = "revision " + std::to_string(seed);
    SpaceEntry& space = store.OpenSpace(kProfileCase.recipe, identity_);
    Install(space, kProfileCase, seed);
    return space;
  }
  void ExpectRightWith(uint64_t seed, const SpaceEntry& space) {
    plain_ = std::make_unique<StoreFixture>();
    plain_space_ = &OpenWith(seed, *plain_);
    plain_blocks_ = 0;
    ExpectRight(space, 1);
  }
};

TEST_F(EncodeTest, ImagesEqualTheProcessors) {
  OpenPatient();
  double made = 0;
  for (const char* recipe : {"exact", "kivi:2", "kivi:4+", "fp8", "ott:2/local", "logquant:2"}) {
    SCOPED_TRACE(recipe);
    identity_.weights_revision = recipe;
    const SpaceEntry& space = store_.OpenSpace(recipe, identity_);
    PutChain(space, 2);
    EXPECT_EQ(RecipeOf(ImageOf(store_, space, 2)), recipe);
    ExpectRight(space, 1);
    ExpectRight(space, 2);
    EXPECT_EQ(Made(), made += 2);
  }
  ExpectAccounts();
  EXPECT_EQ(faults_->slow_copies, 0u) << "sources and images lie in registered memory";
  EXPECT_EQ(Metric("cairn_gpu_codec_source_bytes_total{op=\"encode\"}"), made * 16_KiB);
}

TEST_F(EncodeTest, GroupsOfEveryKind) {
  OpenPatient();
  using Kind = proto::GroupGeometry::Kind;
  proto::GroupGeometry group;
  group.layers = {0, 1};
  for (const Kind kind : {Kind::kLatent, Kind::kState, Kind::kOpaqueRows}) {
    SCOPED_TRACE(static_cast<int>(kind));
    group.kind = kind;
    group.kv_heads = kind == Kind::kLatent ? 1 : 0;
    group.k_dim = kind == Kind::kLatent ? 72 : 0;
    group.state_bytes = kind == Kind::kState ? 1000 : 0;
    group.row_bytes = kind == Kind::kOpaqueRows ? 34 : 0;
    identity_.groups = {group};
    identity_.weights_revision = std::to_string(static_cast<int>(kind));
    const SpaceEntry& space = store_.OpenSpace("exact", identity_);
    plain_space_ = nullptr;
    PutChain(space, 2);
    ExpectRight(space, 1);
    ExpectRight(space, 2);
  }
  EXPECT_EQ(Made(), 6);
}

TEST_F(EncodeTest, RecipesWithSideObjectsToo) {
  OpenPatient();
  for (const SideObjectCase& side : {kProfileCase, kBankCase}) {
    SCOPED_TRACE(side.recipe);
    identity_.weights_revision = side.recipe;
    SpaceEntry& space = store_.OpenSpace(side.recipe, identity_);
    Install(space, side);
    plain_ = std::make_unique<StoreFixture>();
    plain_space_ = &plain_->OpenSpace(side.recipe, identity_);
    plain_blocks_ = 0;
    Install(*plain_space_, side);
    const uint64_t before = faults_->copies_in;
    PutChain(space, 1);
    const uint64_t first = faults_->copies_in - before;
    ExpectRight(space, 1);
    EXPECT_EQ(RecipeOf(ImageOf(store_, space, 1)).substr(0, 8),
              std::string(side.recipe).substr(0, 8));
    const auto put = StartPut(space, 2);
    ASSERT_TRUE(put->Await().ok());
    EXPECT_EQ(faults_->copies_in - before - first, first - 1) << "the side object is there by now";
    ExpectRight(space, 2);
  }
  EXPECT_EQ(Made(), 4);
}

// arkv reads scores of tokens, mixkvq magnitudes of queries.
TEST_F(EncodeTest, WhatComesWithAPutIsCodedWith) {
  OpenPatient();
  for (const auto& [recipe, kind] : {std::pair("arkv", proto::Statistic::kTokenScores),
                                     std::pair("mixkvq", proto::Statistic::kQueryMagnitudes)}) {
    SCOPED_TRACE(recipe);
    identity_.weights_revision = recipe;
    StoreFixture plain;
    Image images[2];
    for (StoreFixture* store : {&store_, &plain}) {
      const SpaceEntry& space = store->OpenSpace(recipe, identity_);
      Image payload = SourceOf(space, 1);
      const codecs::TileShape& tile = space.groups()[0].tile;
      const uint64_t count =
          proto::CountOf(kind, tile, StoreFixture::Whole(space), space.tokens_per_block());
      for (uint64_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(1 + i * 37 % 101);
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        payload.insert(payload.end(), bytes, bytes + sizeof(value));
      }
      proto::Frame frame = FrameOf(space, 1, payload);
      std::get<proto::Put>(frame.body).statistics.Add(kind);
      StartedPut put(*store, frame, payload);
      ASSERT_TRUE(put.Await().ok()) << put.Await().status();
      images[store == &plain] = ImageOf(*store, space, 1);
    }
    EXPECT_EQ(images[0], images[1]);
    EXPECT_NE(images[0], Expected(store_.OpenSpace(recipe, identity_), 1)) << "they matter";
  }
  EXPECT_EQ(Made(), 2);
}

TEST_F(EncodeTest, WhatComesWhileTheDeviceIsBusyGoesTogether) {
  OpenPatient();
  const SpaceEntry& space = store_.OpenSpace("kivi:2");
  faults_->hangs = true;
  std::vector<std::unique_ptr<StartedPut>> puts;
  puts.push_back(StartPut(space, 1));
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));  // source and plan: a lone image waits for no other
  puts.push_back(StartPut(space, 2));
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(4));  // nor for the batch before
  for (uint64_t number = 3; number <= 12; ++number) {
    puts.push_back(StartPut(space, number));
  }
  EXPECT_EQ(Metric("cairn_gpu_codec_waiting{op=\"encode\"}"), 12);
  EXPECT_EQ(faults_->copies_in, 4u);
  faults_->hangs = false;
  for (uint64_t number = 1; number <= 12; ++number) {
    ASSERT_TRUE(puts[number - 1]->Await().ok());
    ExpectRight(space, number);
  }
  EXPECT_EQ(Metric("cairn_gpu_codec_batch_images{op=\"encode\"}"), 3);
  EXPECT_EQ(Metric("cairn_gpu_codec_batch_images_sum{op=\"encode\"}"), 12);
  EXPECT_EQ(Metric("cairn_gpu_codec_seconds{op=\"encode\",recipe=\"kivi\"}"), 3);
  EXPECT_EQ(Made(), 12);
  ExpectAccounts();
}

// A plan has tables of four profiles: what has a fifth goes with the next.
TEST_F(EncodeTest, WhatAPlanHasNoRoomForGoesWithTheNext) {
  OpenPatient();
  constexpr uint64_t kSpaces = 7;
  std::vector<SpaceEntry*> spaces;
  for (uint64_t i = 0; i < kSpaces; ++i) {
    spaces.push_back(&OpenWith(i, store_));
  }
  faults_->hangs = true;
  std::vector<std::unique_ptr<StartedPut>> puts;
  for (uint64_t i = 0; i < kSpaces; ++i) {
    puts.push_back(StartPut(*spaces[i], 1));
    if (i < 2) {  // each takes a batch
      ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(3 * (i + 1)));
    }
  }
  faults_->hangs = false;
  for (uint64_t i = 0; i < kSpaces; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(puts[i]->Await().ok());
    ExpectRightWith(i, *spaces[i]);
  }
  EXPECT_EQ(Made(), kSpaces);
  EXPECT_EQ(Metric("cairn_gpu_codec_batch_images_sum{op=\"encode\"}"), kSpaces);
  EXPECT_EQ(faults_->copies_in, 2 * kSpaces + Metric("cairn_gpu_codec_batch_images{op=\"encode\"}"))
      << "a source and a profile each, and plans";
}

// Memory of a batch has room for some of the side objects; what comes next goes in their place.
TEST_F(EncodeTest, SideObjectsMakeRoomForOthers) {
  constexpr uint64_t kRoom = 96_KiB, kSpaces = 24;
  Open({.bytes = 2 * (16_MiB - RoomForImages(16_MiB) + kRoom),
        .patience = absl::Seconds(60),
        .late_after = absl::Seconds(60)});
  for (uint64_t i = 0; i < kSpaces; ++i) {
    SCOPED_TRACE(i);
    const SpaceEntry& space = OpenWith(i, store_);
    ASSERT_TRUE(StartPut(space, 1)->Await().ok());
    ExpectRightWith(i, space);
  }
  EXPECT_EQ(Made(), kSpaces);
  const auto profile =
      SideObjectBytes(kProfileCase.kind, 0, {.layers = 2, .heads = 4, .k_dim = 32, .v_dim = 32});
  EXPECT_GT(kSpaces * profile.size(), kRoom) << "they do not all fit";
}

TEST_F(EncodeTest, UpkeepEncodesSeveralAtATime) {
  OpenPatient();
  for (const char* recipe : {"kivi:2", "ott:2"}) {
    SCOPED_TRACE(recipe);
    identity_.weights_revision = recipe;
    const SpaceEntry& space = store_.OpenSpace(recipe, identity_);
    const double made = Made();
    PutChain(space, 6, /*keeps_raw=*/true);
    EXPECT_EQ(Made(), made) << "kept raw";
    for (int i = 0; i < 20 && store_.index->pending_count() > 0; ++i) {
      store_.upkeep->RunOnce();
    }
    EXPECT_EQ(Made(), made + 6);
    for (uint64_t number = 1; number <= 6; ++number) {
      ExpectRight(space, number);
    }
  }
  EXPECT_EQ(Metric("cairn_upkeep_encoded_total"), 12);
  EXPECT_LE(Metric("cairn_gpu_codec_batch_images{op=\"encode\"}"), 4 + 6)
      << "of a chain of ott one after another";
}

TEST_F(EncodeTest, WhatADeviceHasNoUseForIsNotAskedOfIt) {
  Open();
  const SpaceEntry& raw = store_.OpenSpace("raw");
  PutChain(raw, 1);
  EXPECT_EQ(Metric("cairn_gpu_codec_asked_total{op=\"encode\"}"), 0);
}

// Blocks of one chain may be on their way together, and each goes on with the image of the one
// before: that would not be there yet.
TEST_F(EncodeTest, AChainOfOttDoesNotWaitForADevice) {
  OpenPatient();
  const SpaceEntry& space = store_.OpenSpace("ott:2");
  faults_->hangs = true;
  std::vector<std::unique_ptr<StartedPut>> puts;
  for (uint64_t number = 1; number <= 4; ++number) {
    puts.push_back(StartPut(space, number));
  }
  for (uint64_t number = 1; number <= 4; ++number) {
    ASSERT_TRUE(puts[number - 1]->Await().ok());
    EXPECT_EQ(RecipeOf(ImageOf(store_, space, number)), "ott:2");
    ExpectRight(space, number);
  }
  EXPECT_EQ(Metric("cairn_gpu_codec_asked_total{op=\"encode\"}"), 0);
}

}  // namespace
}  // namespace cairn
