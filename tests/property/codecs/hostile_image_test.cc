// SPDX-License-Identifier: Apache-2.0
// Images as an attacker would have them: every byte of header and directory changed, with and
// without a CRC that fits; every truncation; tiles with valid CRCs and invalid content. Whatever
// parses must be safe to verify, decode, demote and gather.

#include "codecs/format/image_header.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

Bytes SmallImage(std::string_view recipe, std::mt19937_64& random) {
  const ImageSpec spec = MakeSpec(DType::kBf16, {1, 2, 3, 2}, 40, 24, 13, RecipeNamed(recipe));
  return EncodeOrFail(BestBackend(), spec, RandomValues(spec, random));
}

uint32_t TileCountOf(const Bytes& image) {
  return Load<uint32_t>(image.data() + header::kTileCount);
}

// Everything a reader may do with what has parsed. The image is copied so that it ends where its
// bytes do.
void UseAll(const Bytes& image) {
  ImageView view;
  if (ParseImage(image, &view) != Error::kOk) return;
  const Error verified = VerifyTiles(view);
  Bytes values(SourceBytesOf(view.spec()));
  const Error decoded = Decode(ReferenceBackend(), view, view.spec().slice, values);
  // Strips and class maps are looked at when they are decoded.
  const RecipeId id = view.spec().recipe.id;
  EXPECT_TRUE(decoded == Error::kOk || id == RecipeId::kExact || id == RecipeId::kMixKvq);
  for (const Backend* backend : CpuBackends()) {
    EXPECT_EQ(Decode(*backend, view, view.spec().slice, values), decoded);
  }
  uint64_t gathered_bytes = 0;
  const std::array views = {view};
  ASSERT_EQ(GatheredBytes(views, view.spec().slice, &gathered_bytes), Error::kOk);
  EXPECT_EQ(gathered_bytes, view.bytes().size());
  size_t bytes = 0;
  const bool is_exact = view.spec().recipe.id == RecipeId::kExact;
  for (const char* name : {"kivi:2+", "raw", "kivi:4"}) {
    const Recipe recipe = RecipeNamed(name);
    Bytes target(DemoteBytesMax(view, recipe));
    const Error error = Demote(BestBackend(), view, recipe, target, &bytes);
    EXPECT_TRUE(error == Error::kOk || error == Error::kNotDemotable ||
                (error == Error::kBadTile && decoded == Error::kBadTile))
        << Name(error);
    if (error == Error::kOk && verified == Error::kOk) {
      ImageView demoted;
      EXPECT_EQ(ParseImage(std::span(target).first(bytes), &demoted), Error::kOk);
      EXPECT_EQ(VerifyTiles(demoted), Error::kOk);
    }
    if (is_exact) break;  // all ways lead over the source bits
  }
}

class HostileImageTest : public testing::TestWithParam<const char*> {
 protected:
  std::mt19937_64 random_ = SeededRandom();
  Bytes image_ = SmallImage(GetParam(), random_);
};

TEST_P(HostileImageTest, UnitsAndSymbolModesOfLaterWritersAreRefusedByName) {
  for (const size_t field :
       {header::kUnitLayers, header::kUnitHeads, header::kUnitPlanes, header::kSymbolMode}) {
    for (const int value : {1, 2, 7, 128, 255}) {
      Bytes changed = image_;
      changed[field] = static_cast<std::byte>(value);
      ImageView view;
      EXPECT_EQ(ParseImage(changed, &view), Error::kUnknownUnit) << field;
      FixPrefixCrc(changed, TileCountOf(changed));
      EXPECT_EQ(ParseImage(changed, &view), Error::kUnknownUnit) << field;
    }
  }
}

TEST_P(HostileImageTest, AnyChangeBeforeTheTilesIsNoticed) {
  const size_t prefix = PrefixBytes(TileCountOf(image_));
  for (size_t i = 0; i < prefix; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = image_;
      changed[i] ^= static_cast<std::byte>(1 << bit);
      ImageView view;
      EXPECT_NE(ParseImage(changed, &view), Error::kOk) << "byte " << i << " bit " << bit;
    }
  }
}

TEST_P(HostileImageTest, AnyChangeWithAFittingCrcIsRefusedOrHarmless) {
  const uint32_t tile_count = TileCountOf(image_);
  const size_t prefix = PrefixBytes(tile_count);
  // Strips take longer to decode than all else; the header is the same.
  const int step = std::string_view(GetParam()).starts_with("exact") ? 5 : 1;
  for (size_t i = 0; i < prefix; ++i) {
    // Names may be anything.
    const bool is_name = i >= header::kSpace && i < header::kFirstPosition;
    for (int value = 0; value < 256; value += is_name ? 127 : i < kHeaderBytes ? step : 7) {
      Bytes changed = image_;
      changed[i] = static_cast<std::byte>(value);
      FixPrefixCrc(changed, TileCountOf(changed));
      UseAll(changed);
      if (HasFailure()) FAIL() << "byte " << i << " value " << value;
    }
  }
}

TEST_P(HostileImageTest, ReservedBytesMustBeZero) {
  for (const auto& [first, count] : {std::pair<size_t, size_t>{header::kRecipeReserved, 1},
                                     {header::kRecipeParams, 23},
                                     {header::kSideObjects, 128},
                                     {header::kTail, 32}}) {
    for (size_t i = first; i < first + count; ++i) {
      Bytes changed = image_;
      changed[i] = std::byte{1};
      FixPrefixCrc(changed, TileCountOf(changed));
      ImageView view;
      if (i == header::kVariant && RecipeNamed(GetParam()).HasVariant()) continue;
      EXPECT_EQ(ParseImage(changed, &view), Error::kBadPadding) << i;
    }
  }
}

TEST_P(HostileImageTest, EveryTruncationIsRefused) {
  for (size_t bytes = 0; bytes < image_.size(); ++bytes) {
    const Bytes cut(image_.begin(), image_.begin() + static_cast<ptrdiff_t>(bytes));
    ImageView view;
    EXPECT_EQ(ParseImage(cut, &view), Error::kTruncated) << bytes;
  }
  Bytes longer = image_;
  longer.resize(image_.size() + 100);
  EXPECT_EQ(ParseOrFail(longer).bytes().size(), image_.size());
}

TEST_P(HostileImageTest, AnyChangeOfATileIsNoticed) {
  const size_t prefix = PrefixBytes(TileCountOf(image_));
  for (size_t i = prefix; i < image_.size(); ++i) {
    Bytes changed = image_;
    changed[i] ^= static_cast<std::byte>(1 << (random_() % 8));
    ImageView view;
    ASSERT_EQ(ParseImage(changed, &view), Error::kOk);
    EXPECT_EQ(VerifyTiles(view), Error::kBadChecksum);
  }
}

TEST_P(HostileImageTest, ATileWithAFittingCrcIsSafeWhateverItHolds) {
  const size_t prefix = PrefixBytes(TileCountOf(image_));
  for (size_t i = prefix; i < image_.size(); i += 1 + random_() % 9) {
    Bytes changed = image_;
    changed[i] = random_() % 2 == 0 ? std::byte{0xFF} : static_cast<std::byte>(random_());
    const ImageView before = ParseOrFail(image_);
    uint32_t tile = before.tile_count() - 1;
    while (before.Tile(tile).offset > i) --tile;
    FixTileCrc(changed, tile);
    UseAll(changed);
    if (HasFailure()) FAIL() << "byte " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, HostileImageTest,
                         testing::Values("raw", "kivi:8", "kivi:4+", "kivi:2", "exact",
                                         "exact:fast", "fp8", "mixkvq", "mixkvq:paper",
                                         "logquant:2", "ott:2", "arkv", "arkv:paper"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == ':' ? '_' : c == '+' ? 'p' : c;
                           return name;
                         });

TEST(HostileImageTest, InvalidTilesAreNamed) {
  std::mt19937_64 random = SeededRandom();
  // K: 40 x 24 at 2 bits: codes 240, params 96, one row of 48, its position.
  const Bytes image = SmallImage("kivi:2+", random);
  const size_t tile = PrefixBytes(8);
  const auto verify_with = [&](size_t offset, uint16_t value) {
    Bytes changed = image;
    Store(changed.data() + tile + offset, value);
    FixTileCrc(changed, 0);
    ImageView view;
    EXPECT_EQ(ParseImage(changed, &view), Error::kOk);
    return VerifyTile(view, 0);
  };
  ASSERT_EQ(ParseOrFail(image).Tile(0).rows, 1);
  EXPECT_EQ(verify_with(240, 0x7C00), Error::kBadTile);  // min infinite
  EXPECT_EQ(verify_with(240, 0x8000), Error::kBadTile);  // min -0
  EXPECT_EQ(verify_with(242, 0x8001), Error::kBadTile);  // range negative
  EXPECT_EQ(verify_with(242, 0x7E00), Error::kBadTile);  // range NaN
  EXPECT_EQ(verify_with(242, 0x0001), Error::kOk);
  EXPECT_EQ(verify_with(240 + 96 + 48, 40), Error::kBadTile);  // row past the tile
  EXPECT_EQ(verify_with(240 + 96 + 48, 39), Error::kOk);
  EXPECT_EQ(verify_with(240 + 96 + 50, 1), Error::kBadPadding);
}

}  // namespace
}  // namespace cairn::codecs
