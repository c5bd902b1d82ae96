// SPDX-License-Identifier: Apache-2.0
// Banks out of samples: what is refused, and patterns that can be told without k-means.
// tests/golden/mined_golden_test.cc has the rest.
#include "codecs/mine/bank_miner.h"

#include <algorithm>
#include <limits>

#include "codecs/numbers/math.h"
#include "codecs/pack/elements.h"
#include "codecs/side/bank.h"
#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

using Bytes = std::vector<std::byte>;

Error Mine(const BankShape& shape, std::span<const float> sample, uint32_t tokens, Bytes* bank) {
  return MineBank(shape, DType::kFp32, tokens, std::as_bytes(sample), bank);
}

TEST(BankMinerTest, PatternsAreMeansAndTheLastStandsAgain) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Tokens of one head: K of two channels, then V of one.
  const std::vector<float> sample = {1, 2,  kNan, 0, 1, 2, 3, 40000,  // K
                                     5, -7, -7.5, -8};                // V
  Bytes bytes;
  ASSERT_EQ(Mine({.patterns = 3, .k_dim = 2, .v_dim = 1}, sample, 4, &bytes), Error::kOk);
  Bank bank;
  ASSERT_EQ(ParseBank(bytes, &bank), Error::kOk);
  const auto value_at = [&](uint32_t plane, uint32_t i) {
    return LoadPatternValue(bank.PatternsOf(plane, {0, 0}), i);
  };
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(value_at(0, i), i % 2 == 0 ? 1 : 2) << i;
  EXPECT_EQ(value_at(1, 0), 5);
  EXPECT_EQ(value_at(1, 1), -7);
  EXPECT_EQ(value_at(1, 2), -7.75);
}

TEST(BankMinerTest, WhatIsNoSampleIsRefused) {
  const std::vector<float> sample(2 * 3 * 4 * 7, 1.0F);
  const BankShape shape = {.layers = 2, .heads = 3, .patterns = 5, .k_dim = 6, .v_dim = 1};
  Bytes bank;
  ASSERT_EQ(Mine(shape, sample, 4, &bank), Error::kOk);
  EXPECT_EQ(bank.size(), BankBytes(shape));
  EXPECT_EQ(Mine(shape, sample, 3, &bank), Error::kSourceSize);
  EXPECT_EQ(Mine(shape, sample, 0, &bank), Error::kInvalidShape);
  EXPECT_EQ(Mine(shape, sample, 1U << 24, &bank), Error::kInvalidShape);
  EXPECT_EQ(MineBank(shape, DType::kBytes, 4, std::as_bytes(std::span(sample)), &bank),
            Error::kInvalidShape);
  const auto with = [&shape](auto change) {
    BankShape changed = shape;
    change(&changed);
    return Validate(changed);
  };
  EXPECT_EQ(with([](BankShape* s) { s->layers = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->heads = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->layers = 0xFFFFFFFF; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->heads = 16385; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->patterns = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->patterns = 257; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->k_dim = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->k_dim = 1025; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { s->v_dim = 1025; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { *s = {256, 128, 256, 8, 0}; }), Error::kInvalidShape);
  EXPECT_EQ(with([](BankShape* s) { *s = {256, 64, 256, 7, 0}; }), Error::kOk);

  const Bytes before = bank;
  std::vector<float> uncodable = sample;
  std::ranges::fill(std::span(uncodable).last(4), 32768.0F);  // V of the last head
  EXPECT_EQ(Mine(shape, uncodable, 4, &bank), Error::kIncomplete);
  EXPECT_EQ(bank, before);
}

}  // namespace
}  // namespace cairn::codecs
