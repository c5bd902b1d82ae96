// SPDX-License-Identifier: Apache-2.0
// Kernels that decode give what the CPU gives, wherever an engine keeps it.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/forms/form.h"
#include "codecs/pack/exponent_tables.h"
#include "codecs/pack/strip.h"
#include "codecs/types/bytes.h"
#include "kernels/body/affine_decode.h"
#include "kernels/body/fp8_decode.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::Content;
using codecs::DType;
using codecs::Error;
using codecs::GroupKind;
using codecs::TileShape;

constexpr uint16_t kTokens[] = {1,  7,   16,  31,  32,  33,  63,  64,
                                97, 100, 127, 128, 129, 200, 256, 500};

using DecodeTest = DecodeFixture;

// The recipes that these tests go through write every form that there is.
TEST_F(DecodeTest, LeavesOutNoForm) {
  std::set<codecs::FormId> written = {codecs::FormId::kRaw};
  for (const char* name : kRecipes) {
    const ImageOf image = MakeImage(name, Kv(DType::kBf16, 128, 128), 64, AnyContent());
    const codecs::TileGeometry tile = codecs::GeometryOf(image.spec, 0);
    written.insert(codecs::FormIdOf(codecs::CodedForm(tile, image.spec.recipe)));
  }
  for (uint16_t id = 0; id < 256; ++id) {
    EXPECT_EQ(written.contains(codecs::FormIdOf(id)), codecs::FormOf(id) != nullptr) << id;
  }
}

TEST_F(DecodeTest, EveryTailOfEveryRecipe) {
  uint32_t number = 0;  // of the recipe: those beside it have the other dtype
  for (const char* recipe : kRecipes) {
    uint32_t trial = number++;
    for (const uint16_t tokens : kTokens) {
      const DType dtype = trial++ % 2 == 0 ? DType::kBf16 : DType::kFp16;
      SCOPED_TRACE(testing::Message()
                   << recipe << " of " << tokens << " tokens, dtype " << static_cast<int>(dtype));
      const ImageOf image = MakeImage(recipe, Kv(dtype, 64, 128), tokens, AnyContent());
      Check(image, AnyShape());
      if (HasFailure()) return;
    }
  }
}

TEST_F(DecodeTest, EveryContentOfEveryShape) {
  struct Shape {
    TileShape tile;
    size_t misalignment;
  };
  const Shape kShapes[] = {
      {Kv(DType::kBf16, 128, 128), 0},
      {Kv(DType::kFp16, 256, 64), 0},
      {Kv(DType::kFp32, 64, 96), 0},
      {Kv(DType::kBf16, 80, 80), 0},
      {Kv(DType::kBf16, 100, 33), 0},
      {Kv(DType::kFp16, 5, 1), 2},
      {Kv(DType::kBf16, 128, 64), 2},
      {Kv(DType::kFp32, 32, 32), 4},
      {{GroupKind::kLatent, DType::kBf16, 576, 0}, 0},
      {{GroupKind::kLatent, DType::kFp16, 2056, 0}, 0},
  };
  for (const Shape& shape : kShapes) {
    for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
      const char* recipe = kRecipes[random_() % std::size(kRecipes)];
      if (shape.tile.k_dim > codecs::kBankDimMax) recipe = "kivi:2";
      // Whose bits do not come to bytes so narrow.
      if (shape.tile.k_dim < 8 && std::string_view(recipe).starts_with("cairn-hot")) recipe = "fp8";
      const auto tokens = static_cast<uint16_t>(1 + random_() % 160);
      SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim "
                                      << shape.tile.k_dim << ", content " << content);
      const ImageOf image = MakeImage(recipe, shape.tile, tokens, static_cast<Content>(content));
      CacheShape cache = AnyShape();
      cache.misalignment = shape.misalignment;
      Check(image, cache);
      if (HasFailure()) return;
    }
  }
}

// 8-bit floats, whose elements are at any address. What cannot be decoded is refused.
TEST_F(DecodeTest, EightBitFloats) {
  const TileShape kShapes[] = {Kv(DType::kFp8E4m3, 80, 64), Kv(DType::kFp8E5m2, 34, 16)};
  for (const TileShape& shape : kShapes) {
    for (const char* recipe : kRecipes) {
      SCOPED_TRACE(testing::Message() << recipe << ", dim " << shape.k_dim);
      const auto tokens = static_cast<uint16_t>(1 + random_() % 160);
      const ImageOf image = MakeImage(recipe, shape, tokens, AnyContent());
      CacheShape cache = AnyShape();
      cache.misalignment = random_() % 2;
      const std::string_view name = recipe;
      if (name.starts_with("cairn:")) {
        PagedCache target(image.spec, image.spec.slice, cache, random_);
        const PagedView view = target.view();
        const Decoded decoded = Run({&image, 1}, {&image.spec.slice, 1}, {&view, 1});
        EXPECT_EQ(decoded.error, codecs::Error::kUnknownRecipe);
        continue;
      }
      Check(image, cache);
      if (HasFailure()) return;
    }
  }
}

// Channels of all classes, in tiles of more than one task.
TEST_F(DecodeTest, ClassesOfLongTiles) {
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    SCOPED_TRACE(testing::Message() << "content " << content);
    const ImageOf image =
        MakeImage("mixkvq:paper", Kv(DType::kBf16, 64, 32), 200, static_cast<Content>(content));
    Check(image, AnyShape());
    if (HasFailure()) return;
  }
}

// Strips with many escapes, in all lengths around a warp's, and streams of several granules.
TEST_F(DecodeTest, StripsOfEveryLength) {
  uint32_t trial = 0;
  for (const uint32_t dim : {32U, 64U, 128U, 256U}) {
    for (const uint16_t tokens : {1, 9, 31, 33, 64, 65, 96, 97, 127, 128, 130, 257}) {
      const auto content = random_() % 2 == 0 ? Content::kTails : AnyContent();
      const DType dtype = (trial++ + dim / 64) % 2 == 0 ? DType::kBf16 : DType::kFp16;
      SCOPED_TRACE(testing::Message() << tokens << " tokens, dim " << dim << ", content "
                                      << static_cast<int>(content));
      Check(MakeImage("exact", Kv(dtype, dim, 32), tokens, content), AnyShape());
      if (HasFailure()) return;
    }
  }
}

// Strips whose elements do not come to whole 32, of either mode.
TEST_F(DecodeTest, StripsOfOddDims) {
  uint32_t trial = 0;
  for (const char* recipe : {"exact", "exact:fast"}) {
    for (const uint32_t dim : {5U, 33U, 100U}) {
      for (const uint16_t tokens : {1, 3, 7, 50}) {
        constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3,
                                     DType::kFp8E5m2};
        const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
        SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim " << dim
                                        << ", dtype " << static_cast<int>(dtype));
        Check(MakeImage(recipe, Kv(dtype, dim, dim), tokens, Content::kTails), AnyShape());
        if (HasFailure()) return;
      }
    }
  }
}

// A strip whose last group's lanes without a token have escapes, too: no encoder writes them so,
// and they stand for nothing.
std::vector<std::byte> OddStrip(uint32_t tokens, uint32_t dim, std::mt19937_64& random) {
  constexpr uint32_t kTable = 13, kTop = 40;
  const codecs::CoderTable& table = codecs::kExponentCoderTables.of[kTable];
  std::vector<uint32_t> symbols(size_t{codecs::CoderGroups(tokens)} * codecs::kCoderLanes * dim);
  std::vector<uint8_t> escapes;
  for (uint32_t i = 0; i < symbols.size(); ++i) {  // channel after channel
    const bool is_there = i % (symbols.size() / dim) < tokens;
    symbols[i] = random() % 24 == 0 ? codecs::kEscapeSymbol : 2 + random() % (is_there ? 4 : 2);
    if (is_there && symbols[i] == codecs::kEscapeSymbol) {
      escapes.push_back(static_cast<uint8_t>(random()));
    }
  }
  std::vector<uint8_t> room(codecs::StreamBytesMax(tokens, dim));
  const uint8_t* stream = codecs::EncodeStream(
      tokens, dim, [&](uint32_t) -> const codecs::CoderTable& { return table; },
      [&](uint32_t channel, uint32_t token) {
        return symbols[channel * (symbols.size() / dim) + token];
      },
      room.data(), room.data() + room.size());
  codecs::StripParts parts{};
  parts.mode = codecs::StripMode::kLanes32;
  parts.top = kTop;
  parts.stream_bytes = static_cast<uint32_t>(room.data() + room.size() - stream);
  parts.escapes = static_cast<uint32_t>(escapes.size());
  codecs::PlaceParts({tokens, dim, DType::kBf16, false}, &parts);
  std::vector<std::byte> strip(parts.bytes);
  uint8_t* bytes = codecs::U8(strip.data());
  codecs::StoreStripHeader(parts, bytes);
  for (uint32_t c = 0; c < dim; ++c) {
    bytes[codecs::strip::kPar + c] = static_cast<uint8_t>(kTable << 4 | c % 5);
  }
  std::memcpy(bytes + parts.coded, stream, parts.stream_bytes);
  std::memcpy(bytes + parts.escape, escapes.data(), escapes.size());
  for (uint64_t at = parts.plane; at < parts.end; ++at) bytes[at] = static_cast<uint8_t>(random());
  return strip;
}

TEST_F(DecodeTest, StripsThatNoEncoderWrites) {
  for (const uint16_t tokens : {33, 40, 70, 100, 127}) {
    for (const size_t misalignment : {size_t{0}, size_t{2}}) {  // of either kernel
      ImageOf image;
      image.spec.tile = Kv(DType::kBf16, 64, 32);
      image.spec.tokens = tokens;
      image.spec.slice = {0, 1, 0, 1};
      ASSERT_EQ(codecs::ParseRecipe("exact", &image.spec.recipe), Error::kOk);
      uint64_t bytes_max = 0;
      ASSERT_EQ(codecs::MaxImageBytes(image.spec, &bytes_max), Error::kOk);
      image.bytes.resize(bytes_max);
      codecs::ImageWriter writer(image.spec, image.bytes);
      for (const uint32_t dim : {64U, 32U}) {
        const std::vector<std::byte> strip = OddStrip(tokens, dim, random_);
        const codecs::TileEntry entry{0, static_cast<uint32_t>(strip.size()), codecs::Crc32c(strip),
                                      0, codecs::kStripsForm};
        ASSERT_EQ(writer.Copy(entry, strip), Error::kOk);
      }
      image.bytes.resize(writer.Finish());
      CacheShape cache;
      cache.misalignment = misalignment;
      Check(image, cache);
    }
  }
}

TEST_F(DecodeTest, OpaqueBytes) {
  for (const GroupKind kind : {GroupKind::kState, GroupKind::kOpaqueRows}) {
    for (const uint32_t bytes : {1U, 40U, 700U, 5000U}) {
      const ImageOf image = MakeImage("raw", {kind, DType::kBytes, bytes, 0}, 40, Content::kBell);
      Check(image, AnyShape());
    }
  }
}

TEST_F(DecodeTest, BatchesOfManyImages) {
  std::vector<ImageOf> images;
  std::vector<codecs::Slice> slices;
  for (uint32_t i = 0; i < kPlanImagesMax; ++i) {
    const char* recipe = kRecipes[i % 9];
    images.push_back(MakeImage(recipe, Kv(DType::kBf16, 64, 64), 17 + i % 20, Content::kFewRows));
    // Some of them in part.
    slices.push_back(i % 2 == 0 ? images.back().spec.slice : codecs::Slice{4, 1, 2, 1});
  }
  CheckBatch(images, slices);
}

// Of tiles of all sizes, from 16 bytes to many slices.
TEST_F(DecodeTest, VerifiesCrcs) {
  uint32_t tiles = 0;
  for (const uint32_t dim : {1U, 8U, 40U, 64U, 100U, 128U, 200U, 256U}) {
    for (const uint16_t tokens : {1, 5, 16, 33, 100, 128}) {
      const char* recipe = dim % 3 == 0 ? "exact" : tokens % 2 == 0 ? "raw" : "kivi:8";
      ImageOf image = MakeImage(recipe, Kv(DType::kBf16, dim, dim), tokens, Content::kBell);
      const codecs::Slice slice = image.spec.slice;
      for (const bool is_damaged : {false, true}) {
        const codecs::ImageView view = image.View();
        const codecs::TileEntry tile = view.Tile(random_() % view.tile_count());
        const uint64_t at = tile.offset + random_() % tile.bytes;
        if (is_damaged) image.bytes[at] ^= static_cast<std::byte>(1U << random_() % 8);
        PagedCache cache(image.spec, slice, AnyShape(), random_);
        const PagedView target = cache.view();
        const Decoded decoded = Run({&image, 1}, {&slice, 1}, {&target, 1}, Verify::kYes);
        ASSERT_EQ(decoded.error, Error::kOk);
        ASSERT_EQ(decoded.fault, "");
        const uint32_t status = decoded.status[0];
        if (is_damaged) {
          // What codes say may be wrong besides.
          ASSERT_TRUE(status == static_cast<uint32_t>(Error::kBadChecksum) ||
                      (status == static_cast<uint32_t>(Error::kBadTile) && tile.form != 0))
              << status;
        } else {
          ASSERT_EQ(status, 0U) << tile.bytes;
        }
        tiles += view.tile_count();
      }
    }
  }
  EXPECT_GT(tiles, 500U);
}

TEST_F(DecodeTest, TilesOfNoBytes) {
  has_silent_v_ = true;
  uint32_t empty = 0;
  for (uint32_t round = 0; round < 4; ++round) {
    const ImageOf image = MakeImage("cairn-hot:2.4", Kv(DType::kBf16, 32, 32), 40, Content::kBell);
    const codecs::Slice slice = image.spec.slice;
    PagedCache cache(image.spec, slice, AnyShape(), random_);
    const PagedView target = cache.view();
    const Decoded decoded = Run({&image, 1}, {&slice, 1}, {&target, 1}, Verify::kYes);
    ASSERT_EQ(decoded.fault, "");
    EXPECT_EQ(decoded.status[0], 0U);
    EXPECT_EQ(cache.Compare(Payload(image, slice)), "");
    for (uint32_t i = 0; i < image.View().tile_count(); ++i) {
      empty += image.View().Tile(i).bytes == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(empty, 0U);
}

TEST_F(DecodeTest, RefusesPagesThatAreNone) {
  for (const char* recipe : {"raw", "kivi:2", "kivi:8"}) {
    for (const DType dtype : {DType::kBf16, DType::kFp32}) {
      std::vector<ImageOf> images;
      std::vector<codecs::Slice> slices;
      std::vector<PagedView> views;
      std::vector<std::unique_ptr<PagedCache>> caches;
      for (uint32_t i = 0; i < 3; ++i) {
        images.push_back(MakeImage(recipe, Kv(dtype, 64, 64), 64, Content::kBell));
        slices.push_back(images.back().spec.slice);
        caches.push_back(
            std::make_unique<PagedCache>(images.back().spec, slices[i], CacheShape{}, random_));
        views.push_back(caches.back()->view());
      }
      caches[1]->pages()[2] = static_cast<int32_t>(views[1].page_count);
      const Decoded decoded = Run(images, slices, views);
      ASSERT_EQ(decoded.error, Error::kOk);
      ASSERT_EQ(decoded.fault, "");
      EXPECT_EQ(decoded.status[1], static_cast<uint32_t>(Error::kTargetTooSmall));
      for (const uint32_t i : {0U, 2U}) {
        EXPECT_EQ(decoded.status[i], 0U);
        EXPECT_EQ(caches[i]->Compare(Payload(images[i], slices[i])), "");
      }
    }
  }
}

TEST_F(DecodeTest, PlansRefuseWhatIsNot) {
  const ImageOf image = MakeImage("kivi:2", Kv(DType::kBf16, 64, 64), 100, Content::kBell);
  const codecs::Slice slice = image.spec.slice;
  PagedCache cache(image.spec, slice, CacheShape{}, random_);
  const auto error_of = [&](auto change) {
    PagedView view = cache.view();
    codecs::Slice part = slice;
    change(view, part);
    return Run({&image, 1}, {&part, 1}, {&view, 1}).error;
  };
  using View = PagedView;
  using Part = codecs::Slice;
  EXPECT_EQ(error_of([](View&, Part&) {}), Error::kOk);
  EXPECT_EQ(error_of([](View&, Part& p) { p.layer_first = 2; }), Error::kInvalidSlice);
  EXPECT_EQ(error_of([](View&, Part& p) { p.layer_count = 1; }), Error::kInvalidShape);
  EXPECT_EQ(error_of([](View& v, Part&) { v.page_tokens = 0; }), Error::kInvalidShape);
  EXPECT_EQ(error_of([](View& v, Part&) { ++v.k.token_stride; }), Error::kInvalidShape);
  EXPECT_EQ(error_of([](View& v, Part&) { v.page_count = 0; }), Error::kInvalidShape);
  EXPECT_EQ(error_of([](View& v, Part&) { v.pages = TwoBytesOn(v.pages); }), Error::kInvalidShape);
  EXPECT_EQ(error_of([](View& v, Part&) { --v.page_entries; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](View& v, Part&) { ++v.page_count; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](View& v, Part&) { v.first_slot = 13; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](View& v, Part&) { v.first_slot = 0xFFFFFFFF; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](View& v, Part&) { --v.v.layer_bytes; }), Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](View& v, Part&) { v.k.token_stride = ~0ULL / 4 - 15; }),
            Error::kTargetTooSmall);
  EXPECT_EQ(error_of([](View& v, Part&) { v.v.layers = v.v.layers.first(1); }),
            Error::kInvalidShape);
}

TEST_F(DecodeTest, PlansRefuseSideObjectsThatAreNone) {
  ImageOf image = MakeImage("patternkv:2", Kv(DType::kBf16, 64, 64), 40, Content::kBell);
  const codecs::Slice slice = image.spec.slice;
  PagedCache cache(image.spec, slice, CacheShape{}, random_);
  const PagedView view = cache.view();
  const auto error = [&] { return Run({&image, 1}, {&slice, 1}, {&view, 1}).error; };
  EXPECT_EQ(error(), Error::kOk);
  image.side->on_device = std::make_unique<DeviceBytes>(image.side->bytes.size(), false, 8);
  EXPECT_EQ(error(), Error::kInvalidShape);
  image.side = MakeBank({GroupKind::kKv, DType::kBf16, 32, 64});
  EXPECT_EQ(error(), Error::kNoBank);
  image.side = nullptr;
  EXPECT_EQ(error(), Error::kNoBank);
}

// What codecs::Step() divides, without division, for every range that params can hold.
template <uint32_t kBits>
void CheckSteps() {
  for (uint32_t range = 0; range < 0x7C00; ++range) {
    const float value = codecs::Fp16ToFloat(static_cast<uint16_t>(range));
    ASSERT_EQ(codecs::FloatBits(StepOf<kBits>(value)),
              codecs::FloatBits(codecs::Step(kBits, value)))
        << range;
  }
}

TEST_F(DecodeTest, CodesOfE4m3AreWhatTheyAre) {
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    EXPECT_EQ(HasE4m3Nan(code << 8), codecs::IsE4m3Nan(byte));
    if (codecs::IsE4m3Nan(byte)) continue;
    EXPECT_EQ(codecs::FloatBits(E4m3Value(code)), codecs::FloatBits(codecs::E4m3ToFloat(byte)));
  }
}

TEST_F(DecodeTest, StepsWithoutDivision) {
  CheckSteps<2>();
  CheckSteps<4>();
  CheckSteps<8>();
  for (uint32_t range = 0; range < 0x10000; ++range) {
    ASSERT_EQ(CheckParams(range << 16) == Fault::kNone, range < 0x7C00) << range;
  }
}

}  // namespace
}  // namespace cairn::kernels
