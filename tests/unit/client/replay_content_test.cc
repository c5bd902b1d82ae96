// SPDX-License-Identifier: Apache-2.0
// What blocks of `cairnctl replay` hold, how wrong bytes are found in them, and what is counted.
#include "client/cli/replay/content.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "client/cli/replay/tally.h"
#include "codecs/numbers/math.h"
#include "codecs/types/bytes.h"

namespace cairn::replay {
namespace {

using Bytes = std::vector<std::byte>;

proto::BlockKey KeyNumber(uint64_t id) { return Content::KeyOf({}, {}, id); }

Bytes BlockOf(const Content& content, const proto::BlockKey& key) {
  Bytes block(content.block_bytes());
  content.Fill(key, block);
  return block;
}

TEST(ReplayContentTest, AKeyIsOfItsIdAndItsParent) {
  EXPECT_EQ(KeyNumber(1), KeyNumber(1));
  EXPECT_NE(KeyNumber(1), KeyNumber(2));
  EXPECT_NE(KeyNumber(1), KeyNumber((uint64_t{1} << 32) + 1));
  EXPECT_NE(KeyNumber(1), Content::KeyOf({}, KeyNumber(0), 1));
}

TEST(ReplayContentTest, OfALosslessRecipeEveryByteCounts) {
  const Content content(kContentDimMin);
  Bytes block = BlockOf(content, KeyNumber(1));
  Bytes room(block.size());
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), true, block, room), 0u);
  block[5] ^= std::byte{1};
  block.back() ^= std::byte{0x80};
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), true, block, room), 2u);
}

// As a quantiser of two bits is off, then as no codec is.
TEST(ReplayContentTest, OfALossyRecipeTheErrorTells) {
  const Content content(kContentDimMax);
  const Bytes block = BlockOf(content, KeyNumber(1));
  Bytes room(block.size());
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), false, block, room), 0u);

  Bytes coarse = block;
  for (size_t at = 0; at < coarse.size(); at += 2) {
    const float value = codecs::Bf16ToFloat(codecs::Load<uint16_t>(coarse.data() + at));
    codecs::Store(coarse.data() + at, codecs::FloatToBf16(value * (at % 4 == 0 ? 0.5F : 1.5F)));
  }
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), false, coarse, room), 0u);

  const Bytes zeros(block.size());
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), false, zeros, room), block.size());
  const Bytes other = BlockOf(content, KeyNumber(2));
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), false, other, room), block.size());
  // V of another block.
  Bytes half = block;
  std::memcpy(half.data() + half.size() / 2, other.data() + half.size() / 2, half.size() / 2);
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), false, half, room), block.size() / 2);
  // No number.
  half = block;
  codecs::Store(half.data(), uint16_t{0x7fc0});
  EXPECT_EQ(content.WrongBytes(KeyNumber(1), false, half, room), block.size() / 2);
}

TEST(ReplayTallyTest, PercentilesAreOfTheTimesThemselves) {
  EXPECT_EQ(Percentile({}, 0.5), 0u);
  EXPECT_EQ(Percentile({7}, 0.01), 7u);
  std::vector<uint32_t> times;
  for (uint32_t i = 100; i > 0; --i) times.push_back(i);
  EXPECT_EQ(Percentile(times, 0.5), 50u);
  EXPECT_EQ(Percentile(times, 0.99), 99u);
  EXPECT_EQ(Percentile(times, 1), 100u);
}

TEST(ReplayTallyTest, TalliesAddUp) {
  Tally one(2);
  Tally other(2);
  one.AddCall(Call::kGet, 0, absl::Milliseconds(3), absl::Milliseconds(2));
  other.AddCall(Call::kGet, 1, absl::Milliseconds(1), absl::Milliseconds(2));
  other.AddError(Call::kPut, absl::UnavailableError(""));
  other.windows[1].asked += {4, 400};
  other.windows[1].hits[static_cast<size_t>(Tier::kHost)] += {3, 300};
  one += other;
  EXPECT_EQ(one.late_calls, 1u);
  EXPECT_EQ(one.late_max, absl::Milliseconds(1));
  EXPECT_EQ(one.errors.at("put UNAVAILABLE"), 1u);
  const TallyWindow sum = one.Sum();
  EXPECT_EQ(sum.call_us[static_cast<size_t>(Call::kGet)], (std::vector<uint32_t>{3000, 1000}));
  EXPECT_EQ(sum.asked.tokens, 400u);
  EXPECT_EQ(sum.AllHits().blocks, 3u);
}

}  // namespace
}  // namespace cairn::replay
