// SPDX-License-Identifier: Apache-2.0
// Kernels that encode write the images that the CPU writes, wherever an engine keeps their source.
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

using EncodeTest = EncodeFixture;

TEST_F(EncodeTest, WritesTheTilesOfTheReference) {
  constexpr const char* kRecipes[] = {"kivi:8",         "kivi:4",  "kivi:2",  "fp8",
                                      "kivi:2",         "kivi:2+", "kivi:4+", "logquant:4",
                                      "logquant:2/log", "arkv"};
  const TileShape kShapes[] = {
      {GroupKind::kKv, DType::kBf16, 64, 128},    {GroupKind::kKv, DType::kFp16, 72, 40},
      {GroupKind::kKv, DType::kFp32, 32, 65},     {GroupKind::kKv, DType::kBf16, 5, 3},
      {GroupKind::kKv, DType::kFp8E4m3, 64, 128}, {GroupKind::kKv, DType::kFp8E5m2, 34, 20},
      {GroupKind::kLatent, DType::kBf16, 576, 0},
  };
  uint32_t trial = 0;
  for (const TileShape& shape : kShapes) {
    for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
      constexpr uint16_t kTokens[] = {1, 17, 33, 100, 128, 200};
      const uint16_t tokens = kTokens[random_() % (shape.k_dim > 500 ? 3 : std::size(kTokens))];
      const char* recipe = kRecipes[trial++ % std::size(kRecipes)];
      SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim "
                                      << shape.k_dim << ", content " << content);
      CheckImage(MakeImage(recipe, shape, tokens, static_cast<Content>(content)), AnyWholeShape());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(raw_, 10U);
  EXPECT_GT(coded_, 60U);
  EXPECT_GT(with_rows_, 10U);
}

// Constants, of which some have no code that brings them back, and zeros below zero.
TEST_F(EncodeTest, GroupsWithoutARange) {
  constexpr uint32_t kTokens = 40, kDim = 32, kTile = kTokens * kDim;
  ImageOf image = MakeImage("kivi:4", Kv(DType::kFp32, kDim, kDim), kTokens, Content::kBell);
  const auto set = [&](uint32_t tile, uint32_t token, uint32_t channel, float value) {
    codecs::StoreElement(DType::kFp32, codecs::U8(image.source.data()),
                         tile * kTile + token * kDim + channel, value);
  };
  for (uint32_t i = 0; i < kTokens; ++i) set(0, i, 1, -0.0F);  // K: stays coded
  for (uint32_t i = 0; i < kTokens; ++i) set(2, i, 1, 0.1F);   // raw
  for (uint32_t i = 0; i < kDim; ++i) set(1, 5, i, -0.0F);     // V
  for (uint32_t i = 0; i < kDim; ++i) set(1, 6, i, 0.1F);      // a row
  Reencode(&image);
  CheckImage(image, AnyWholeShape());
  EXPECT_EQ(raw_, 1U);
  EXPECT_EQ(with_rows_, 1U);
}

TEST_F(EncodeTest, OpaqueBytesAreRaw) {
  for (const char* recipe : {"raw", "exact", "kivi:2"}) {
    for (const GroupKind kind : {GroupKind::kState, GroupKind::kOpaqueRows}) {
      CheckImage(MakeImage(recipe, {kind, DType::kBytes, 41, 0}, 40, Content::kBell),
                 AnyWholeShape());
    }
  }
}

// Scores of arkv, and chains of logquant that are longer than their block.
TEST_F(EncodeTest, CodesWithInputs) {
  for (const uint64_t position : {0, 128, 130}) {
    ImageOf image = MakeImage("arkv", Kv(DType::kBf16, 32, 16), 70, Content::kFewRows);
    image.spec.first_position = position;
    std::vector<float> scores(size_t{4} * image.spec.tokens);
    for (float& score : scores) {
      score = random_() % 20 == 0 ? codecs::BitsFloat(0x7F800000)
                                  : static_cast<float>(random_() % 5000) / 16 - 20;
    }
    scores[1] = codecs::BitsFloat(0x7FC00000);
    Reencode(&image, {.token_scores = scores});
    DeviceBytes on_device(std::as_bytes(std::span(scores)), false);
    EncodeJob job;
    job.token_scores = reinterpret_cast<const float*>(on_device.address());
    CheckImage(image, AnyWholeShape(), job);
    for (const char* recipe : {"logquant:2", "logquant:4/log"}) {
      ImageOf aged = MakeImage(recipe, Kv(DType::kBf16, 32, 16), 200, Content::kFewRows);
      aged.spec.first_position = position;
      job = {};
      job.chain_tokens = position + 260;
      Reencode(&aged, {.chain_tokens = job.chain_tokens});
      CheckImage(aged, AnyWholeShape(), job);
    }
  }
}

// Images of different recipes, whose tiles are each kernel's; one of them has a hole.
TEST_F(EncodeTest, BatchesOfImages) {
  constexpr const char* kRecipes[] = {"exact",      "raw", "kivi:2", "fp8",
                                      "exact:fast", "raw", "exact"};
  std::vector<ImageOf> images;
  for (const char* recipe : kRecipes) {
    images.push_back(MakeImage(recipe, Kv(DType::kBf16, 32, 24), 40, Content::kFewRows));
  }
  CheckBatch(images, 5);
}

TEST_F(EncodeTest, RefusesTablesThatAreNone) {
  for (const char* recipe : {"kivi:4", "exact", "raw", "ott:2", "arkv:paper"}) {
    const ImageOf image =
        MakeImage(recipe, {GroupKind::kKv, DType::kBf16, 32, 32}, 64, Content::kBell);
    for (const int32_t page : {-1, 1000}) {
      PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
      cache.Fill(image.source);
      cache.pages()[1] = page;
      EncodeJob job;
      job.spec = &image.spec;
      job.source = cache.view();
      const Encoded encoded = Encode({job});
      ASSERT_EQ(encoded.error, Error::kOk);
      ASSERT_EQ(encoded.fault, "");
      EXPECT_EQ(encoded.status[0], static_cast<uint32_t>(Error::kTargetTooSmall));
    }
  }
}

TEST_F(EncodeTest, PrefixesRefuseWhatNoKernelWrites) {
  const ImageOf image =
      MakeImage("kivi:4", {GroupKind::kKv, DType::kBf16, 32, 32}, 64, Content::kBell);
  const codecs::ImageView view = image.View();
  std::vector<TileResult> written;
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const codecs::TileEntry tile = view.Tile(i);
    written.push_back(
        {static_cast<uint32_t>(tile.offset / 16), tile.bytes, tile.crc, tile.rows, tile.form});
  }
  std::vector<std::byte> room(codecs::PrefixBytes(written.size()));
  uint64_t bytes = 0;
  const auto error_of = [&](auto change) {
    std::vector<TileResult> results = written;
    change(results);
    return WritePrefix(image.spec, results, room, &bytes);
  };
  using Results = std::vector<TileResult>;
  EXPECT_EQ(error_of([](Results&) {}), Error::kOk);
  EXPECT_EQ(bytes, image.bytes.size());
  EXPECT_EQ(error_of([](Results& r) { r.pop_back(); }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r.back().bytes += 16; }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r[1].rows = 65; }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r[2].form = 7; }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { ++r[2].offset; }), Error::kBadDirectory);
  room.pop_back();
  EXPECT_EQ(error_of([](Results&) {}), Error::kTargetTooSmall);
}

TEST_F(EncodeTest, PlansRefuseWhatIsNot) {
  const ImageOf image =
      MakeImage("kivi:4", {GroupKind::kKv, DType::kFp32, 32, 32}, 64, Content::kBell);
  const auto error_of = [&](auto change) {
    PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
    PagedView view = cache.view();
    codecs::ImageSpec spec = image.spec;
    change(spec, view);
    EncodeJob job;
    job.spec = &spec;
    job.source = view;
    return Encode({job}).error;
  };
  using Spec = codecs::ImageSpec;
  using View = PagedView;
  EXPECT_EQ(error_of([](Spec&, View&) {}), Error::kOk);
  EXPECT_EQ(error_of([](Spec& s, View&) { s.tokens = 0; }), Error::kInvalidShape);
  EXPECT_EQ(error_of([](Spec&, View& v) { --v.page_entries; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](Spec&, View& v) { v.k.layer_bytes -= 1; }), Error::kTargetTooSmall);
  // Elements are loaded whole.
  EXPECT_EQ(error_of([](Spec&, View& v) { v.k.token_stride += 2; }), Error::kInvalidShape);
  // Images lie where tiles can.
  PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
  DeviceBytes room(64, true);
  EncodeJob job;
  job.spec = &image.spec;
  job.source = cache.view();
  job.image = room.address() + 8;
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  codecs::ImagePrefix parent = image.View();
  job.image = nullptr;
  EXPECT_EQ(Encode({job}).error, Error::kOk);
  job.token_scores = TwoBytesOn(reinterpret_cast<const float*>(room.address()));
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  std::swap(job.token_scores, job.query_magnitudes);
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
  job.query_magnitudes = nullptr;
  const StoredImage parents[] = {{&parent, room.address() + 4}};
  job.parents = parents;
  EXPECT_EQ(Encode({job}).error, Error::kInvalidShape);
}

}  // namespace
}  // namespace cairn::kernels
