// SPDX-License-Identifier: Apache-2.0
// Images of the recipe `cairn`: parts make a whole, headers say nothing else, nothing is coded
// without the profile, damage is refused or harmless.

#include <string>
#include <utility>

#include "codecs/bytes.h"
#include "codecs/checksum.h"
#include "codecs/demote.h"
#include "codecs/image_header.h"
#include "codecs/static_step.h"
#include "codecs/step_strips.h"
#include "tests/property/codecs/images.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr Slice kWhole{1, 3, 0, 4};
constexpr ProfileShape kShape = {
    .layers = 4, .heads = 4, .k_dim = 32, .v_dim = 24, .rope = RopeKind::kHalf, .rotary_dims = 32};
constexpr Digest kId = {1, 2, 3};

class CairnImagePropertyTest : public testing::Test {
 protected:
  CairnImagePropertyTest() : profile_bytes_(ProfileBytes(kShape, SeededRandom()).bytes()) {
    EXPECT_EQ(ParseProfile(profile_bytes_, &profile_), Error::kOk);
    spec_ = MakeSpec(DType::kBf16, kWhole, 200, 32, 24, Recipe{});
    EXPECT_EQ(SetCairn(profile_, kId, 23, 0, &spec_), Error::kOk);
    source_.resize(SourceBytesOf(spec_));
    Fill();
    image_ = Encoded(spec_, source_);
  }

  // As the profile expects it, with some of it far out.
  void Fill() {
    std::normal_distribution<float> bell;
    uint64_t index = 0;
    for (uint32_t tile = 0; tile < TileCount(spec_.tile, spec_.slice); ++tile) {
      const TileGeometry geometry = GeometryOf(spec_, tile % 2);
      for (uint64_t i = 0; i < uint64_t{geometry.rows} * geometry.dim; ++i) {
        const auto c = static_cast<uint32_t>(i % geometry.dim);
        const ProfileChannel known = profile_.Channel(tile % 2, HeadOf(spec_, tile), c);
        const float far = random_() % 500 == 0 ? 30.0F : 1.0F;
        StoreValue(DType::kBf16, source_.data(), index++,
                   known.mean + far * bell(random_) * Exp2(known.spread_log));
      }
    }
    StoreValue(DType::kBf16, source_.data(), 40, INFINITY);
  }

  Bytes Encoded(const ImageSpec& spec, std::span<const std::byte> source) const {
    uint64_t bytes_max = 0;
    EXPECT_EQ(MaxImageBytes(spec, &bytes_max), Error::kOk);
    Bytes image(bytes_max);
    size_t bytes = 0;
    EXPECT_EQ(Encode(BestBackend(), spec, source, image, &bytes, {.profile = &profile_}),
              Error::kOk);
    image.resize(bytes);
    return image;
  }

  Bytes Decoded(const Bytes& image, const Slice& slice) const {
    const ImageView view = ParseOrFail(image);
    uint64_t bytes = 0;
    EXPECT_EQ(SourceBytes(view.spec().tile, slice, view.spec().tokens, &bytes), Error::kOk);
    Bytes target(bytes);
    EXPECT_EQ(Decode(BestBackend(), view, slice, target, {.profile = &profile_}), Error::kOk);
    return target;
  }

  [[nodiscard]] size_t HeadBytes() const { return size_t{spec_.tokens} * (32 + 24) * 2; }
  [[nodiscard]] static size_t HeadNumber(uint32_t layer, uint32_t head) {
    return (layer - kWhole.layer_first) * kWhole.head_count + (head - kWhole.head_first);
  }

  static void FixCrc(Bytes& image) {
    const auto tiles = Load<uint32_t>(image.data() + header::kTileCount);
    if (tiles > 24) return;  // the damage is there
    for (uint32_t i = 0; i < tiles; ++i) {
      std::byte* entry = image.data() + PrefixBytes(i);
      const uint64_t offset = uint64_t{Load<uint32_t>(entry + directory::kOffset)} * 16;
      const auto bytes = Load<uint32_t>(entry + directory::kBytes);
      if (offset > image.size() || bytes > image.size() - offset) continue;
      Store(entry + directory::kCrc, Crc32c(std::span(image).subspan(offset, bytes)));
    }
    Store(image.data() + header::kCrc, PrefixCrc(std::span(image).first(PrefixBytes(tiles))));
  }

  template <typename Value>
  [[nodiscard]] Error ParsedWith(size_t offset, Value value) const {
    Bytes changed = image_;
    Store(changed.data() + offset, value);
    FixCrc(changed);
    ImageView view;
    return ParseImage(changed, &view);
  }

  std::mt19937_64 random_ = SeededRandom(7);
  Bytes profile_bytes_;
  Profile profile_;
  ImageSpec spec_;
  Bytes source_;
  Bytes image_;
};

TEST_F(CairnImagePropertyTest, PartsMakeAWhole) {
  std::vector<Bytes> parts;
  for (const Slice part : {Slice{1, 1, 0, 4}, Slice{2, 2, 0, 1}, Slice{2, 2, 1, 3}}) {
    Bytes source;
    for (uint32_t layer = part.layer_first; layer < part.layer_first + part.layer_count; ++layer) {
      for (uint32_t head = part.head_first; head < part.head_first + part.head_count; ++head) {
        const std::byte* first = source_.data() + HeadNumber(layer, head) * HeadBytes();
        source.insert(source.end(), first, first + HeadBytes());
      }
    }
    ImageSpec spec = spec_;
    spec.slice = part;
    parts.push_back(Encoded(spec, source));
  }
  std::vector<ImageView> views;
  for (const Bytes& part : parts) views.push_back(ParseOrFail(part));
  Bytes gathered(image_.size());
  size_t bytes = 0;
  ASSERT_EQ(Gather(views, kWhole, gathered, &bytes), Error::kOk);
  EXPECT_EQ(bytes, image_.size());
  EXPECT_EQ(gathered, image_);

  const Bytes whole = Decoded(image_, kWhole);
  const Bytes one = Decoded(image_, {2, 1, 3, 1});
  const std::byte* first = whole.data() + HeadNumber(2, 3) * HeadBytes();
  EXPECT_TRUE(std::equal(one.begin(), one.end(), first));
  EXPECT_LT(image_.size(), source_.size() / 3 * 2);
}

TEST_F(CairnImagePropertyTest, HeadersSayNothingElse) {
  EXPECT_EQ(ParsedWith<uint8_t>(header::kLevel, 5), Error::kOk);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kLevel, 6), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<int16_t>(header::kMultiplier, -4096), Error::kOk);
  EXPECT_EQ(ParsedWith<int16_t>(header::kMultiplier, 4097), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeBits, 9), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeBits, 161), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kRecipeFlags, 1), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kTables, 1), Error::kBadPadding);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kParamsTail, 1), Error::kBadPadding);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kDomain, 2), Error::kOk);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kDomain, 3), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kSideObjectCount, 0), Error::kBadPadding);
  EXPECT_EQ(ParsedWith<uint8_t>(header::kSideObjectCount, 2), Error::kBadHeader);
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kForm, 2), Error::kBadDirectory);
  EXPECT_EQ(ParsedWith<uint16_t>(PrefixBytes(0) + directory::kRows, 201), Error::kBadDirectory);
}

TEST_F(CairnImagePropertyTest, NothingIsCodedWithoutTheProfile) {
  Bytes target(image_.size() + source_.size());
  size_t bytes = 0;
  const ImageView view = ParseOrFail(image_);
  ImageSpec narrow = spec_;
  narrow.tile.k_dim = 24;
  ProfileShape without = kShape;
  without.rope = RopeKind::kNone;
  without.rotary_dims = 0;
  const Bytes other_bytes = ProfileBytes(without, SeededRandom(1)).bytes();
  Profile other;
  ASSERT_EQ(ParseProfile(other_bytes, &other), Error::kOk);
  for (const Profile* profile : {static_cast<const Profile*>(nullptr), &std::as_const(other)}) {
    EXPECT_EQ(Encode(BestBackend(), spec_, source_, target, &bytes, {.profile = profile}),
              Error::kNoProfile);
    EXPECT_EQ(Decode(BestBackend(), view, kWhole, target, {.profile = profile}), Error::kNoProfile);
  }
  EXPECT_EQ(DemoteSteps(view, other, 1, target, &bytes), Error::kNoProfile);
  EXPECT_FALSE(IsCodableWith(narrow, &profile_));
  ImageSpec moved = spec_;
  moved.recipe.multiplier = 1;
  EXPECT_FALSE(IsCodableWith(moved, &profile_));
  EXPECT_EQ(SetCairn(profile_, kId, 24, 0, &moved), Error::kUnknownRecipe);
  EXPECT_EQ(SetCairn(profile_, kId, 23, 6, &moved), Error::kUnknownRecipe);
  moved = spec_;
  moved.tile = {GroupKind::kState, DType::kBytes, 32, 0};
  EXPECT_EQ(Validate(moved), Error::kInvalidShape);
}

TEST_F(CairnImagePropertyTest, LevelsAreReachedFromBelow) {
  const ImageView view = ParseOrFail(image_);
  for (uint32_t level = 1; level <= kStepLevelMax; ++level) {
    ImageSpec spec = spec_;
    ASSERT_EQ(SetCairn(profile_, kId, 23, level, &spec), Error::kOk);
    Bytes demoted(image_.size());
    size_t bytes = 0;
    ASSERT_EQ(DemoteSteps(view, profile_, level, demoted, &bytes), Error::kOk);
    demoted.resize(bytes);
    EXPECT_EQ(demoted, Encoded(spec, source_)) << level;
    EXPECT_EQ(FormatRecipe(ParseOrFail(demoted).spec().recipe),
              "cairn:2.3*" + std::to_string(PowerOf3(level)));
    Bytes again(image_.size());
    EXPECT_EQ(DemoteSteps(ParseOrFail(demoted), profile_, level, again, &bytes),
              Error::kNotDemotable);
  }
  Bytes target(DemoteBytesMax(view, Recipe{}));
  size_t bytes = 0;
  for (const Recipe& recipe : AllRecipes()) {
    EXPECT_EQ(Demote(BestBackend(), view, recipe, target, &bytes), Error::kNotDemotable);
  }
  ASSERT_EQ(Demote(BestBackend(), view, spec_.recipe, target, &bytes), Error::kOk);
  target.resize(bytes);
  EXPECT_EQ(target, image_);
}

TEST_F(CairnImagePropertyTest, OtherRecipesDoNotBecomeIt) {
  ImageSpec spec = MakeSpec(DType::kBf16, kWhole, 200, 32, 24, RecipeNamed("exact"));
  const Bytes image = EncodeOrFail(BestBackend(), spec, source_);
  const ImageView view = ParseOrFail(image);
  Bytes target(DemoteBytesMax(view, spec_.recipe));
  size_t bytes = 0;
  EXPECT_EQ(Demote(BestBackend(), view, spec_.recipe, target, &bytes), Error::kNotDemotable);
  EXPECT_EQ(DemoteSteps(view, profile_, 1, target, &bytes), Error::kNotDemotable);
}

TEST_F(CairnImagePropertyTest, DamageIsRefusedOrHarmless) {
  uint32_t decoded_count = 0;
  Bytes target(source_.size());
  Bytes demoted(source_.size() + 65536);
  for (uint32_t i = 0; i < 120; ++i) {
    Bytes damaged = image_;
    for (uint32_t n = 0; n <= i % 3; ++n) {
      const size_t limit = i % 4 == 0 ? PrefixBytes(24) : damaged.size();
      std::byte& byte = damaged[random_() % limit];
      byte ^= static_cast<std::byte>(1 << random_() % 8);
    }
    FixCrc(damaged);
    ImageView view;
    if (ParseImage(damaged, &view) != Error::kOk) continue;
    const bool is_verified = VerifyTiles(view) == Error::kOk;
    const Error error =
        Decode(BestBackend(), view, view.spec().slice, target, {.profile = &profile_});
    EXPECT_TRUE(error == Error::kOk || error == Error::kBadTile || error == Error::kNoProfile ||
                error == Error::kTargetTooSmall);
    decoded_count += is_verified && error == Error::kOk ? 1 : 0;
    size_t bytes = 0;
    static_cast<void>(DemoteSteps(view, profile_, 4, demoted, &bytes));
  }
  EXPECT_LT(decoded_count, 100U);
}

}  // namespace
}  // namespace cairn::codecs
