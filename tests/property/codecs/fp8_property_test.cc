// SPDX-License-Identifier: Apache-2.0
// The recipe `fp8`: E4M3 against a search through its values, errors inside the stated bound,
// zeros and rows exact, invalid tiles named.

#include "codecs/format/image_header.h"
#include "codecs/forms/form.h"
#include "codecs/numbers/fp8.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

TEST(Fp8PropertyTest, CodesAreTheirOwnNearest) {
  EXPECT_EQ(E4m3ToFloat(kE4m3MaxCode), kE4m3Max);
  EXPECT_EQ(FloatBits(kE4m3Max), kE4m3MaxBits);
  for (uint32_t code = 0; code < 256; ++code) {
    const auto narrow = static_cast<uint8_t>(code);
    const float value = E4m3ToFloat(narrow);
    if (IsE4m3Nan(narrow)) {
      EXPECT_NE(value, value);
    } else {
      EXPECT_EQ(FloatToE4m3(value), narrow);
    }
  }
}

TEST(Fp8PropertyTest, RoundsToNearestEvenAndSaturates) {
  std::mt19937_64 random = SeededRandom();
  const auto check = [](float value) {
    uint32_t nearest = 0;
    for (uint32_t code = 1; code <= kE4m3MaxCode; ++code) {
      const double here = std::abs(double{E4m3ToFloat(static_cast<uint8_t>(code))} - value);
      const double best = std::abs(double{E4m3ToFloat(static_cast<uint8_t>(nearest))} - value);
      if (here < best || (here == best && code % 2 == 0)) nearest = code;
    }
    EXPECT_EQ(FloatToE4m3(value), nearest) << value;
    EXPECT_EQ(FloatToE4m3(-value), nearest | 0x80) << value;
  };
  for (uint32_t code = 0; code < kE4m3MaxCode; ++code) {  // ties, and their neighbours
    const float middle =
        (E4m3ToFloat(static_cast<uint8_t>(code)) + E4m3ToFloat(static_cast<uint8_t>(code + 1))) / 2;
    for (const float value :
         {middle, BitsFloat(FloatBits(middle) - 1), BitsFloat(FloatBits(middle) + 1)}) {
      check(value);
    }
  }
  std::uniform_real_distribution<float> exponent(-30, 10);
  for (int i = 0; i < 2000; ++i) check(std::exp2(exponent(random)));
  check(1e-40F);
  EXPECT_EQ(FloatToE4m3(1e30F), kE4m3MaxCode);
  EXPECT_EQ(FloatToE4m3(-INFINITY), kE4m3MaxCode | 0x80);
}

TEST(Fp8PropertyTest, EveryE5m2ComesBack) {
  for (uint32_t code = 0; code < 256; ++code) {
    const auto narrow = static_cast<uint8_t>(code);
    const float value = E5m2ToFloat(narrow);
    EXPECT_EQ(IsRowValue(value), (code & 0x7F) >= 0x78) << code;  // 32768 and above
    if (std::isfinite(value)) {
      EXPECT_EQ(FloatToE5m2(value), narrow);
      EXPECT_EQ(FloatToFp8(DType::kFp8E5m2, value), narrow);
    }
  }
  for (uint32_t code = 0; code < kE5m2MaxCode; ++code) {  // ties go to the even one
    const float low = E5m2ToFloat(static_cast<uint8_t>(code));
    const float high = E5m2ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(FloatToE5m2(middle), code + code % 2);
    EXPECT_EQ(FloatToE5m2(BitsFloat(FloatBits(middle) - 1)), code);
    EXPECT_EQ(FloatToE5m2(-BitsFloat(FloatBits(middle) + 1)), (code + 1) | 0x80);
  }
  EXPECT_EQ(FloatToE5m2(1e30F), kE5m2MaxCode);
  EXPECT_EQ(FloatToE5m2(-INFINITY), kE5m2MaxCode | 0x80);
}

class Fp8ImageTest : public testing::TestWithParam<DType> {
 protected:
  std::mt19937_64 random_ = SeededRandom(static_cast<uint32_t>(GetParam()));
  ImageSpec spec_ = MakeSpec(GetParam(), {0, 2, 0, 2}, 45, 40, 24, RecipeNamed("fp8"));
};

TEST_P(Fp8ImageTest, ErrorsStayInsideTheBound) {
  Bytes source = RandomValues(spec_, random_);
  // Tokens at the scale of denormals, and of the largest that are coded.
  for (size_t c = 0; c < 40; ++c) {
    StoreValue(GetParam(), source.data(), c, 1e-7F * static_cast<float>(c % 5));
    StoreValue(GetParam(), source.data(), 40 + c, 32640.0F / static_cast<float>(1 + c));
  }
  const Bytes image = EncodeOrFail(BestBackend(), spec_, source);
  EXPECT_LT(image.size(), source.size() * 2 / 3 + 1024);
  const ImageView view = ParseOrFail(image);
  const Bytes decoded = DecodeOrFail(BestBackend(), view, spec_.slice);
  size_t at = 0;
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const TileGeometry geometry = GeometryOf(spec_, i % 2);
    const auto layout = LayoutOf(geometry, spec_.recipe, view.Tile(i).form, 0);
    ASSERT_TRUE(layout.has_value());
    for (uint32_t token = 0; token < geometry.rows; ++token) {
      const std::byte* scales = view.TileContent(i).data() + layout->scales.offset;
      const float scale = Fp16ToFloat(Load<uint16_t>(scales + 2 * size_t{token}));
      for (uint32_t c = 0; c < geometry.dim; ++c, ++at) {
        const double x = LoadValue(GetParam(), source.data(), at);
        const double decoded_x = LoadValue(GetParam(), decoded.data(), at);
        const double ulp = GetParam() == DType::kBf16   ? std::abs(x) / 128
                           : GetParam() == DType::kFp16 ? std::abs(x) / 1024 + 6e-8
                                                        : 0;
        const double bound = std::max(std::abs(x) / 16, double{scale} / 1024) +
                             (std::abs(x) + double{scale}) / (1 << 21) + ulp;
        EXPECT_LE(std::abs(decoded_x - x), bound) << x << " scale " << scale;
      }
    }
  }
}

TEST_P(Fp8ImageTest, ZerosAndRowsComeBackAsTheyWere) {
  Bytes source = RandomValues(spec_, random_);
  for (size_t c = 0; c < 40; ++c) {
    StoreValue(GetParam(), source.data(), c, c % 3 == 0 ? -0.0F : 0.0F);
  }
  StoreValue(GetParam(), source.data(), 41, NAN);
  StoreValue(GetParam(), source.data(), 82, -INFINITY);
  const Bytes image = EncodeOrFail(BestBackend(), spec_, source);
  const ImageView view = ParseOrFail(image);
  EXPECT_EQ(view.Tile(0).rows, 2);
  const Bytes decoded = DecodeOrFail(BestBackend(), view, spec_.slice);
  const size_t rows_end = size_t{3} * 40 * ElementBytes(GetParam());
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + static_cast<ptrdiff_t>(rows_end),
                         decoded.begin()));
}

TEST_P(Fp8ImageTest, DecodingAgainChangesNothing) {
  const Bytes source = RandomValues(spec_, random_);
  const Bytes image = EncodeOrFail(BestBackend(), spec_, source);
  const Bytes once = DecodeOrFail(BestBackend(), ParseOrFail(image), spec_.slice);
  for (const char* name : {"kivi:8", "kivi:2+", "raw", "exact"}) {
    Bytes target(DemoteBytesMax(ParseOrFail(image), RecipeNamed(name)));
    size_t bytes = 0;
    EXPECT_EQ(Demote(BestBackend(), ParseOrFail(image), RecipeNamed(name), target, &bytes),
              Error::kNotDemotable);
  }
  EXPECT_NE(once, source);
}

INSTANTIATE_TEST_SUITE_P(DTypes, Fp8ImageTest,
                         testing::Values(DType::kBf16, DType::kFp16, DType::kFp32),
                         [](const auto& info) { return NameOf(info.param); });

TEST(Fp8PropertyTest, InvalidTilesAreNamed) {
  std::mt19937_64 random = SeededRandom();
  const ImageSpec spec = MakeSpec(DType::kBf16, {0, 1, 0, 1}, 21, 16, 16, RecipeNamed("fp8"));
  Bytes source = RandomValues(spec, random);
  StoreValue(DType::kBf16, source.data(), 5 * 16 + 1, NAN);
  const Bytes image = EncodeOrFail(BestBackend(), spec, source);
  const size_t tile = PrefixBytes(2);
  const size_t side = tile + 21 * 16;
  const auto verify_with = [&](size_t offset, uint8_t value) {
    Bytes changed = image;
    changed[offset] = std::byte{value};
    FixTileCrc(changed, 0);
    ImageView view;
    EXPECT_EQ(ParseImage(changed, &view), Error::kOk);
    return VerifyTile(view, 0);
  };
  EXPECT_EQ(ParseOrFail(image).Tile(0).rows, 1);
  EXPECT_EQ(verify_with(tile, 0x7E), Error::kOk);
  EXPECT_EQ(verify_with(tile, 0x7F), Error::kBadTile);
  EXPECT_EQ(verify_with(tile, 0xFF), Error::kBadTile);
  EXPECT_EQ(verify_with(side + 32 + 1, 0x7C), Error::kBadTile);  // a scale infinite
  EXPECT_EQ(verify_with(side + 32 + 1, 0x80), Error::kBadTile);  // negative
  EXPECT_EQ(verify_with(side + 32 + 42, 21), Error::kBadTile);   // a row past the tile
  EXPECT_EQ(verify_with(side + 32 + 44, 1), Error::kBadPadding);
}

}  // namespace
}  // namespace cairn::codecs
