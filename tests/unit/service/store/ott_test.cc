// SPDX-License-Identifier: Apache-2.0
// Blocks of ott, which go on with the block before.

#include <gtest/gtest.h>

#include "codecs/image/image.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

using proto::Form;

constexpr codecs::Slice kLeft = {0, 2, 0, 2}, kRight = {0, 2, 2, 2};

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

}  // namespace
}  // namespace cairn
