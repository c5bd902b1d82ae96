// SPDX-License-Identifier: Apache-2.0
// The records of blocks at rest: when they go there, and what they are when they wake.
#include "service/index/rest_store.h"

#include "tests/unit/service/store/parts_fixture.h"

namespace cairn {
namespace {

class RestStoreTest : public PartsTest {
 protected:
  RestStore& records_ = parts_.records;
};

TEST_F(RestStoreTest, ABlockInMemoryStaysAwake) {
  Image* image = Put(1);
  ASSERT_TRUE(CopyTo(image, TierId::kSsd));
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_awake());
  Lose(image, TierId::kHost);
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_resting());
  EXPECT_EQ(records_.awake_count(), 0u);
  EXPECT_EQ(records_.awake_bytes(), 0u);
}

TEST_F(RestStoreTest, ItWakesAsItWas) {
  const Image before = *Put(1, TierId::kSsd);
  const CopyFacts copy = before.best().facts;
  const uint64_t offset = before.best().extent.offset();
  const CopyFigures figures = parts_.tiers.figures(TierId::kSsd);
  records_.Rest();
  ASSERT_TRUE(Find(1)->is_resting());
  const ImageRefs& images = records_.Wake(Find(1));
  ASSERT_EQ(images.size(), 1u);
  const Image& after = *images[0].image;
  EXPECT_EQ(after.facts.key, before.facts.key);
  EXPECT_EQ(after.facts.slice, before.facts.slice);
  EXPECT_EQ(after.facts.first_position, before.facts.first_position);
  EXPECT_EQ(after.facts.source_bytes, before.facts.source_bytes);
  EXPECT_EQ(after.best().facts.recipe, copy.recipe);
  EXPECT_EQ(after.best().facts.image_bytes, copy.image_bytes);
  EXPECT_EQ(after.best().facts.directory_crc, copy.directory_crc);
  EXPECT_EQ(after.best().extent.offset(), offset);
  EXPECT_EQ(parts_.tiers.figures(TierId::kSsd).copy_count, figures.copy_count);
  EXPECT_EQ(parts_.tiers.figures(TierId::kSsd).image_bytes, figures.image_bytes);
}

TEST_F(RestStoreTest, ToAskWakesNobody) {
  Put(1, TierId::kSsd);
  Put(2, TierId::kSsd);
  records_.Rest();
  const Block& block = *Find(2);
  ImageRefs scratch;
  const absl::Span<const ImageRef> refs = records_.RefsOf(block, &scratch);
  ASSERT_EQ(refs.size(), 1u);
  EXPECT_EQ(refs[0].slice, kSlice);
  EXPECT_EQ(refs[0].image, nullptr);
  EXPECT_EQ(records_.BriefOf(block, 0).image_bytes, kImageBytes);
  EXPECT_EQ(records_.BriefOf(block, 0).tier, TierId::kSsd);
  EXPECT_TRUE(records_.HasCopiesIn(block, TierId::kSsd));
  EXPECT_FALSE(records_.HasCopiesIn(block, TierId::kHost));
  EXPECT_EQ(records_.PartsOf(block), 1u);
  EXPECT_EQ(records_.ParentOf(block), Find(1));
  parts_.tiers.Touch(Find(2), clock_.Now());
  EXPECT_EQ(records_.awake_count(), 0u);
}

TEST_F(RestStoreTest, PinsWritersAndPutsKeepABlockAwake) {
  Image* image = Put(1, TierId::kSsd);
  parts_.tiers.Pin(image);
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_awake());
  parts_.tiers.Unpin(image);
  ASSERT_TRUE(parts_.tiers.BeginCopy(image, TierId::kHost));
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_awake());
  parts_.tiers.GiveUpCopy(image, TierId::kHost);
  Block* child = parts_.chains.ReservePut(Claim(2));
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_awake());
  parts_.chains.EndReservation(child);
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_resting());
}

TEST_F(RestStoreTest, AChildInMemoryKeepsItsParentAwake) {
  Put(1, TierId::kSsd);
  Image* child = Put(2);
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_awake());
  ASSERT_TRUE(CopyTo(child, TierId::kSsd));
  Lose(child, TierId::kHost);
  records_.Rest();
  EXPECT_TRUE(Find(1)->is_resting());
  EXPECT_TRUE(Find(2)->is_resting());
}

}  // namespace
}  // namespace cairn
