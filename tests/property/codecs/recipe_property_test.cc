// SPDX-License-Identifier: Apache-2.0
// What docs/recipes/ promise of every recipe, on random sources and for every dtype.

#include <algorithm>
#include <cmath>

#include "codecs/forms/form.h"
#include "codecs/transform/demote.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

ImageSpec RandomSpec(std::mt19937_64& random, const Recipe& recipe) {
  const Slice slice{static_cast<uint16_t>(random() % 5), static_cast<uint16_t>(1 + random() % 2),
                    static_cast<uint16_t>(random() % 5), static_cast<uint16_t>(1 + random() % 2)};
  ImageSpec spec = MakeSpec(
      kDTypes[random() % kDTypes.size()], slice, static_cast<uint16_t>(1 + random() % 160),
      static_cast<uint32_t>(1 + random() % 100), static_cast<uint32_t>(1 + random() % 100), recipe);
  spec.first_position = random() % 2 * 128;
  return spec;
}

TEST(RecipePropertyTest, RawIsBitExactForEveryKindAndDType) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 60; ++i) {
    ImageSpec spec = RandomSpec(random, RecipeNamed("raw"));
    if (i % 4 == 0) spec.tile = {GroupKind::kState, DType::kBytes, 1234, 0};
    if (i % 4 == 1) spec.tile = {GroupKind::kOpaqueRows, DType::kBytes, 77, 0};
    if (i % 4 == 2) spec.tile = {GroupKind::kLatent, spec.tile.dtype, 72, 0};
    const Bytes source = RandomBits(SourceBytesOf(spec), random);
    const Bytes image = EncodeOrFail(BestBackend(), spec, source);
    const ImageView view = ParseOrFail(image);
    EXPECT_EQ(DecodeOrFail(BestBackend(), view, spec.slice), source);
  }
}

// Half a unit in the last place of a decoded value; of 8-bit floats, which are rounded twice, more.
double HalfUlp(DType dtype, float value) {
  const int exponent_min = dtype == DType::kFp16 || dtype == DType::kFp8E5m2 ? -14
                           : dtype == DType::kFp8E4m3                        ? -6
                                                                             : -126;
  const int exponent = value == 0.0F ? exponent_min : std::max(std::ilogb(value), exponent_min);
  const double half = std::ldexp(0.5, exponent - static_cast<int>(ExponentShift(dtype)));
  return ElementBytes(dtype) == 1 ? 1.1 * half : half;
}

struct Tile {
  TileGeometry geometry;
  TileLayout layout;
  AffineTile affine;
  const std::byte* content;
  const std::byte* source;
  const std::byte* decoded;
  uint32_t rows;
};

void ExpectWithinHalfAStep(const Tile& tile) {
  std::vector<bool> is_row(tile.geometry.rows);
  for (uint32_t i = 0; i < tile.rows; ++i) {
    uint16_t position = 0;
    std::memcpy(&position, tile.content + tile.layout.positions.offset + 2 * i, 2);
    is_row[position] = true;
  }
  const uint32_t dim = tile.geometry.dim;
  const uint32_t group_count = (dim + tile.affine.group - 1) / tile.affine.group;
  const size_t row_bytes = tile.geometry.RowBytes();
  for (uint32_t token = 0; token < tile.geometry.rows; ++token) {
    if (is_row[token]) {
      EXPECT_EQ(
          std::memcmp(tile.source + token * row_bytes, tile.decoded + token * row_bytes, row_bytes),
          0);
      continue;
    }
    for (uint32_t channel = 0; channel < dim; ++channel) {
      const size_t pair = tile.geometry.IsPerChannel()
                              ? size_t{token / tile.affine.group} * dim + channel
                              : size_t{token} * group_count + channel / tile.affine.group;
      std::array<uint16_t, 2> params{};
      std::memcpy(params.data(), tile.content + tile.layout.params.offset + 4 * pair, 4);
      const double min = Fp16ToFloat(params[0]);
      const double range = Fp16ToFloat(params[1]);
      const size_t index = size_t{token} * dim + channel;
      const float source = LoadValue(tile.geometry.dtype, tile.source, index);
      const float decoded = LoadValue(tile.geometry.dtype, tile.decoded, index);
      const double bound = range / (2.0 * (std::ldexp(1.0, tile.affine.bits) - 1.0)) +
                           0x1p-20 * (range + std::fabs(min)) +
                           HalfUlp(tile.geometry.dtype, decoded);
      ASSERT_LE(std::fabs(double{source} - double{decoded}), bound)
          << "token " << token << " channel " << channel << " min " << min << " range " << range;
    }
  }
}

TEST(RecipePropertyTest, KiviStaysWithinHalfAStep) {
  std::mt19937_64 random = SeededRandom();
  int coded = 0;
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    const ImageSpec spec =
        RandomSpec(random, RecipeNamed(std::array{"kivi:8", "kivi:4", "kivi:2"}[i % 3]));
    Bytes source = RandomValues(spec, random);
    // Some tokens that cannot be coded.
    if (i % 5 == 0) StoreValue(spec.tile.dtype, source.data(), 3 % spec.tokens, INFINITY);
    if (i % 5 == 1) StoreValue(spec.tile.dtype, source.data(), 0, 60000.0F);
    const Bytes image = EncodeOrFail(BestBackend(), spec, source);
    const ImageView view = ParseOrFail(image);
    const Bytes decoded = DecodeOrFail(BestBackend(), view, spec.slice);
    size_t offset = 0;
    for (uint32_t t = 0; t < view.tile_count(); ++t) {
      const TileGeometry geometry = GeometryOf(spec, t % 2);
      const TileEntry entry = view.Tile(t);
      const auto layout = LayoutOf(geometry, spec.recipe, entry.form, entry.rows);
      ASSERT_TRUE(layout.has_value());
      if (entry.form == kRawForm) {
        EXPECT_EQ(
            std::memcmp(source.data() + offset, decoded.data() + offset, geometry.SourceBytes()),
            0);
      } else {
        ++coded;
        ExpectWithinHalfAStep({geometry, *layout, AffineOf(geometry, spec.recipe),
                               view.TileContent(t).data(), source.data() + offset,
                               decoded.data() + offset, entry.rows});
      }
      offset += geometry.SourceBytes();
    }
  }
  EXPECT_GT(coded, 100);
}

TEST(RecipePropertyTest, TokensThatCannotBeCodedComeBackBitForBit) {
  std::mt19937_64 random = SeededRandom();
  for (const DType dtype : kDTypes) {
    for (const Recipe& recipe : AllRecipes()) {
      const ImageSpec spec = MakeSpec(dtype, {0, 1, 0, 1}, 64, 32, 32, recipe);
      Bytes source = RandomValues(spec, random);
      const size_t row_bytes = 32 * ElementBytes(dtype);
      const Bytes odd = RandomBits(row_bytes, random);
      std::memcpy(source.data() + 7 * row_bytes, odd.data(), row_bytes);
      StoreValue(dtype, source.data(), 7 * 32 + 5, NAN);
      StoreValue(dtype, source.data(), 9 * 32, -INFINITY);
      const Bytes image = EncodeOrFail(BestBackend(), spec, source);
      const Bytes decoded = DecodeOrFail(BestBackend(), ParseOrFail(image), spec.slice);
      for (const size_t token : {7, 9}) {
        EXPECT_EQ(std::memcmp(source.data() + token * row_bytes, decoded.data() + token * row_bytes,
                              row_bytes),
                  0)
            << FormatRecipe(recipe);
      }
    }
  }
}

TEST(RecipePropertyTest, ConstantGroupsComeBackExactly) {
  for (const DType dtype : kDTypes) {
    for (const Recipe& recipe : AllRecipes()) {
      if (recipe.id == RecipeId::kFp8) continue;  // has no minimum
      for (const float value : {0.0F, 1.0F, -2.75F, 0.1F, 1e-7F, -3e-7F, 32752.0F}) {
        const ImageSpec spec = MakeSpec(dtype, {0, 1, 0, 1}, 128, 64, 64, recipe);
        Bytes source(SourceBytesOf(spec));
        for (size_t i = 0; i < source.size() / ElementBytes(dtype); ++i) {
          StoreValue(dtype, source.data(), i, value);
        }
        if (value < 0 && LoadValue(dtype, source.data(), 0) == 0) continue;  // zero has no sign
        const Bytes image = EncodeOrFail(BestBackend(), spec, source);
        EXPECT_EQ(DecodeOrFail(BestBackend(), ParseOrFail(image), spec.slice), source)
            << FormatRecipe(recipe) << " " << value;
      }
    }
  }
}

TEST(RecipePropertyTest, TokenZeroOfAChainIsExactWithPlus) {
  std::mt19937_64 random = SeededRandom();
  for (const uint64_t first_position : {0, 128}) {
    ImageSpec spec = MakeSpec(DType::kBf16, {0, 1, 0, 1}, 128, 64, 64, RecipeNamed("kivi:2+"));
    spec.first_position = first_position;
    const Bytes source = RandomValues(spec, random);
    const Bytes image = EncodeOrFail(BestBackend(), spec, source);
    const ImageView view = ParseOrFail(image);
    EXPECT_EQ(view.Tile(0).rows, first_position == 0 ? 1 : 0);
    const Bytes decoded = DecodeOrFail(BestBackend(), view, spec.slice);
    EXPECT_EQ(std::memcmp(source.data(), decoded.data(), 128) == 0, first_position == 0);
  }
}

double SquaredError(const ImageSpec& spec, const Bytes& source, const Bytes& decoded) {
  double sum = 0;
  for (size_t i = 0; i < source.size() / ElementBytes(spec.tile.dtype); ++i) {
    const double distance = LoadValue(spec.tile.dtype, source.data(), i) -
                            LoadValue(spec.tile.dtype, decoded.data(), i);
    sum += distance * distance;
  }
  return sum;
}

TEST(RecipePropertyTest, ClippedRangesHaveLessError) {
  std::mt19937_64 random = SeededRandom();
  for (const auto& [plain, clipped] : {std::pair{"kivi:2", "kivi:2+"}, {"kivi:4", "kivi:4+"}}) {
    ImageSpec spec = MakeSpec(DType::kBf16, {0, 1, 0, 2}, 128, 64, 64, RecipeNamed(plain));
    spec.first_position = 128;  // so that no row helps
    const Bytes source = RandomValues(spec, random);
    const Bytes first = EncodeOrFail(BestBackend(), spec, source);
    spec.recipe = RecipeNamed(clipped);
    const Bytes second = EncodeOrFail(BestBackend(), spec, source);
    const auto error = [&](const Bytes& image) {
      return SquaredError(spec, source,
                          DecodeOrFail(BestBackend(), ParseOrFail(image), spec.slice));
    };
    EXPECT_LT(error(second), error(first)) << clipped;
    EXPECT_EQ(first.size(), second.size());
  }
}

Bytes DemoteOrFail(const Bytes& image, const Recipe& recipe) {
  const ImageView view = ParseOrFail(image);
  Bytes target(image.size(), std::byte{0x55});
  size_t bytes = 0;
  EXPECT_EQ(Demote(BestBackend(), view, recipe, target, &bytes), Error::kOk);
  target.resize(bytes);
  return target;
}

TEST(RecipePropertyTest, DemotionEqualsDirectEncoding) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 60; ++i) {
    ImageSpec spec = RandomSpec(random, RecipeNamed("raw"));
    const Bytes source =
        i % 6 == 0 ? RandomBits(SourceBytesOf(spec), random) : RandomValues(spec, random);
    const Bytes raw = EncodeOrFail(BestBackend(), spec, source);
    const auto direct = [&](std::string_view name) {
      spec.recipe = RecipeNamed(name);
      return EncodeOrFail(BestBackend(), spec, source);
    };
    const Bytes eight = direct("kivi:8");
    const Bytes four = direct("kivi:4");
    const Bytes two = direct("kivi:2");
    EXPECT_EQ(DemoteOrFail(raw, RecipeNamed("kivi:8")), eight);
    EXPECT_EQ(DemoteOrFail(raw, RecipeNamed("kivi:2+")), direct("kivi:2+"));
    EXPECT_EQ(DemoteOrFail(eight, RecipeNamed("kivi:4")), four);
    EXPECT_EQ(DemoteOrFail(eight, RecipeNamed("kivi:2")), two);
    EXPECT_EQ(DemoteOrFail(four, RecipeNamed("kivi:2")), two);
    EXPECT_EQ(DemoteOrFail(four, RecipeNamed("kivi:4")), four);
  }
}

TEST(RecipePropertyTest, DemotionInOneStepOrTwoIsTheSame) {
  std::mt19937_64 random = SeededRandom();
  const ImageSpec spec = MakeSpec(DType::kFp16, {0, 1, 0, 2}, 128, 80, 64, RecipeNamed("kivi:8+"));
  const Bytes image = EncodeOrFail(BestBackend(), spec, RandomValues(spec, random));
  const Bytes four = DemoteOrFail(image, RecipeNamed("kivi:4+"));
  EXPECT_EQ(DemoteOrFail(four, RecipeNamed("kivi:2+")),
            DemoteOrFail(image, RecipeNamed("kivi:2+")));
}

TEST(RecipePropertyTest, OnlyNestedRecipesAreReachable) {
  std::mt19937_64 random = SeededRandom();
  for (const auto& [from, to] : {std::pair{"kivi:2", "kivi:4"},
                                 {"kivi:4", "kivi:4+"},
                                 {"kivi:8+", "kivi:4"},
                                 {"kivi:8", "raw"}}) {
    const ImageSpec spec = MakeSpec(DType::kBf16, {0, 1, 0, 1}, 64, 32, 32, RecipeNamed(from));
    const Bytes image = EncodeOrFail(BestBackend(), spec, RandomValues(spec, random));
    Bytes target(1 << 20);
    size_t bytes = 77;
    EXPECT_EQ(Demote(BestBackend(), ParseOrFail(image), RecipeNamed(to), target, &bytes),
              Error::kNotDemotable);
    EXPECT_EQ(bytes, 77);
  }
}

TEST(RecipePropertyTest, SameInputSameBytesOnEveryBackend) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 40; ++i) {
    const ImageSpec spec = RandomSpec(random, AllRecipes()[random() % AllRecipes().size()]);
    const Bytes source = RandomValues(spec, random);
    const Bytes image = EncodeOrFail(ReferenceBackend(), spec, source);
    const Bytes decoded = DecodeOrFail(ReferenceBackend(), ParseOrFail(image), spec.slice);
    for (const Backend* backend : CpuBackends()) {
      EXPECT_EQ(EncodeOrFail(*backend, spec, source), image) << backend->name;
      EXPECT_EQ(DecodeOrFail(*backend, ParseOrFail(image), spec.slice), decoded) << backend->name;
    }
  }
}

}  // namespace
}  // namespace cairn::codecs
