// SPDX-License-Identifier: Apache-2.0
#include "service/remote/remote_table.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace cairn {
namespace {

constexpr uint64_t kSpace = 7;

proto::BlockKey Key(uint32_t number) {
  proto::BlockKey key{};
  for (size_t i = 0; i < sizeof(number); ++i) key[i] = static_cast<std::byte>(number >> (8 * i));
  return key;
}

std::vector<proto::BlockKey> Keys(uint32_t first, uint32_t end) {
  std::vector<proto::BlockKey> keys;
  for (uint32_t i = first; i < end; ++i) keys.push_back(Key(i));
  return keys;
}

TEST(RemoteTableTest, WhatIsBeingDeletedIsNotTakenForAWhile) {
  RemoteTable table(100);
  const absl::Time start = absl::FromUnixSeconds(1000);
  EXPECT_EQ(table.CountBeforeDeleting(kSpace, Keys(0, 5)), 5u);
  table.Forget(kSpace, Keys(3, 4), start + absl::Seconds(5));
  EXPECT_EQ(table.CountBeforeDeleting(kSpace, Keys(0, 5)), 3u);
  EXPECT_EQ(table.CountBeforeDeleting(kSpace + 1, Keys(0, 5)), 5u);
  EXPECT_TRUE(table.IsDeleting({kSpace, Key(3)}));
  EXPECT_FALSE(table.IsDeleting({kSpace, Key(2)}));
  EXPECT_TRUE(table.Expire(start + absl::Seconds(4)).empty());
  EXPECT_TRUE(table.IsDeleting({kSpace, Key(3)}));
  // A second deletion lasts longer.
  table.Forget(kSpace, Keys(3, 4), start + absl::Seconds(9));
  (void)table.Expire(start + absl::Seconds(8));
  EXPECT_TRUE(table.IsDeleting({kSpace, Key(3)}));
  (void)table.Expire(start + absl::Seconds(9));
  EXPECT_FALSE(table.IsDeleting({kSpace, Key(3)}));
  EXPECT_EQ(table.CountBeforeDeleting(kSpace, Keys(0, 5)), 5u);
}

TEST(RemoteTableTest, SoManyAreRememberedAndNoMore) {
  RemoteTable table(100);
  constexpr uint32_t kMax = RemoteTable::kDeletingMax;
  table.Forget(kSpace, Keys(0, kMax + 1), absl::FromUnixSeconds(1));
  EXPECT_TRUE(table.IsDeleting({kSpace, Key(kMax - 1)}));
  EXPECT_FALSE(table.IsDeleting({kSpace, Key(kMax)}));
  (void)table.Expire(absl::FromUnixSeconds(1));
  EXPECT_FALSE(table.IsDeleting({kSpace, Key(0)}));
}

}  // namespace
}  // namespace cairn
