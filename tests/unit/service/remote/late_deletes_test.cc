// SPDX-License-Identifier: Apache-2.0
#include "service/remote/late_deletes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

class LateDeletesTest : public testing::Test {
 protected:
  void Add(const std::string& member, size_t keys) {
    late_.Add({member, {}, std::vector<proto::BlockKey>(keys), clock_.Now()});
  }
  std::optional<LateDeletes::Deletion> Take(const std::string& but_not = "") {
    return late_.Take(clock_.Now(), [&](std::string_view member) { return member != but_not; });
  }

  FakeClock clock_;
  LateDeletes late_;
};

TEST_F(LateDeletesTest, EachMemberIsAskedForOneAtATimeTheOldestFirst) {
  Add("a", 1);
  Add("a", 2);
  Add("b", 3);
  auto a = Take(), b = Take();
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(a->member, "a");
  EXPECT_EQ(a->keys.size(), 1u);
  EXPECT_EQ(b->member, "b");
  EXPECT_FALSE(Take().has_value());
  late_.Done(*std::move(a), true);
  late_.Done(*std::move(b), false);
  EXPECT_EQ(late_.key_count(), 5u);
  a = Take("b");
  ASSERT_TRUE(a.has_value());
  EXPECT_EQ(a->keys.size(), 2u);
  EXPECT_FALSE(Take("b").has_value());
  b = Take();
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(b->keys.size(), 3u);
}

TEST_F(LateDeletesTest, AfterAWhileTheyAreGivenUp) {
  Add("a", 1);
  clock_.Advance(LateDeletes::kKept / 2);
  Add("a", 2);
  clock_.Advance(LateDeletes::kKept / 2);
  auto left = Take();
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->keys.size(), 2u);
  late_.Done(*std::move(left), false);
  clock_.Advance(LateDeletes::kKept / 2);
  EXPECT_FALSE(Take().has_value());
  EXPECT_EQ(late_.key_count(), 0u);
}

TEST_F(LateDeletesTest, TheOldestMakeRoom) {
  Add("a", LateDeletes::kKeysMax - 1);
  auto taken = Take();
  Add("b", 2);
  Add("c", LateDeletes::kKeysMax - 2);
  EXPECT_EQ(late_.key_count(), LateDeletes::kKeysMax);
  late_.Done(*std::move(taken), false);  // there is no room for it
  EXPECT_EQ(late_.key_count(), LateDeletes::kKeysMax);
  Add("d", 1);
  EXPECT_EQ(Take()->member, "c");
  EXPECT_EQ(Take()->member, "d");
  Add("e", LateDeletes::kKeysMax + 1);
  EXPECT_EQ(late_.key_count(), 0u);
}

// The deletion of a space has no keys, and counts as one.
TEST_F(LateDeletesTest, AWholeSpaceIsKeptToo) {
  late_.Add({"a", {}, {}, clock_.Now(), 5});
  EXPECT_EQ(late_.key_count(), 1u);
  auto taken = Take();
  ASSERT_TRUE(taken.has_value());
  EXPECT_TRUE(taken->keys.empty());
  EXPECT_EQ(taken->generation, 5u);
  EXPECT_EQ(late_.key_count(), 0u);
  late_.Done(*std::move(taken), false);
  EXPECT_EQ(late_.key_count(), 1u);
  Add("b", LateDeletes::kKeysMax);
  EXPECT_EQ(late_.key_count(), LateDeletes::kKeysMax);
  EXPECT_EQ(Take()->member, "b");
}

}  // namespace
}  // namespace cairn
