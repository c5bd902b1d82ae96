// SPDX-License-Identifier: Apache-2.0
// Images of all recipes with a profile: parts make a whole, nothing is coded without the profile,
// damage is refused or harmless.

#include <utility>

#include "codecs/transform/demote.h"
#include "tests/property/codecs/profiled_images.h"

namespace cairn::codecs {
namespace {

class ProfiledImageTest : public testing::TestWithParam<const char*>, protected ProfiledImages {
 protected:
  ProfiledImageTest() : ProfiledImages(GetParam()) {}
};

TEST_P(ProfiledImageTest, PartsMakeAWhole) {
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

TEST_P(ProfiledImageTest, NothingIsCodedWithoutTheProfile) {
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
  EXPECT_FALSE(IsCodableWith(narrow, &profile_));
}

TEST_P(ProfiledImageTest, DamageIsRefusedOrHarmless) {
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
  // A code of cairn-hot is as good as any other.
  EXPECT_LT(decoded_count, spec_.recipe.id == RecipeId::kCairn ? 100U : 120U);
}

INSTANTIATE_TEST_SUITE_P(Recipes, ProfiledImageTest, testing::Values("cairn:2.3", "cairn-hot:2.4"),
                         [](const auto& info) { return info.index == 0 ? "cairn" : "cairn_hot"; });

}  // namespace
}  // namespace cairn::codecs
