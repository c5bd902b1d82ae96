// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests of recipes with a profile share: a profile, a source and its image.

#include <string_view>

#include "codecs/backend/reference/step.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/static_step.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {

inline constexpr Slice kWhole{1, 3, 0, 4};
inline constexpr ProfileShape kShape = {
    .layers = 4, .heads = 4, .k_dim = 32, .v_dim = 24, .rope = RopeKind::kHalf, .rotary_dims = 32};
inline constexpr Digest kId = {1, 2, 3};

// A source that the profile fits, and its image of a recipe with that profile.
class ProfiledImages {
 protected:
  explicit ProfiledImages(std::string_view recipe)
      : profile_bytes_(ProfileBytes(kShape, SeededRandom()).bytes()) {
    EXPECT_EQ(ParseProfile(profile_bytes_, &profile_), Error::kOk);
    spec_ = MakeSpec(DType::kBf16, kWhole, 200, 32, 24, Recipe{});
    EXPECT_EQ(SetRecipe(recipe, {.profile = &profile_}, kId, &spec_), Error::kOk);
    source_.resize(SourceBytesOf(spec_));
    Fill();
    image_ = Encoded(spec_, source_);
  }

  // As the profile expects it, with some of it far out.
  void Fill() {
    std::normal_distribution<float> bell;
    uint64_t index = 0;
    for (uint32_t tile = 0; tile < TilingOf(spec_).count(); ++tile) {
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
    return EncodeOrFail(BestBackend(), spec, source, {.profile = &profile_});
  }

  Bytes Decoded(const Bytes& image, const Slice& slice) const {
    return DecodeOrFail(BestBackend(), ParseOrFail(image), slice, {.profile = &profile_});
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
    FixPrefixCrc(image, tiles);
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

}  // namespace cairn::codecs
