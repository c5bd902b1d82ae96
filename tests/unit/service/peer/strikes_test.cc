// SPDX-License-Identifier: Apache-2.0
#include "service/peer/strikes.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

class StrikesTest : public testing::Test {
 protected:
  bool Damage(uint64_t images, uint64_t incarnation = 1) {
    return strikes_.Note("m", incarnation, {.damaged = images}, now_);
  }
  void Miss() { EXPECT_FALSE(strikes_.Note("m", 1, {.missing = 4}, now_)); }
  bool MayRead(uint64_t incarnation = 1) const {
    return strikes_.MayRead("m", incarnation, now_).ok();
  }

  Strikes strikes_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(StrikesTest, ThreeDamagedImagesWithinAnHourEndAllReads) {
  EXPECT_FALSE(Damage(1));
  now_ += absl::Minutes(31);
  EXPECT_FALSE(Damage(1));
  now_ += absl::Minutes(31);
  EXPECT_FALSE(Damage(1)) << "the first one was more than an hour ago";
  EXPECT_TRUE(MayRead());
  now_ += absl::Minutes(1);
  EXPECT_TRUE(Damage(1));
  EXPECT_FALSE(Damage(1)) << "it says so once";
  EXPECT_FALSE(MayRead());
  EXPECT_EQ(strikes_.distrusted_count(), 1u);
  now_ += absl::Hours(100);
  EXPECT_FALSE(MayRead());
  EXPECT_TRUE(MayRead(/*incarnation=*/2)) << "it has restarted";
  EXPECT_FALSE(strikes_.Note("m", 2, {.whole = 1}, now_));
  EXPECT_EQ(strikes_.distrusted_count(), 0u);
}

TEST_F(StrikesTest, ManyAtOnceAreEnough) {
  EXPECT_TRUE(Damage(1000));
  EXPECT_TRUE(strikes_.MayRead("other", 1, now_).ok());
}

TEST_F(StrikesTest, AMemberWithoutWhatItLeasedIsLeftAloneForAWhile) {
  for (int i = 1; i < Strikes::kBrokenMax; ++i) Miss();
  EXPECT_TRUE(MayRead());
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    Miss();
    now_ += absl::Seconds(seconds) - absl::Milliseconds(1);
    EXPECT_FALSE(MayRead()) << seconds;
    now_ += absl::Milliseconds(1);
    EXPECT_TRUE(MayRead()) << seconds;
  }
  EXPECT_FALSE(strikes_.Note("m", 1, {.whole = 1, .missing = 3}, now_));
  for (int i = 1; i < Strikes::kBrokenMax; ++i) Miss();
  EXPECT_TRUE(MayRead()) << "what it delivered counts";
  Miss();
  now_ += absl::Seconds(1);
  EXPECT_TRUE(MayRead()) << "and the time begins anew";
}

TEST_F(StrikesTest, MembersThatHaveLeftAreForgotten) {
  EXPECT_TRUE(Damage(3));
  View view;
  view.members.resize(1);
  view.members[0].name = "m";
  strikes_.Keep(view);
  EXPECT_FALSE(MayRead());
  strikes_.Keep(View());
  EXPECT_TRUE(MayRead());
}

}  // namespace
}  // namespace cairn
