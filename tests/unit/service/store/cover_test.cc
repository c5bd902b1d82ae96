// SPDX-License-Identifier: Apache-2.0
// Which images of a block serve a slice, held against its definition tile by tile.
#include "service/index/cover.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "tests/support/random.h"

namespace cairn {
namespace {

using codecs::Slice;
using Tiles = std::set<std::pair<uint32_t, uint32_t>>;

Tiles TilesOf(const Slice& slice) {
  Tiles tiles;
  for (uint32_t layer = 0; layer < slice.layer_count; ++layer) {
    for (uint32_t head = 0; head < slice.head_count; ++head) {
      tiles.emplace(slice.layer_first + layer, slice.head_first + head);
    }
  }
  return tiles;
}

// Those of a block.
class Images {
 public:
  void Add(const Slice& slice, uint16_t group = 0) { refs_.push_back({group, slice, nullptr}); }
  const std::vector<ImageRef>& refs() const { return refs_; }

  // The images to read, by the definition; empty: the slice is not covered.
  ImagePlaces Expected(uint16_t group, const Slice& slice) const {
    for (const ImageRef& ref : refs_) {
      if (ref.group == group && ref.slice.Contains(slice)) {
        return {PlaceOf(ref)};
      }
    }
    ImagePlaces places;
    Tiles missing = TilesOf(slice);
    for (const ImageRef& ref : refs_) {
      bool is_needed = false;
      for (const auto& tile : ref.group == group ? TilesOf(ref.slice) : Tiles()) {
        is_needed |= missing.erase(tile) > 0;
      }
      if (is_needed) {
        places.push_back(PlaceOf(ref));
      }
      if (missing.empty()) {
        return places;
      }
    }
    return {};
  }

 private:
  uint8_t PlaceOf(const ImageRef& ref) const { return static_cast<uint8_t>(&ref - refs_.data()); }

  std::vector<ImageRef> refs_;
};

void ExpectAsDefined(const Images& images, uint16_t group, const Slice& slice) {
  const ImagePlaces expected = images.Expected(group, slice);
  ImagePlaces found;
  const bool is_covered = FindCover(images.refs(), group, slice, &found);
  ASSERT_EQ(is_covered, !expected.empty());
  ASSERT_EQ(FindCover(images.refs(), group, slice, nullptr), is_covered);
  if (is_covered) {
    ASSERT_EQ(found, expected);
  }
}

TEST(CoverTest, AnySlicesOfAnyOverlap) {
  std::mt19937_64 random = SeededRandom();
  const auto roll = [&](uint64_t sides) { return static_cast<uint16_t>(random() % sides); };
  int covered = 0;
  for (int round = 0; round < 3000; ++round) {
    const uint16_t layers = static_cast<uint16_t>(1 + roll(12));
    const uint16_t heads = static_cast<uint16_t>(1 + roll(12));
    const auto any_slice = [&] {
      Slice slice;
      slice.layer_first = roll(layers);
      slice.layer_count = static_cast<uint16_t>(1 + roll(layers - slice.layer_first));
      slice.head_first = roll(heads);
      slice.head_count = static_cast<uint16_t>(1 + roll(heads - slice.head_first));
      return slice;
    };
    Images images;
    for (uint64_t i = random() % (codecs::kImagesPerBlockMax + 1); i-- > 0;) {
      images.Add(any_slice(), roll(2));
    }
    const Slice slice = any_slice();
    ASSERT_NO_FATAL_FAILURE(ExpectAsDefined(images, 0, slice));
    covered += images.Expected(0, slice).empty() ? 0 : 1;
  }
  EXPECT_GT(covered, 500);
  EXPECT_LT(covered, 2500);
}

// Every edge of every image lies at a place of its own.
TEST(CoverTest, AsManyCellsAsThereCanBe) {
  constexpr uint16_t kImages = codecs::kImagesPerBlockMax;
  Images images;
  const Slice whole = {0, 4 * kImages, 0, 4 * kImages};
  for (uint16_t i = 0; i + 4 < kImages; ++i) {
    const uint16_t first = static_cast<uint16_t>(1 + 2 * i);
    images.Add({first, static_cast<uint16_t>(2 * kImages - i), first, 2 * kImages});
  }
  for (uint16_t part = 0; part < 4; ++part) {
    ASSERT_FALSE(FindCover(images.refs(), 0, whole, nullptr));
    images.Add({static_cast<uint16_t>(part * kImages), kImages, 0, 4 * kImages});
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAsDefined(images, 0, whole));
  EXPECT_TRUE(FindCover(images.refs(), 0, whole, nullptr));
}

TEST(CoverTest, SlicesSideBySide) {
  Images images;
  for (uint16_t layer = 0; layer < 8; ++layer) {
    for (uint16_t head = 0; head < 8; ++head) {
      ASSERT_NO_FATAL_FAILURE(ExpectAsDefined(images, 0, {0, 8, 0, 8}));
      images.Add({layer, 1, head, 1});
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAsDefined(images, 0, {0, 8, 0, 8}));
  ASSERT_NO_FATAL_FAILURE(ExpectAsDefined(images, 0, {2, 3, 1, 6}));
  EXPECT_FALSE(FindCover(images.refs(), 1, {0, 1, 0, 1}, nullptr));
}

}  // namespace
}  // namespace cairn
