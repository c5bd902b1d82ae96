// SPDX-License-Identifier: Apache-2.0
// Kernels that encode write the tiles that the CPU writes, wherever an engine keeps their source.
#include "kernels/encode_plan.h"

#include <gtest/gtest.h>

#include <cstring>

#include "codecs/format/image_header.h"
#include "kernels/body/encode_kernels.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::Content;
using codecs::DType;
using codecs::Error;
using codecs::GroupKind;
using codecs::TileShape;

struct EmulatedEncode {
  EncodeArgs args;
  uint32_t tiles;
  emulated::Options options;
  std::string fault{};

  template <auto kKernel>
  void Kernel(uint32_t, uint32_t shared_bytes) {
    if (fault.empty()) fault = LaunchTasks<kKernel>(tiles, shared_bytes, args, options);
  }
};

class EncodeTest : public DecodeFixture {
 protected:
  struct Encoded {
    Error error = Error::kOk;
    std::string fault;
    std::vector<TileResult> results;
    std::vector<std::byte> slots;
  };

  Encoded Encode(const codecs::ImageSpec& spec, const PagedView& source) {
    Encoded encoded;
    DeviceBytes slots(SlotBytes(spec), true);
    std::memset(slots.data(), 0xCD, slots.size());
    const EncodeJob job{&spec, source, slots.data()};
    std::vector<Words4> room(EncodePlanBytesMax() / sizeof(Words4) + 1);
    EncodePlan plan;
    encoded.error = MakeEncodePlan({&job, 1}, std::as_writable_bytes(std::span(room)), &plan);
    if (encoded.error != Error::kOk) return encoded;
    DeviceBytes on_device(std::as_bytes(std::span(room)).first(plan.bytes), false);
    DeviceBytes results(plan.tile_count * sizeof(TileResult), true);
    const EncodeArgs args{reinterpret_cast<const uint8_t*>(on_device.data()),
                          reinterpret_cast<TileResult*>(results.data())};
    EmulatedEncode launch{args, plan.tile_count, {.seed = random_()}};
    ForEachEncodeKernel(launch);
    encoded.fault = launch.fault;
    encoded.results.resize(plan.tile_count);
    std::memcpy(encoded.results.data(), results.data(), results.size());
    encoded.slots.assign(slots.data(), slots.data() + slots.size());
    return encoded;
  }

  // The image that slots make.
  static std::vector<std::byte> Assemble(const codecs::ImageSpec& spec, const Encoded& encoded) {
    std::vector<std::byte> image(codecs::PrefixBytes(encoded.results.size()));
    uint64_t image_bytes = 0;
    EXPECT_EQ(WritePrefix(spec, encoded.results, image, &image_bytes), Error::kOk);
    image.resize(image_bytes);
    codecs::ImagePrefix prefix;
    EXPECT_EQ(codecs::ParseImagePrefix(image, &prefix), Error::kOk);
    for (uint32_t i = 0; i < prefix.tile_count(); ++i) {
      std::memcpy(image.data() + prefix.Tile(i).offset, encoded.slots.data() + SlotOffset(spec, i),
                  prefix.Tile(i).bytes);
    }
    return image;
  }

  void CheckImage(const ImageOf& image, const CacheShape& shape) {
    PagedCache cache(image.spec, image.spec.slice, shape, random_);
    cache.Fill(image.source);
    const Encoded encoded = Encode(image.spec, cache.view());
    ASSERT_EQ(encoded.error, Error::kOk);
    ASSERT_EQ(encoded.fault, "");
    const codecs::ImageView view = image.View();
    ASSERT_EQ(encoded.results.size(), view.tile_count());
    for (uint32_t i = 0; i < view.tile_count(); ++i) {
      const codecs::TileEntry want = view.Tile(i);
      const TileResult& got = encoded.results[i];
      SCOPED_TRACE(testing::Message() << "tile " << i << " of " << want.rows << " rows");
      ASSERT_EQ(got.fault, Fault::kNone);
      ASSERT_EQ(got.form, want.form);
      ASSERT_EQ(got.rows, want.rows);
      ASSERT_EQ(got.bytes, want.bytes);
      const std::byte* slot = encoded.slots.data() + SlotOffset(image.spec, i);
      for (uint32_t at = 0; at < want.bytes; ++at) {
        ASSERT_EQ(slot[at], view.TileContent(i)[at]) << "byte " << at << " of " << want.bytes;
      }
      ASSERT_EQ(got.crc, want.crc);
      (want.form == codecs::kRawForm ? raw_ : coded_) += 1;
      with_rows_ += want.rows != 0 ? 1 : 0;
    }
    EXPECT_EQ(Assemble(image.spec, encoded), image.bytes);
  }

  uint32_t raw_ = 0, coded_ = 0, with_rows_ = 0;
};

TEST_F(EncodeTest, WritesTheTilesOfTheReference) {
  constexpr const char* kRecipes[] = {"kivi:8", "kivi:4", "kivi:2"};
  const TileShape kShapes[] = {
      {GroupKind::kKv, DType::kBf16, 64, 128},    {GroupKind::kKv, DType::kFp16, 72, 40},
      {GroupKind::kKv, DType::kFp32, 32, 65},     {GroupKind::kKv, DType::kBf16, 5, 3},
      {GroupKind::kLatent, DType::kBf16, 576, 0},
  };
  for (const TileShape& shape : kShapes) {
    for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
      constexpr uint16_t kTokens[] = {1, 17, 33, 100, 128, 200};
      const uint16_t tokens = kTokens[random_() % (shape.k_dim > 500 ? 4 : std::size(kTokens))];
      const char* recipe = kRecipes[random_() % std::size(kRecipes)];
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

TEST_F(EncodeTest, RefusesTablesThatAreNone) {
  const ImageOf image =
      MakeImage("kivi:4", {GroupKind::kKv, DType::kBf16, 32, 32}, 64, Content::kBell);
  for (const int32_t page : {-1, 1000}) {
    PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
    cache.Fill(image.source);
    cache.pages()[1] = page;
    const Encoded encoded = Encode(image.spec, cache.view());
    ASSERT_EQ(encoded.error, Error::kOk);
    ASSERT_EQ(encoded.fault, "");
    for (const TileResult& result : encoded.results) {
      EXPECT_EQ(result.fault, Fault::kBadPage);
      EXPECT_EQ(result.bytes, 0U);
    }
  }
}

TEST_F(EncodeTest, PrefixesRefuseWhatNoKernelWrites) {
  const ImageOf image =
      MakeImage("kivi:4", {GroupKind::kKv, DType::kBf16, 32, 32}, 64, Content::kBell);
  PagedCache cache(image.spec, image.spec.slice, CacheShape{}, random_);
  cache.Fill(image.source);
  const Encoded encoded = Encode(image.spec, cache.view());
  std::vector<std::byte> room(codecs::PrefixBytes(encoded.results.size()));
  uint64_t bytes = 0;
  const auto error_of = [&](auto change) {
    std::vector<TileResult> results = encoded.results;
    change(results);
    return WritePrefix(image.spec, results, room, &bytes);
  };
  using Results = std::vector<TileResult>;
  EXPECT_EQ(error_of([](Results&) {}), Error::kOk);
  EXPECT_EQ(error_of([](Results& r) { r.pop_back(); }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r[1].bytes += 16; }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r[1].rows = 65; }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r[2].form = 7; }), Error::kBadDirectory);
  EXPECT_EQ(error_of([](Results& r) { r[3].fault = Fault::kBadPage; }), Error::kTargetTooSmall);
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
    return Encode(spec, view).error;
  };
  using Spec = codecs::ImageSpec;
  using View = PagedView;
  EXPECT_EQ(error_of([](Spec&, View&) {}), Error::kOk);
  EXPECT_EQ(error_of([](Spec& s, View&) { s.tokens = 0; }), Error::kInvalidShape);
  for (const char* recipe : {"raw", "kivi:2+", "exact", "ott:2", "fp8"}) {
    EXPECT_EQ(error_of([&](Spec& s, View&) {
                EXPECT_EQ(codecs::ParseRecipe(recipe, &s.recipe), Error::kOk);
              }),
              Error::kUnknownRecipe);
  }
  EXPECT_EQ(error_of([](Spec&, View& v) { --v.page_entries; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](Spec&, View& v) { v.k.layer_bytes -= 1; }), Error::kTargetTooSmall);
  // Elements are loaded whole.
  EXPECT_EQ(error_of([](Spec&, View& v) { v.k.token_stride += 2; }), Error::kInvalidShape);
}

}  // namespace
}  // namespace cairn::kernels
