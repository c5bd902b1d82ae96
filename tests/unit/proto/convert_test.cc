// SPDX-License-Identifier: Apache-2.0
#include "proto/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cairn::proto {
namespace {

using testing::HasSubstr;

v1::SpaceSpec Spec() {
  v1::SpaceSpec spec;
  spec.set_tenant("default");
  spec.set_model("model");
  spec.set_weights_revision("revision");
  spec.set_dtype(v1::DTYPE_FP16);
  spec.set_tokens_per_block(64);
  v1::GroupSpec& kv = *spec.add_groups();
  kv.set_kind(v1::GroupSpec::KIND_KV);
  for (uint32_t layer : {1, 3, 5}) {
    kv.add_layers(layer);
  }
  kv.set_kv_heads(8);
  kv.set_k_dim(128);
  kv.set_v_dim(64);
  kv.set_window_tokens(4096);
  kv.mutable_rope()->set_kind(v1::RopeSpec::KIND_INTERLEAVED);
  kv.mutable_rope()->set_rotary_dims(4);
  kv.mutable_rope()->set_base(10000);
  kv.mutable_rope()->add_inverse_frequencies(1);
  kv.mutable_rope()->add_inverse_frequencies(0.01);
  v1::GroupSpec& state = *spec.add_groups();
  state.set_kind(v1::GroupSpec::KIND_STATE);
  state.add_layers(2);
  state.set_state_bytes(1000);
  v1::GroupSpec& rows = *spec.add_groups();
  rows.set_kind(v1::GroupSpec::KIND_OPAQUE_ROWS);
  rows.add_layers(1);
  rows.set_row_bytes(132);
  return spec;
}

TEST(Spec, GoesBothWaysUnchanged) {
  const auto identity = FromSpec(Spec());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(ToSpec(*identity).SerializeAsString().size(), ToSpec(*identity).ByteSizeLong());
  const auto again = FromSpec(ToSpec(*identity));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(FingerprintOf(*again), FingerprintOf(*identity));
}

TEST(Spec, GroupsBecomeShapes) {
  const auto identity = FromSpec(Spec());
  ASSERT_TRUE(identity.ok());
  const std::vector<codecs::GroupShape> shapes = ShapesOf(*identity);
  ASSERT_EQ(shapes.size(), 3u);
  EXPECT_EQ(shapes[0].tile.kind, codecs::GroupKind::kKv);
  EXPECT_EQ(shapes[0].tile.dtype, codecs::DType::kFp16);
  EXPECT_EQ(shapes[0].tile.k_dim, 128u);
  EXPECT_EQ(shapes[0].tile.v_dim, 64u);
  EXPECT_EQ(shapes[0].layers, 3);
  EXPECT_EQ(shapes[0].heads, 8);
  EXPECT_EQ(shapes[0].tokens_per_block, 64);
  EXPECT_EQ(shapes[0].window, 4096u);
  EXPECT_EQ(shapes[0].rope.kind, codecs::RopeKind::kInterleaved);
  EXPECT_EQ(shapes[1].tile.dtype, codecs::DType::kBytes);
  EXPECT_EQ(shapes[1].tile.k_dim, 1000u);
  EXPECT_EQ(shapes[1].heads, 1);
  EXPECT_EQ(shapes[2].tile.kind, codecs::GroupKind::kOpaqueRows);
  EXPECT_EQ(shapes[2].tile.k_dim, 132u);
}

TEST(Spec, UnknownNumbersAreRefused) {
  v1::SpaceSpec spec = Spec();
  spec.set_dtype(static_cast<v1::DType>(9));
  EXPECT_THAT(std::string(FromSpec(spec).status().message()), HasSubstr("dtype"));
  // 258 is 2 in a byte: an unknown number must not become a known kind.
  for (const int number : {0, 5, 258, -1}) {
    spec = Spec();
    spec.mutable_groups(0)->set_kind(static_cast<v1::GroupSpec::Kind>(number));
    EXPECT_EQ(FromSpec(spec).status().code(), absl::StatusCode::kInvalidArgument) << number;
  }
  for (const int number : {3, 257, -1}) {
    spec = Spec();
    spec.mutable_groups(0)->mutable_rope()->set_kind(static_cast<v1::RopeSpec::Kind>(number));
    EXPECT_EQ(FromSpec(spec).status().code(), absl::StatusCode::kInvalidArgument) << number;
  }
  EXPECT_FALSE(FromSpec(v1::SpaceSpec()).ok());
}

TEST(Slices, CountsOfZeroMeanTheRest) {
  const auto shapes = ShapesOf(*FromSpec(Spec()));
  v1::GroupSlice slice;
  EXPECT_EQ(*FromSlice(slice, shapes), (codecs::Slice{0, 3, 0, 8}));
  slice.set_layer_first(1);
  slice.set_head_first(7);
  EXPECT_EQ(*FromSlice(slice, shapes), (codecs::Slice{1, 2, 7, 1}));
  slice.set_head_first(4);
  slice.set_head_count(4);
  EXPECT_EQ(*FromSlice(slice, shapes), (codecs::Slice{1, 2, 4, 4}));
  EXPECT_EQ(ToSlice(0, *FromSlice(slice, shapes)).head_count(), 4u);
}

TEST(Slices, WhatLiesOutsideItsGroupIsRefused) {
  const auto shapes = ShapesOf(*FromSpec(Spec()));
  const auto error = [&](uint32_t group, uint32_t layer_first, uint32_t layer_count,
                         uint32_t head_first, uint32_t head_count) {
    v1::GroupSlice slice;
    slice.set_group(group);
    slice.set_layer_first(layer_first);
    slice.set_layer_count(layer_count);
    slice.set_head_first(head_first);
    slice.set_head_count(head_count);
    const auto found = FromSlice(slice, shapes);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(found.status().message());
  };
  EXPECT_THAT(error(3, 0, 0, 0, 0), HasSubstr("slice.group is 3, expected less than 3"));
  EXPECT_THAT(error(0, 3, 0, 0, 0), HasSubstr("slice.layer_first"));
  EXPECT_THAT(error(0, 1, 3, 0, 0), HasSubstr("slice.layer_count is 3, expected at most 2"));
  EXPECT_THAT(error(0, 0, 0, 8, 0), HasSubstr("slice.head_first"));
  EXPECT_THAT(error(0, 0, 0, 7, UINT32_MAX), HasSubstr("slice.head_count"));
  EXPECT_THAT(error(0, UINT32_MAX, 1, 0, 0), HasSubstr("slice.layer_first"));
  EXPECT_FALSE(FromRange(0, {2, 2, 0, 1}, shapes).ok());
  EXPECT_EQ(*FromRange(0, {2, 1, 0, 8}, shapes), (codecs::Slice{2, 1, 0, 8}));
}

TEST(Recipes, AreKnownByName) {
  codecs::Recipe fallback;
  EXPECT_EQ(*FromRecipeName("", fallback), fallback);
  for (const codecs::Recipe& recipe : codecs::AllRecipes()) {
    EXPECT_EQ(*FromRecipeName(ToRecipeName(recipe), fallback), recipe);
  }
  EXPECT_THAT(std::string(FromRecipeName("kivi:3", fallback).status().message()),
              HasSubstr("kivi:8"));
}

TEST(Bytes, HaveTheirExactNumber) {
  EXPECT_TRUE(FromKeyBytes(std::string(32, 'k'), "key").ok());
  EXPECT_EQ(ToBytes(*FromKeyBytes(std::string(32, 'k'), "key")), std::string(32, 'k'));
  EXPECT_THAT(std::string(FromKeyBytes(std::string(31, 'k'), "after_key").status().message()),
              HasSubstr("after_key bytes is 31, expected 32"));
  EXPECT_FALSE(FromTicketBytes("").ok());
  EXPECT_TRUE(FromTicketBytes(std::string(16, 't')).ok());
  EXPECT_FALSE(FromLeaseBytes(std::string(17, 't')).ok());

  google::protobuf::RepeatedPtrField<std::string> keys;
  *keys.Add() = std::string(32, 'a');
  *keys.Add() = std::string(30, 'a');
  EXPECT_THAT(std::string(FromKeyList(keys).status().message()), HasSubstr("keys[1]"));
  keys.RemoveLast();
  EXPECT_EQ(FromKeyList(keys)->size(), 1u);
  for (int i = 0; i < kMatchKeysMax; ++i) {
    *keys.Add() = std::string(32, 'a');
  }
  EXPECT_THAT(std::string(FromKeyList(keys).status().message()), HasSubstr("at most 65536"));
}

TEST(Names, AreBounded) {
  EXPECT_TRUE(ValidateClientName("").ok());
  EXPECT_TRUE(ValidateClientName("decode worker 3").ok());
  EXPECT_FALSE(ValidateClientName(std::string(129, 'a')).ok());
  EXPECT_FALSE(ValidateClientName("a\nINFO forged line").ok());
}

}  // namespace
}  // namespace cairn::proto
