// SPDX-License-Identifier: Apache-2.0
// Which tile codes what: in units of one layer, head and plane, as every image has today, and in
// wider ones, as the format has room for.
#include "codecs/format/tiling.h"

#include <vector>

#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

constexpr Slice kSlice{4, 4, 8, 6};

bool Has(const TileArea& area, const TileId& id) {
  const Slice one{id.layer, 1, id.head, 1};
  return area.slice.Contains(one) && id.plane >= area.plane_first &&
         id.plane < area.plane_first + area.plane_count;
}

// Calls visit(id) for every layer, head and plane of a slice of K and V, in order.
template <typename Visit>
void ForEachId(const Slice& slice, Visit visit) {
  for (uint32_t layer = slice.layer_first; layer < slice.layer_first + slice.layer_count; ++layer) {
    for (uint32_t head = slice.head_first; head < slice.head_first + slice.head_count; ++head) {
      for (uint8_t plane = 0; plane < 2; ++plane) {
        visit(TileId{static_cast<uint16_t>(layer), static_cast<uint16_t>(head), plane});
      }
    }
  }
}

std::vector<uint32_t> Covering(const Tiling& tiling, const Slice& part) {
  std::vector<uint32_t> tiles;
  EXPECT_EQ(tiling.ForEach(part,
                           [&](uint32_t index) {
                             tiles.push_back(index);
                             return Error::kOk;
                           }),
            Error::kOk);
  return tiles;
}

class TilingTest : public testing::TestWithParam<CodingUnit> {
 protected:
  Tiling tiling_{GroupKind::kKv, kSlice, GetParam()};
};

TEST_P(TilingTest, EveryTensorIsInOneTile) {
  uint32_t found = 0;
  ForEachId(kSlice, [&](const TileId& id) {
    const uint32_t index = tiling_.IndexOf(id);
    ASSERT_LT(index, tiling_.count());
    EXPECT_TRUE(Has(tiling_.AreaOf(index), id));
    ++found;
  });
  uint32_t coded = 0;
  for (uint32_t i = 0; i < tiling_.count(); ++i) {
    const TileArea area = tiling_.AreaOf(i);
    EXPECT_TRUE(kSlice.Contains(area.slice)) << "no unit crosses the slice";
    coded += uint32_t{area.slice.layer_count} * area.slice.head_count * area.plane_count;
  }
  EXPECT_EQ(coded, found);
}

TEST_P(TilingTest, PartsAreCoveredByTheTilesThatHaveSomeOfThem) {
  for (const Slice& part : {kSlice, Slice{5, 1, 9, 1}, Slice{6, 2, 8, 6}, Slice{4, 3, 10, 3}}) {
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < tiling_.count(); ++i) {
      if (tiling_.AreaOf(i).slice.Overlaps(part)) wanted.push_back(i);
    }
    EXPECT_EQ(Covering(tiling_, part), wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Units, TilingTest,
                         testing::Values(CodingUnit{1, 1, 1}, CodingUnit{1, 1, 2},
                                         CodingUnit{2, 1, 1}, CodingUnit{1, 3, 1},
                                         CodingUnit{2, 2, 2}, CodingUnit{4, 6, 2}));

TEST(TilingOfImagesTest, TilesOfOneTensorAreInTheOrderOfThePayload) {
  const Tiling tiling(GroupKind::kKv, kSlice, {});
  uint32_t index = 0;
  ForEachId(kSlice, [&](const TileId& id) { EXPECT_EQ(tiling.IndexOf(id), index++); });
  EXPECT_EQ(tiling.count(), index);
  EXPECT_EQ(Tiling(GroupKind::kLatent, {0, 61, 0, 1}, {}).count(), 61U);
}

TEST(TilingOfImagesTest, AVisitThatFailsIsTheLast) {
  const Tiling tiling(GroupKind::kKv, kSlice, {});
  uint32_t calls = 0;
  EXPECT_EQ(
      tiling.ForEach(kSlice, [&](uint32_t) { return ++calls == 3 ? Error::kBadTile : Error::kOk; }),
      Error::kBadTile);
  EXPECT_EQ(calls, 3U);
}

}  // namespace
}  // namespace cairn::codecs
