// SPDX-License-Identifier: Apache-2.0
// Blocks of ott, which go on with the block before.

#include <gtest/gtest.h>

#include "codecs/image/image.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using Form = proto::Form;

// Of however many images; without it, the image says so.
TEST(OttTest, GoesOnWithTheBlockBefore) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("ott:2");
  const auto whole = StoreFixture::Whole(space);
  const auto put = [&](uint8_t parent, uint8_t key, const codecs::Slice& slice) {
    const auto source = StoreFixture::Source(space, StoreFixture::Key(key), 0, slice);
    auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(key), slice, source);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = StoreFixture::Key(parent);
    body.first_position = space.tokens_per_block();
    return store.RunPut(frame, source, store.session).status();
  };
  const auto recipe_of = [&](uint8_t key) -> std::string {
    const auto answer = store.RunGet(space, StoreFixture::Key(key), whole, Form::kImage);
    EXPECT_TRUE(answer.ok()) << answer.status();
    codecs::ImageView view;
    EXPECT_EQ(codecs::ParseImage(answer->payload, &view), codecs::Error::kOk);
    return std::string(codecs::FormatRecipe(view.spec().recipe));
  };
  ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), kLeft).ok());
  ASSERT_TRUE(store.PutSource(space, StoreFixture::Key(1), kRight).ok());
  ASSERT_TRUE(put(1, 2, whole).ok());
  EXPECT_EQ(recipe_of(2), "ott:2");
  ASSERT_TRUE(put(9, 3, whole).ok());
  EXPECT_EQ(recipe_of(3), "ott:2/local");
}

class OttChainTest : public testing::Test {
 protected:
  // Block `key` of the chain 1, 2, …
  void Put(const SpaceEntry& space, uint8_t key, bool keeps_raw = false) {
    const auto whole = StoreFixture::Whole(space);
    const auto source = StoreFixture::Source(space, StoreFixture::Key(key), 0, whole);
    auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(key), whole, source);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = key == 1 ? proto::BlockKey{} : StoreFixture::Key(key - 1);
    body.first_position = (key - 1) * space.tokens_per_block();
    ASSERT_TRUE(store_.RunPut(frame, source, store_.session, keeps_raw).ok());
  }
  std::vector<std::byte> ImageOf(const SpaceEntry& space, uint8_t key) {
    const auto answer =
        store_.RunGet(space, StoreFixture::Key(key), StoreFixture::Whole(space), Form::kImage);
    CAIRN_CHECK_OK(answer);
    return {answer->payload.begin(), answer->payload.end()};
  }
  std::string RecipeOf(const SpaceEntry& space, uint8_t key) {
    const std::vector<std::byte> image = ImageOf(space, key);
    codecs::ImageView view;
    CAIRN_CHECK(codecs::ParseImage(image, &view) == codecs::Error::kOk);
    return std::string(codecs::FormatRecipe(view.spec().recipe));
  }
  void Encode() {
    for (int i = 0; i < 100 && store_.index->pending_count() > 0; ++i) store_.upkeep->RunOnce();
    EXPECT_EQ(store_.index->pending_count(), 0u);
  }

  StoreFixture store_;
};

TEST_F(OttChainTest, ABusyMomentLeavesTheChainWhole) {
  const SpaceEntry& calm = store_.OpenSpace("ott:2");
  for (uint8_t key = 1; key <= 20; ++key) Put(calm, key);
  std::vector<std::vector<std::byte>> expected;
  for (uint8_t key = 1; key <= 20; ++key) expected.push_back(ImageOf(calm, key));
  ASSERT_EQ(store_.index->Invalidate(calm.id()), 20u);
  for (uint8_t key = 1; key <= 5; ++key) Put(calm, key);
  Put(calm, 6, /*keeps_raw=*/true);
  for (uint8_t key = 7; key <= 20; ++key) Put(calm, key);
  EXPECT_EQ(RecipeOf(calm, 6), "raw");
  EXPECT_EQ(RecipeOf(calm, 20), "raw") << "it waits for those before it";
  Encode();
  for (uint8_t key = 1; key <= 20; ++key) {
    EXPECT_EQ(RecipeOf(calm, key), "ott:2") << int{key};
    EXPECT_TRUE(ImageOf(calm, key) == expected[key - 1]) << int{key};
  }
}

TEST_F(OttChainTest, BlocksThatWaitTogetherGoOnFromEachOther) {
  const SpaceEntry& space = store_.OpenSpace("ott:2");
  for (uint8_t key = 1; key <= 20; ++key) Put(space, key, /*keeps_raw=*/true);
  Encode();
  for (uint8_t key = 1; key <= 20; ++key) EXPECT_EQ(RecipeOf(space, key), "ott:2") << int{key};
}

TEST_F(OttChainTest, TheOrderInWhichUpkeepFindsBlocksDoesNotMatter) {
  const SpaceEntry& space = store_.OpenSpace("ott:2");
  for (uint8_t key = 20; key >= 2; --key) Put(space, key, /*keeps_raw=*/true);
  Put(space, 1, /*keeps_raw=*/true);
  Encode();
  for (uint8_t key = 1; key <= 20; ++key) EXPECT_EQ(RecipeOf(space, key), "ott:2") << int{key};
}

TEST_F(OttChainTest, AfterALosslessBlockThatStaysSoBlocksAreLocal) {
  const SpaceEntry& space = store_.OpenSpace("ott:2");
  const auto whole = StoreFixture::Whole(space);
  const auto image = StoreFixture::Image(space, StoreFixture::Key(1), whole, "exact");
  const auto frame =
      StoreFixture::PutFrame(space, StoreFixture::Key(1), whole, image, Form::kImage);
  ASSERT_TRUE(store_.RunPut(frame, image, store_.session).ok());
  Put(space, 2);
  Put(space, 3);
  Encode();
  EXPECT_EQ(RecipeOf(space, 2), "ott:2/local");
  EXPECT_EQ(RecipeOf(space, 3), "ott:2/local");
}

}  // namespace
}  // namespace cairn
