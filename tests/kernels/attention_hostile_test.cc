// SPDX-License-Identifier: Apache-2.0
// Kernels that attend, and tiles that hold anything: they refuse what cannot be decoded, and stay
// in their bounds.
#include <bit>
#include <cstring>

#include "codecs/image/tiles.h"
#include "tests/kernels/attention_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::DType;
using codecs::Error;

constexpr uint16_t kOneBlock[] = {128};

class AttentionHostileTest : public AttentionFixture {};

// Codes that are NaNs, and scales that are infinite or negative, of any token.
TEST_F(AttentionHostileTest, BytesOfE4m3ThatAreNone) {
  for (uint32_t round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const auto tokens = static_cast<uint16_t>(1 + Below(150));
    const uint32_t dim = round % 3 == 0 ? 64 : 128;
    Sequence sequence = MakeSequence("fp8", Kv(DType::kBf16, dim, dim), {&tokens, 1});
    sequence.head_count = 1;
    ImageOf& image = sequence.images[0];
    const uint32_t index = image.View().IndexOf({4, 1, static_cast<uint8_t>(round % 2)});
    const codecs::TileEntry tile = image.View().Tile(index);
    auto* bytes = codecs::U8(image.bytes.data()) + tile.offset;
    const uint32_t token = Below(tokens);
    const bool is_code = round % 8 < 6;
    if (is_code) {
      bytes[token * dim + Below(dim)] = round % 4 < 2 ? 0x7F : 0xFF;
    } else {
      const uint16_t scale = round % 16 < 8 ? 0x7C00 : 0x8000;
      codecs::Store(bytes + tokens * dim + 2 * token, scale);
    }
    Vouch(index, &image);
    Prepare(&sequence);
    const AttendJob job = JobOf(sequence);
    const Attended attended = Attend({&job, 1});
    ASSERT_EQ(attended.fault, "");
    EXPECT_GT(attended.plan.counts[AttendFp8List(dim)], 0U);
    if (attended.is_refused) continue;
    EXPECT_EQ(attended.status[0], static_cast<uint32_t>(Error::kBadTile));
  }
}

// Patterns behind the last of the bank.
TEST_F(AttentionHostileTest, PatternsThatAreNone) {
  constexpr uint32_t kIndex = 7;  // V of the last layer and head of the image, and of the bank
  uint32_t sequences = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    Sequence sequence = MakeSequence("patternkv:2", Kv(DType::kBf16, 64, 64), kOneBlock);
    ImageOf& image = sequence.images[0];
    if (std::has_single_bit(image.spec.recipe.patterns)) continue;  // there are no such numbers
    if (image.View().Tile(kIndex).form == codecs::kRawForm) continue;
    const codecs::StoredTile tile = codecs::StoredTileOf(image.View(), kIndex);
    for (const codecs::TilePart& part : {tile.layout.pattern_index, tile.layout.gate}) {
      std::memset(image.bytes.data() + tile.entry.offset + part.offset, 0xFF, part.bytes);
    }
    Vouch(kIndex, &image);
    Prepare(&sequence);
    const AttendJob job = JobOf(sequence);
    const Attended attended = Attend({&job, 1});
    ASSERT_EQ(attended.fault, "");
    ++sequences;
    if (attended.is_refused) continue;
    EXPECT_EQ(attended.status[0], static_cast<uint32_t>(Error::kBadTile));
  }
  EXPECT_GT(sequences, 2U);
}

// Tiles are any bytes; header and directory say the truth of them. What is refused is what the CPU
// refuses to decode, and the other sequence does not notice.
TEST_F(AttentionHostileTest, StaysInBoundsWhateverTilesHold) {
  uint32_t refused[2] = {}, attended_to = 0;
  for (uint32_t round = 0; round < 160; ++round) {
    const char* recipe = kRecipes[Below(std::size(kRecipes))];
    const bool is_fast = round % 2 == 0;
    if (is_fast) recipe = kFastRecipes[Below(std::size(kFastRecipes))];
    const codecs::TileShape shape = Kv(DType::kFp16, is_fast ? 128 : 40, is_fast ? 128 : 48);
    const auto tokens = static_cast<uint16_t>(16 + Below(150));
    ImageOf image = MakeImage(recipe, shape, tokens, codecs::Content::kBell);
    if (!WhyDecodeFirst(image.spec).empty()) continue;
    const uint32_t index = 4 + Below(4);  // of layer 4
    const codecs::TileEntry tile = image.View().Tile(index);
    for (uint32_t i = 0; i < 1 + round % 4; ++i) {
      std::byte& byte =
          image.bytes[tile.offset + tile.bytes - 1 - Below(std::min<uint64_t>(tile.bytes, 700))];
      byte = Below(2) == 0 ? static_cast<std::byte>(random_()) : byte ^ std::byte{0x80};
      if (Below(2) == 0) *(&byte - 1) = byte = std::byte{0xFF};  // a NaN, if it is one number
    }
    Vouch(index, &image);
    const codecs::RecipeId id = image.spec.recipe.id;
    const bool is_kivi_or_fp8 = id == codecs::RecipeId::kKivi || id == codecs::RecipeId::kFp8;
    std::vector<std::byte> payload(image.source.size());
    const Error error = codecs::VerifyTile(image.View(), index);
    const bool is_decoded = error == Error::kOk &&
                            codecs::Decode(codecs::ReferenceBackend(), image.View(),
                                           image.spec.slice, payload, image.Inputs()) == Error::kOk;
    std::vector<Sequence> sequences(2);
    sequences[0].tile = shape;
    sequences[0].images.push_back(image);
    sequences[1] = MakeSequence("kivi:4", Kv(DType::kBf16, 128, 128), std::array{uint16_t{40}});
    for (Sequence& sequence : sequences) Prepare(&sequence);
    const AttendJob jobs[] = {JobOf(sequences[0]), JobOf(sequences[1])};
    const Attended attended = Attend(jobs);
    ASSERT_EQ(attended.error, Error::kOk);
    ASSERT_EQ(attended.fault, "") << recipe;
    if (attended.is_refused) continue;
    ASSERT_EQ(attended.status.size(), 4U);
    EXPECT_EQ(attended.status[1] | attended.status[2] | attended.status[3], 0U);
    Compare(sequences[1], Reference(sequences[1]), kNearBf16);
    if (attended.status[0] != 0) {
      EXPECT_EQ(attended.status[0], static_cast<uint32_t>(Error::kBadTile));
      EXPECT_FALSE(is_decoded) << recipe;
      ++refused[is_fast ? 1 : 0];
    } else {
      // Padding is not looked at here, nor what of a tile is not for attention.
      EXPECT_TRUE(!is_kivi_or_fp8 || error != Error::kBadTile) << recipe;
      ++attended_to;
    }
  }
  EXPECT_GT(refused[0], 10U);
  EXPECT_GT(refused[1], 20U);
  EXPECT_GT(attended_to, 20U);
}

}  // namespace
}  // namespace cairn::kernels
