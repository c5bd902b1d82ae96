// SPDX-License-Identifier: Apache-2.0
// What docs/recipes/ott.md promises of ott, on random sources.

#include <algorithm>
#include <vector>

#include "codecs/forms/form.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kDim = 32;
constexpr DType kType = DType::kBf16;

// One head.
ImageSpec SpecOf(uint16_t tokens, std::string_view recipe, uint64_t first_position = 0) {
  ImageSpec spec = MakeSpec(kType, {2, 1, 0, 1}, tokens, kDim, kDim, RecipeNamed(recipe));
  spec.first_position = first_position;
  return spec;
}

// Element 0 of a token of K, which stands before V.
size_t ElementOf(uint32_t token) { return size_t{token} * kDim; }

void ScaleToken(Bytes& source, uint32_t token, float factor) {
  for (uint32_t channel = 0; channel < kDim; ++channel) {
    const size_t at = ElementOf(token) + channel;
    StoreValue(kType, source.data(), at, LoadValue(kType, source.data(), at) * factor);
  }
}

std::vector<uint32_t> RowsOf(const ImageView& view, uint32_t tile) {
  const TileEntry entry = view.Tile(tile);
  const auto layout =
      LayoutOf(GeometryOf(view.spec(), tile % 2), view.spec().recipe, entry.form, entry.rows);
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < entry.rows; ++i) {
    rows.push_back(
        Load<uint16_t>(view.TileContent(tile).data() + layout->positions.offset + 2 * size_t{i}));
  }
  return rows;
}

Bytes EncodeAfter(const ImageSpec& spec, const Bytes& source, const ImageView& parent) {
  return EncodeOrFail(BestBackend(), spec, source, {.parents = {&parent, 1}});
}

Bytes Values(uint16_t tokens, std::mt19937_64& random) {
  return RandomValues(SpecOf(tokens, "ott:2"), random);
}

TEST(OttPropertyTest, SmallestKeysAreRowsInKAndV) {
  std::mt19937_64 random = SeededRandom();
  Bytes source = Values(100, random);
  for (const uint32_t token : {7, 50, 99}) ScaleToken(source, token, 0.01F);
  const Bytes image = EncodeOrFail(BestBackend(), SpecOf(100, "ott:2"), source);
  const std::vector<uint32_t> wanted = {7, 50, 99};
  EXPECT_EQ(RowsOf(ParseOrFail(image), 0), wanted);
  EXPECT_EQ(RowsOf(ParseOrFail(image), 1), wanted);
}

TEST(OttPropertyTest, OneTinyKeyAmongConstantOnesCostsTheOthersNothing) {
  const ImageSpec spec = SpecOf(128, "ott:2");
  Bytes source(SourceBytesOf(spec));
  for (size_t i = 0; i < source.size() / 2; ++i) {
    const bool is_k = i < source.size() / 4;
    StoreValue(kType, source.data(), i, is_k ? 0.25F + static_cast<float>(i % kDim) : 1.0F);
  }
  for (uint32_t channel = 0; channel < kDim; ++channel) {
    StoreValue(kType, source.data(), ElementOf(90) + channel, 0.003F);
  }
  const Bytes image = EncodeOrFail(BestBackend(), spec, source);
  const auto layout = LayoutOf(GeometryOf(spec, 0), spec.recipe, AffineForm(2), 3);
  const std::byte* content = ParseOrFail(image).TileContent(0).data();
  for (uint32_t channel = 0; channel < kDim; ++channel) {
    EXPECT_EQ(Load<uint16_t>(content + layout->params.offset + size_t{4} * channel + 2), 0);
  }
  EXPECT_EQ(DecodeOrFail(BestBackend(), ParseOrFail(image), spec.slice), source);
}

// Whatever the rows hold, the others decode to what they do where the rows hold the others' mean,
// and are coded as kivi codes that.
TEST(OttPropertyTest, RowsHaveNoInfluenceOnTheOthers) {
  std::mt19937_64 random = SeededRandom();
  for (const int bits : {4, 2}) {
    const std::string name = "ott:" + std::to_string(bits);
    Bytes source = Values(128, random);
    const std::vector<uint32_t> tiny = {3, 64, 127};
    for (const uint32_t token : tiny) ScaleToken(source, token, 0.001F);
    const ImageSpec spec = SpecOf(128, name);
    const Bytes image = EncodeOrFail(BestBackend(), spec, source);
    ASSERT_EQ(RowsOf(ParseOrFail(image), 0), tiny);
    const Bytes decoded = DecodeOrFail(BestBackend(), ParseOrFail(image), spec.slice);
    // A value inside every channel's range, as the mean of the others is.
    Bytes placed = source;
    const size_t plane = size_t{128} * kDim;
    for (const uint32_t token : tiny) {
      const size_t bytes = kDim * ElementBytes(kType);
      for (const size_t first : {ElementOf(token), plane + ElementOf(token)}) {
        const size_t other = first + kDim - (token == 127 ? 2 * kDim : 0);
        std::memcpy(placed.data() + first * 2, placed.data() + other * 2, bytes);
      }
    }
    const ImageSpec plain = SpecOf(128, "kivi:" + std::to_string(bits));
    const Bytes kivi = EncodeOrFail(BestBackend(), plain, placed);
    const Bytes wanted = DecodeOrFail(BestBackend(), ParseOrFail(kivi), plain.slice);
    for (size_t i = 0; i < 2 * plane; ++i) {
      const auto token = static_cast<uint32_t>(i % plane / kDim);
      const bool is_row = std::find(tiny.begin(), tiny.end(), token) != tiny.end();
      ASSERT_EQ(LoadValue(kType, decoded.data(), i),
                LoadValue(kType, (is_row ? source : wanted).data(), i))
          << i;
    }
  }
}

TEST(OttPropertyTest, AChainOfBlocksHasTheRowsOfOneBlock) {
  std::mt19937_64 random = SeededRandom();
  for (int round = 0; round < 10; ++round) {
    const Bytes whole = Values(384, random);
    const Bytes image = EncodeOrFail(BestBackend(), SpecOf(384, "ott:2"), whole);
    const std::vector<uint32_t> wanted = RowsOf(ParseOrFail(image), 0);
    std::vector<uint32_t> rows;
    Bytes before;
    for (uint32_t block = 0; block < 3; ++block) {
      const ImageSpec spec = SpecOf(128, "ott:2", 128 * block);
      const size_t bytes = SourceBytesOf(spec) / 2;
      const auto k = whole.begin() + static_cast<ptrdiff_t>(block * bytes);
      Bytes source(k, k + static_cast<ptrdiff_t>(bytes));
      const auto v = k + static_cast<ptrdiff_t>(3 * bytes);
      source.insert(source.end(), v, v + static_cast<ptrdiff_t>(bytes));
      before = block == 0 ? EncodeOrFail(BestBackend(), spec, source)
                          : EncodeAfter(spec, source, ParseOrFail(before));
      EXPECT_FALSE(ParseOrFail(before).spec().recipe.is_local);
      for (const uint32_t row : RowsOf(ParseOrFail(before), 0)) rows.push_back(128 * block + row);
    }
    EXPECT_EQ(rows, wanted);
  }
}

TEST(OttPropertyTest, AfterThirtyFiveRowsNoTokenEnters) {
  std::mt19937_64 random = SeededRandom();
  Bytes before;
  uint32_t rows = 0;
  float factor = 1.0F;
  for (uint32_t block = 0; block < 20; ++block, factor *= 0.5F) {
    Bytes source = Values(128, random);
    for (uint32_t token = 0; token < 128; ++token) ScaleToken(source, token, factor);
    const ImageSpec spec = SpecOf(128, "ott:4", 128 * block);
    before = block == 0 ? EncodeOrFail(BestBackend(), spec, source)
                        : EncodeAfter(spec, source, ParseOrFail(before));
    rows += ParseOrFail(before).Tile(0).rows;
  }
  EXPECT_EQ(rows, 35);
  EXPECT_EQ(ParseOrFail(before).Tile(0).rows, 0);
}

TEST(OttPropertyTest, WithoutTheBlockBeforeAnImageSaysLocal) {
  std::mt19937_64 random = SeededRandom();
  const Bytes source = Values(64, random);
  const ImageSpec first = SpecOf(64, "ott:2");
  const ImageSpec second = SpecOf(64, "ott:2", 64);
  const Bytes parent = EncodeOrFail(BestBackend(), first, source);
  EXPECT_EQ(ParseOrFail(parent).spec(), first);
  const Bytes alone = EncodeOrFail(BestBackend(), second, source);
  EXPECT_EQ(ParseOrFail(alone).spec().recipe, RecipeNamed("ott:2/local"));
  EXPECT_EQ(ParseOrFail(EncodeAfter(second, source, ParseOrFail(parent))).spec(), second);
  // A block later than the next, and one after a local one.
  const ImageSpec third = SpecOf(64, "ott:2", 128);
  for (const Bytes* wrong : {&parent, &alone}) {
    const Bytes image = EncodeAfter(third, source, ParseOrFail(*wrong));
    EXPECT_TRUE(ParseOrFail(image).spec().recipe.is_local);
  }
  // The pool of a local one goes on all the same: of equal norms the smallest alone enters.
  EXPECT_EQ(ParseOrFail(EncodeAfter(third, source, ParseOrFail(alone))).Tile(0).rows, 1);
  const ImageSpec local = SpecOf(64, "ott:2/local", 128);
  EXPECT_EQ(ParseOrFail(EncodeAfter(local, source, ParseOrFail(alone))).Tile(0).rows, 3);
}

TEST(OttPropertyTest, EqualNormsGoToTheFirstTokens) {
  const ImageSpec spec = SpecOf(128, "ott:4");
  Bytes source(SourceBytesOf(spec));
  for (size_t i = 0; i < source.size() / 2; ++i) {
    StoreValue(kType, source.data(), i, (i / kDim + i) % 2 == 0 ? 1.0F : -1.0F);
  }
  const Bytes image = EncodeOrFail(BestBackend(), spec, source);
  EXPECT_EQ(RowsOf(ParseOrFail(image), 0), (std::vector<uint32_t>{0, 1, 2}));
}

// A group of layers need not begin with the model's first.
TEST(OttPropertyTest, TheFirstTwoLayersOfAGroupAreAsTheOthers) {
  std::mt19937_64 random = SeededRandom();
  ImageSpec spec = SpecOf(128, "ott:2");
  spec.slice = {0, 4, 0, 1};
  const Bytes image = EncodeOrFail(BestBackend(), spec, RandomValues(spec, random));
  for (uint32_t tile = 0; tile < 8; ++tile) {
    EXPECT_EQ(ParseOrFail(image).Tile(tile).rows, 3) << tile;
  }
}

TEST(OttPropertyTest, DemotionEqualsDirectEncoding) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 20; ++i) {
    const auto tokens = static_cast<uint16_t>(16 + random() % 200);
    const Bytes source = Values(tokens, random);
    const Bytes four = EncodeOrFail(BestBackend(), SpecOf(tokens, "ott:4"), source);
    Bytes two(four.size());
    size_t bytes = 0;
    ASSERT_EQ(Demote(BestBackend(), ParseOrFail(four), RecipeNamed("ott:2"), two, &bytes),
              Error::kOk);
    two.resize(bytes);
    EXPECT_EQ(two, EncodeOrFail(BestBackend(), SpecOf(tokens, "ott:2"), source));
    ASSERT_EQ(Demote(BestBackend(), ParseOrFail(four), RecipeNamed("kivi:2"), two, &bytes),
              Error::kNotDemotable);
  }
}

TEST(OttPropertyTest, PoolsThatNoEncoderWritesAreRefused) {
  const ChainHead pool{{1.0F, 2.0F, 2.0F}, 3, 32};
  uint8_t bytes[kChainBytes];
  StoreChain(pool, bytes);
  ChainHead loaded;
  ASSERT_TRUE(LoadChain(bytes, &loaded));
  EXPECT_EQ(loaded.norms[2], 2.0F);
  const auto refuses = [&](size_t at, uint8_t value) {
    uint8_t changed[kChainBytes];
    std::memcpy(changed, bytes, sizeof(changed));
    changed[at] = value;
    return !LoadChain(changed, &loaded);
  };
  EXPECT_TRUE(refuses(3, 0x7F));  // infinite or NaN
  EXPECT_TRUE(refuses(3, 0xBF));  // negative
  EXPECT_TRUE(refuses(3, 0x41));  // not ascending
  EXPECT_TRUE(refuses(12, 2));    // a norm past the count, and some gone with room left
  EXPECT_TRUE(refuses(12, 4));    // count
  EXPECT_TRUE(refuses(13, 33));   // gone
  EXPECT_TRUE(refuses(14, 1));    // zero
  EXPECT_FALSE(refuses(13, 0));
}

}  // namespace
}  // namespace cairn::codecs
