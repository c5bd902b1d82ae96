// SPDX-License-Identifier: Apache-2.0
// Kernels that decode stay in bounds whatever tiles hold, and refuse what the CPU refuses.
#include <gtest/gtest.h>

#include <bit>

#include "codecs/image/tiles.h"
#include "codecs/pack/step_strip.h"
#include "codecs/pack/strip.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::Content;
using codecs::DType;
using codecs::Error;

using HostileTest = DecodeFixture;

// Tiles are any bytes; header and directory say the truth of them.
TEST_F(HostileTest, StaysInBoundsWhateverTilesHold) {
  uint32_t refused = 0, equal = 0;
  for (uint32_t round = 0; round < 300; ++round) {
    const char* recipe = kRecipes[random_() % std::size(kRecipes)];
    const DType dtype = round % 3 == 0 ? DType::kFp32 : DType::kBf16;
    const auto tokens = static_cast<uint16_t>(16 + random_() % 150);
    ImageOf image = MakeImage(recipe, Kv(dtype, 64, 64), tokens, Content::kFewRows);
    const auto index = static_cast<uint32_t>(random_() % image.View().tile_count());
    const codecs::TileEntry tile = image.View().Tile(index);
    // Strips say what they are at their start, rows and params are behind the codes.
    const bool is_start = tile.form == codecs::kStripsForm || tile.form == codecs::kStepsForm;
    for (uint32_t i = 0; i < 1 + round % 4; ++i) {
      uint64_t at = random_() % std::min<uint64_t>(tile.bytes, is_start ? 160 : 700);
      const std::byte* strip = image.bytes.data() + tile.offset;
      if (is_start && round % 2 == 0 && strip[0] == std::byte{2}) {
        // The last bytes of the stream decide the last states, and seldom how much of it is read.
        const auto stream_bytes = codecs::Load<uint32_t>(strip + codecs::strip::kStream);
        at = codecs::strip::kPar + 64 + (stream_bytes - 1 - random_() % 8) % (tile.bytes - 80);
      }
      std::byte& byte = image.bytes[tile.offset + (is_start ? at : tile.bytes - 1 - at)];
      byte = random_() % 2 == 0 ? static_cast<std::byte>(random_()) : byte ^ std::byte{1};
    }
    Vouch(index, &image);
    const codecs::Slice slice = image.spec.slice;
    PagedCache cache(image.spec, slice, AnyShape(), random_);
    const PagedView target = cache.view();
    const Decoded decoded = Run({&image, 1}, {&slice, 1}, {&target, 1});
    ASSERT_EQ(decoded.error, Error::kOk);
    ASSERT_EQ(decoded.fault, "") << recipe;
    std::vector<std::byte> payload(codecs::TileBytes(image.spec.tile, codecs::Plane::kK, tokens) *
                                   image.View().tile_count());
    const bool is_decoded = codecs::Decode(codecs::ReferenceBackend(), image.View(), slice, payload,
                                           image.Inputs()) == Error::kOk;
    if (decoded.status[0] == 0) {
      // Padding is not looked at here, nor the order of rows.
      ASSERT_TRUE(is_decoded) << recipe;
      EXPECT_EQ(cache.Compare(payload), "") << recipe;
      ++equal;
    } else {
      EXPECT_EQ(decoded.status[0], static_cast<uint32_t>(Error::kBadTile));
      EXPECT_FALSE(is_decoded && codecs::VerifyTiles(image.View()) == Error::kOk) << recipe;
      ++refused;
    }
  }
  EXPECT_GT(refused, 20U);
  EXPECT_GT(equal, 20U);
}

// A code that is a NaN, in every place of a vector's.
TEST_F(HostileTest, CodesThatAreNone) {
  for (uint32_t round = 0; round < 32; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBf16 : DType::kFp16;
    ImageOf image = MakeImage("fp8", Kv(dtype, 64, 64), 70, Content::kBell);
    std::byte* codes = image.bytes.data() + image.View().Tile(0).offset;
    codes[64 * (random_() % 70) + round] = round % 3 == 0 ? std::byte{0xFF} : std::byte{0x7F};
    EXPECT_EQ(StatusOf(0, AnyWholeShape(), &image), static_cast<uint32_t>(Error::kBadTile));
  }
}

// Where a part of tile `index` lies, as its layout has it.
std::byte* PartOf(ImageOf* image, uint32_t index, codecs::TilePart codecs::TileLayout::*part) {
  const codecs::ImageView view = image->View();
  const codecs::StoredTile tile = codecs::StoredTileOf(view, index);
  return image->bytes.data() + tile.entry.offset + (tile.layout.*part).offset;
}

// Rows of tokens that the tile has not, or of one of its tokens twice.
TEST_F(HostileTest, RowsThatAreNone) {
  constexpr uint16_t kTokens = 150;
  uint32_t tiles = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    const char* recipe = round % 3 == 0 ? "fp8" : "kivi:2";
    const DType dtype = round % 4 < 2 ? DType::kBf16 : DType::kFp32;
    ImageOf image = MakeImage(recipe, Kv(dtype, 64, 64), kTokens, Content::kFewRows);
    const codecs::TileEntry tile = image.View().Tile(0);
    if (tile.form == codecs::kRawForm || tile.rows < 2) continue;
    std::byte* positions = PartOf(&image, 0, &codecs::TileLayout::positions);
    const auto past = static_cast<uint16_t>(kTokens + random_() % 40);
    codecs::Store(positions + 2, round % 2 == 0 ? codecs::Load<uint16_t>(positions) : past);
    EXPECT_EQ(StatusOf(0, AnyWholeShape(), &image), static_cast<uint32_t>(Error::kBadTile));
    ++tiles;
  }
  EXPECT_GT(tiles, 8U);
}

TEST_F(HostileTest, PatternsThatAreNone) {
  uint32_t tiles = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    ImageOf image = MakeImage("patternkv:2", Kv(DType::kBf16, 64, 64), 150, Content::kBell);
    if (std::has_single_bit(image.spec.recipe.patterns)) continue;  // there are no such numbers
    const uint32_t index = round % 2;
    if (image.View().Tile(index).form == codecs::kRawForm) continue;
    // The highest number, of a token or two.
    *(PartOf(&image, index, &codecs::TileLayout::pattern_index) + random_() % 70) = std::byte{0xFF};
    EXPECT_EQ(StatusOf(index, &image), static_cast<uint32_t>(Error::kBadTile));
    ++tiles;
  }
  EXPECT_GT(tiles, 5U);
}

// Maps of classes that the recipe does not make, or that come to other bytes.
TEST_F(HostileTest, ClassesThatAreNone) {
  uint32_t more = 0, fewer = 0;
  for (uint32_t round = 0; round < 160; ++round) {
    const char* recipe = round % 2 == 0 ? "mixkvq" : "mixkvq:paper";
    const Content content = round % 4 < 2 ? Content::kBell : Content::kTails;
    // Of 61 channels a map with another class for one can come to the same bytes.
    ImageOf image = MakeImage(recipe, Kv(DType::kBf16, 61, 64), 150, content);
    if (image.View().Tile(0).form != codecs::kMixedForm) continue;
    std::byte& byte = *(image.bytes.data() + image.View().Tile(0).offset + random_() % 15);
    (byte == std::byte{0} ? more : fewer) += 1;
    if (byte != std::byte{0}) {
      byte = std::byte{0};
    } else {
      byte = round % 2 == 0 ? std::byte{1} : std::byte{3};
    }
    EXPECT_EQ(StatusOf(0, &image), static_cast<uint32_t>(Error::kBadTile)) << recipe;
  }
  EXPECT_GT(more, 2U);
  EXPECT_GT(fewer, 4U);
}

// Tokens that are kept, and yet have no codes; and the other way round.
TEST_F(HostileTest, MapsThatAreNone) {
  uint32_t tiles = 0;
  for (uint32_t round = 0; round < 20; ++round) {
    ImageOf image = MakeImage("arkv:paper", Kv(DType::kBf16, 64, 64), 150, Content::kFewRows);
    const uint32_t index = round % 2;
    if (image.View().Tile(index).form != codecs::kKeptForm) continue;
    std::byte* map = PartOf(&image, index, &codecs::TileLayout::kept_map);
    map[random_() % 18] ^= static_cast<std::byte>(1U << random_() % 8);
    EXPECT_EQ(StatusOf(index, &image), static_cast<uint32_t>(Error::kBadTile));
    ++tiles;
  }
  EXPECT_GT(tiles, 5U);
}

// A coded strip of `cairn` with rows, changed in one place.
TEST_F(HostileTest, StepsThatAreNone) {
  constexpr uint32_t kTokens = 100, kDim = 64;
  uint32_t strips = 0, with_rows = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    ImageOf image = MakeImage("cairn:4.3", Kv(DType::kBf16, kDim, kDim), kTokens,
                              round % 2 == 0 ? Content::kFewRows : Content::kBell);
    const codecs::TileEntry tile = image.View().Tile(0);
    uint8_t* strip = codecs::U8(image.bytes.data() + tile.offset);
    codecs::StepStripParts parts{};
    if (tile.form != codecs::kStepsForm ||
        !codecs::ParseStepStrip({kTokens, kDim, DType::kBf16, false}, strip, tile.bytes, &parts) ||
        parts.mode != codecs::StepStripMode::kCoded) {
      continue;
    }
    ++strips;
    if (parts.rows != 0 && round % 4 == 0) {
      strip[parts.position + random_() % parts.rows] = kTokens + random_() % 28;
      ++with_rows;
    } else if (parts.rows > 1) {
      strip[parts.position] = strip[parts.position + 1];
    } else {
      strip[parts.end - 1 - random_() % 4] ^= 0x10;  // the stream does not end as it must
    }
    EXPECT_EQ(StatusOf(0, &image), static_cast<uint32_t>(Error::kBadTile));
  }
  EXPECT_GT(strips, 10U);
  EXPECT_GT(with_rows, 2U);
}

// The first of two strips says that it ends behind its tile, which is the image's last.
TEST_F(HostileTest, StripsThatEndPastTheirTile) {
  constexpr codecs::StripShape kShape{codecs::kStripTokens, 64, DType::kBf16, false};
  for (const char* recipe : {"exact", "cairn:2.3"}) {
    ImageOf image = MakeImage(recipe, Kv(DType::kBf16, 64, 64), 130, Content::kBell);
    const uint32_t index = image.View().tile_count() - 1;
    const codecs::TileEntry tile = image.View().Tile(index);
    uint8_t* strip = codecs::U8(image.bytes.data() + tile.offset);
    uint64_t bytes = 0;
    if (tile.form == codecs::kStripsForm) {
      codecs::StripParts parts{};
      ASSERT_TRUE(codecs::ParseStrip(kShape, strip, tile.bytes, &parts));
      bytes = parts.bytes;
    } else {
      codecs::StepStripParts parts{};
      ASSERT_TRUE(codecs::ParseStepStrip(kShape, strip, tile.bytes, &parts));
      bytes = parts.bytes;
    }
    const uint64_t more = codecs::RawStripBytes(kShape) - 16 - bytes;
    ASSERT_GT(bytes + more, tile.bytes) << recipe;
    static_assert(codecs::strip::kStream == codecs::step_strip::kStream);
    uint8_t* stream_bytes = strip + codecs::strip::kStream;
    codecs::Store(stream_bytes, codecs::Load<uint32_t>(stream_bytes) + static_cast<uint32_t>(more));
    EXPECT_EQ(StatusOf(index, AnyWholeShape(), &image), static_cast<uint32_t>(Error::kBadTile));
  }
}

// Whose widths and low bits come to others than the tile's.
TEST_F(HostileTest, AnotherProfile) {
  uint32_t refused = 0;
  for (uint32_t round = 0; round < 200; ++round) {
    const codecs::TileShape shape = Kv(DType::kBf16, 40, 24);
    const char* recipe = round % 2 == 0 ? "cairn-hot:2.4" : "cairn:2.3";
    ImageOf image = MakeImage(recipe, shape, 40, Content::kBell);
    image.side = MakeProfile(shape);
    const codecs::Slice slice = image.spec.slice;
    PagedCache cache(image.spec, slice, AnyShape(), random_);
    const PagedView target = cache.view();
    const Decoded decoded = Run({&image, 1}, {&slice, 1}, {&target, 1});
    if (decoded.error == Error::kNoProfile) continue;  // of another domain
    ASSERT_EQ(decoded.fault, "");
    std::vector<std::byte> payload(image.source.size());
    const Error error =
        codecs::Decode(codecs::ReferenceBackend(), image.View(), slice, payload, image.Inputs());
    ASSERT_EQ(decoded.status[0], static_cast<uint32_t>(error));
    if (error == Error::kOk) {
      EXPECT_EQ(cache.Compare(payload), "");
    }
    refused += error == Error::kBadTile ? 1 : 0;
  }
  EXPECT_GT(refused, 5U);
}

// All of whose tokens have fewer bytes than the tile says.
TEST_F(HostileTest, AProfileOfNoBits) {
  const codecs::TileShape shape = Kv(DType::kBf16, 40, 24);
  ImageOf image = MakeImage("cairn-hot:4.5", shape, 40, Content::kBell);
  auto silent = std::make_shared<SideObject>();
  silent->bytes = image.side->bytes;
  ASSERT_EQ(codecs::ParseProfile(silent->bytes, &silent->profile), Error::kOk);
  SilenceV(shape, silent.get());
  silent->on_device = std::make_unique<DeviceBytes>(silent->bytes, false);
  image.side = silent;
  std::vector<std::byte> payload(image.source.size());
  EXPECT_EQ(codecs::Decode(codecs::ReferenceBackend(), image.View(), image.spec.slice, payload,
                           image.Inputs()),
            Error::kBadTile);
  EXPECT_EQ(StatusOf(0, AnyWholeShape(), &image), static_cast<uint32_t>(Error::kBadTile));
}

}  // namespace
}  // namespace cairn::kernels
