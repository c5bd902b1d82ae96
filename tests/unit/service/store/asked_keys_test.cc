// SPDX-License-Identifier: Apache-2.0
#include "service/index/asked_keys.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace cairn {
namespace {

std::vector<proto::BlockKey> KeysFrom(uint64_t first, size_t count) {
  std::vector<proto::BlockKey> keys(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t name = first + i;
    std::memcpy(keys[i].data(), &name, sizeof(name));
  }
  return keys;
}

class AskedKeysTest : public testing::Test {
 protected:
  AskedKeys asked_;
};

TEST_F(AskedKeysTest, CountsEachKeyOnce) {
  for (int round = 0; round < 2; ++round) {
    for (uint64_t first = 0; first < 200'000; first += 1'000) {
      asked_.Add(1, KeysFrom(first, 1'000), 0);
    }
  }
  EXPECT_NEAR(static_cast<double>(asked_.first_misses()), 200'000, 200'000 * 0.015);
}

TEST_F(AskedKeysTest, AKeyIsAnotherInAnotherSpace) {
  asked_.Add(1, KeysFrom(0, 1'000), 0);
  asked_.Add(2, KeysFrom(0, 1'000), 0);
  EXPECT_NEAR(static_cast<double>(asked_.first_misses()), 2'000, 60);
}

TEST_F(AskedKeysTest, WhatWasFoundIsKnownAndIsNoMiss) {
  asked_.Add(1, KeysFrom(0, 10'000), 10'000);
  EXPECT_EQ(asked_.first_misses(), 0);
  asked_.Add(1, KeysFrom(0, 10'000), 0);  // it was there, and is not any more
  EXPECT_EQ(asked_.first_misses(), 0);
}

TEST_F(AskedKeysTest, OnlyTheTailOfAQueryIsMissed) {
  for (uint64_t first = 0; first < 200'000; first += 1'000) {
    asked_.Add(1, KeysFrom(first, 1'000), 750);
  }
  EXPECT_NEAR(static_cast<double>(asked_.first_misses()), 50'000, 50'000 * 0.05);
}

}  // namespace
}  // namespace cairn
