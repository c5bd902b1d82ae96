// SPDX-License-Identifier: Apache-2.0
#include "codecs/types/shape.h"

#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

GroupShape Llama() {
  GroupShape shape;
  shape.tile = {GroupKind::kKv, DType::kBf16, 128, 128};
  shape.layers = 32;
  shape.heads = 8;
  shape.rope = {RopeKind::kHalf, 128, 500000.0};
  return shape;
}

TEST(ShapeTest, EveryKindIsExpressible) {
  GroupShape shape = Llama();
  EXPECT_EQ(Validate(shape), Error::kOk);
  shape.window = 512;
  EXPECT_EQ(Validate(shape), Error::kOk);
  shape.tile = {GroupKind::kLatent, DType::kBf16, 576, 0};
  shape.heads = 1;
  shape.rope = {RopeKind::kInterleaved, 64, 10000.0};
  EXPECT_EQ(Validate(shape), Error::kOk);
  shape.rope = {};
  shape.tile = {GroupKind::kState, DType::kBytes, 1 << 20, 0};
  EXPECT_EQ(Validate(shape), Error::kOk);
  EXPECT_EQ(TileBytes(shape.tile, Plane::kState, 128), 1U << 20);
  shape.tile = {GroupKind::kOpaqueRows, DType::kBytes, 656, 0};
  EXPECT_EQ(Validate(shape), Error::kOk);
  EXPECT_EQ(TileBytes(shape.tile, Plane::kOpaqueRows, 128), 656 * 128U);
}

TEST(ShapeTest, LimitsHold) {
  const auto with = [](auto change) {
    GroupShape shape = Llama();
    change(shape);
    return Validate(shape);
  };
  EXPECT_EQ(with([](GroupShape& s) { s.layers = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.heads = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.k_dim = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.v_dim = kDimMax + 1; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tokens_per_block = 15; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tokens_per_block = 1025; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.dtype = DType::kBytes; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.dtype = DType{0}; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.kind = GroupKind{9}; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.kind = GroupKind::kLatent; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.tile.kind = GroupKind::kState; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.rope.rotary_dims = 130; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.rope.rotary_dims = 63; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.rope.base = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.rope.kind = RopeKind::kNone; }), Error::kInvalidShape);
  EXPECT_EQ(with([](GroupShape& s) { s.rope.kind = RopeKind{7}; }), Error::kInvalidShape);
}

TEST(ShapeTest, SlicesContainAndOverlap) {
  const Slice whole = WholeOf(Llama());
  const Slice left{0, 32, 0, 4};
  const Slice right{0, 32, 4, 4};
  EXPECT_TRUE(whole.Contains(left) && whole.Contains(right) && whole.Contains(whole));
  EXPECT_FALSE(left.Contains(whole) || left.Contains(right));
  EXPECT_FALSE(left.Overlaps(right));
  EXPECT_TRUE(left.Overlaps({5, 1, 3, 2}));
  EXPECT_FALSE(left.Overlaps({5, 0, 3, 2}));
  EXPECT_TRUE(Fits(Llama(), right));
  EXPECT_FALSE(Fits(Llama(), {0, 33, 0, 1}));
  EXPECT_FALSE(Fits(Llama(), {0, 1, 8, 1}));
  EXPECT_FALSE(Fits(Llama(), {}));
  // Sums that pass 16 bits do not wrap.
  EXPECT_FALSE(whole.Contains({65535, 2, 0, 1}));
  EXPECT_FALSE(whole.Overlaps({65535, 2, 0, 1}));
}

TEST(ShapeTest, SourceBytesCannotOverflow) {
  uint64_t bytes = 0;
  EXPECT_EQ(SourceBytes(Llama().tile, WholeOf(Llama()), 128, &bytes), Error::kOk);
  EXPECT_EQ(bytes, 128ULL * 1024 * 128);
  const TileShape huge{GroupKind::kOpaqueRows, DType::kBytes, kOpaqueBytesMax, 0};
  EXPECT_EQ(SourceBytes(huge, {0, 65535, 0, 65535}, 1024, &bytes), Error::kTooLarge);
  EXPECT_EQ(SourceBytes(huge, {0, 1, 0, 1}, 1025, &bytes), Error::kInvalidShape);
  EXPECT_EQ(SourceBytes(huge, {0, 1, 0, 0}, 16, &bytes), Error::kInvalidSlice);
  EXPECT_EQ(bytes, 128ULL * 1024 * 128);
}

}  // namespace
}  // namespace cairn::codecs
