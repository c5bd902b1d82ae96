// SPDX-License-Identifier: Apache-2.0
// The kernels that decode most of `exact:fast` and of `cairn` give what the CPU gives.
#include <gtest/gtest.h>

#include <cstring>

#include "codecs/backend/step_tile.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/step_strip.h"
#include "codecs/pack/strip.h"
#include "codecs/types/bytes.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::Content;
using codecs::DType;
using codecs::Error;
using codecs::GroupKind;

class DecodeFastTest : public DecodeFixture {
 protected:
  // Its tiles are the strips of one layer and head.
  ImageOf ImageOfStrips(const codecs::TileShape& shape, uint16_t tokens,
                        std::span<const std::vector<std::byte>> strips) {
    ImageOf image;
    image.spec.tile = shape;
    image.spec.tokens = tokens;
    image.spec.slice = {0, 1, 0, 1};
    EXPECT_EQ(codecs::ParseRecipe("exact:fast", &image.spec.recipe), Error::kOk);
    uint64_t bytes_max = 0;
    EXPECT_EQ(codecs::MaxImageBytes(image.spec, &bytes_max), Error::kOk);
    image.bytes.resize(bytes_max);
    codecs::ImageWriter writer(image.spec, image.bytes);
    for (const std::vector<std::byte>& strip : strips) {
      const codecs::TileEntry entry{0, static_cast<uint32_t>(strip.size()), codecs::Crc32c(strip),
                                    0, codecs::kStripsForm};
      EXPECT_EQ(writer.Copy(entry, strip), Error::kOk);
    }
    image.bytes.resize(writer.Finish());
    return image;
  }

  // Any codes, one in `escape_every` of them an escape, and any nibbles and raw bytes: also codes
  // of elements that are not there, and raw bytes that a nibble could have said.
  std::vector<std::byte> AnyStrip(const codecs::StripShape& shape, uint32_t escape_every) {
    codecs::StripParts parts{};
    parts.mode = codecs::StripMode::kPlanes;
    parts.top = 90;
    std::vector<uint8_t> runs(codecs::RunCount(shape) * codecs::kRunBytes);
    std::vector<uint8_t> nibbles, raws;
    for (uint64_t i = 0; i < codecs::RunCount(shape) * codecs::kRun; ++i) {
      const bool is_escape = random_() % escape_every == 0;
      const auto code = static_cast<uint32_t>(is_escape ? codecs::kPlanesReach
                                                        : random_() % codecs::kPlanesReach);
      codecs::StoreRunCode(runs.data(), i, code);
      if (!is_escape || i >= codecs::ElementCount(shape)) continue;
      const auto nibble = static_cast<uint8_t>(random_() % 2 == 0 ? 15 : random_() % 16);
      if (nibble == codecs::kRawNibble) raws.push_back(static_cast<uint8_t>(random_()));
      if (parts.escapes % 2 == 0) nibbles.push_back(0);
      nibbles.back() = static_cast<uint8_t>(nibbles.back() | nibble << (4 * (parts.escapes++ % 2)));
    }
    parts.raws = static_cast<uint32_t>(raws.size());
    codecs::PlaceParts(shape, &parts);
    std::vector<std::byte> strip(parts.bytes);
    uint8_t* bytes = codecs::U8(strip.data());
    codecs::StoreStripHeader(parts, bytes);
    for (uint32_t c = 0; c < shape.dim; ++c) {
      bytes[codecs::strip::kPar + c] = static_cast<uint8_t>(random_() % 16);
    }
    std::ranges::copy(runs, bytes + parts.coded);
    std::ranges::copy(nibbles, bytes + parts.escape);
    std::ranges::copy(raws, bytes + parts.raw);
    for (uint64_t at = parts.plane; at < parts.end; ++at) {
      bytes[at] = static_cast<uint8_t>(random_());
    }
    return strip;
  }

  // What is wrong with a strip: it counts one escape too many, or it says that it has no low planes
  // and ends before they would.
  enum class Odd { kNothing, kMoreEscapes, kNoPlanes };

  // Any symbols, small codes as escapes, any low bits, and rows. Tokens without codes have symbols
  // too, escapes among them: no encoder writes them so, and they stand for nothing.
  std::vector<std::byte> AnySteps(const codecs::StepTile& tile, uint32_t tokens, Odd odd) {
    const codecs::StripShape shape{tokens, tile.dim, tile.dtype, false};
    const uint32_t all = codecs::CoderGroups(tokens) * codecs::kCoderLanes;
    std::vector<uint8_t> positions;
    std::vector<bool> is_coded(all);
    for (uint32_t token = 0; token < tokens; ++token) {
      is_coded[token] = random_() % 6 != 0;
      if (!is_coded[token]) positions.push_back(static_cast<uint8_t>(token));
    }
    const auto table_of = [&](uint32_t i) -> const codecs::CoderTable& {
      return codecs::TableOf(tile, tile.order[i]);
    };
    std::vector<uint8_t> symbols(size_t{all} * tile.dim);
    std::vector<int16_t> escapes;
    for (uint32_t at = 0; at < symbols.size(); ++at) {
      const bool is_escape = random_() % 16 == 0;
      symbols[at] = static_cast<uint8_t>(is_escape ? codecs::kEscapeSymbol : 5 + random_() % 5);
      if (table_of(at / all).frequency[symbols[at]] == 0) symbols[at] = 7;
      if (symbols[at] == codecs::kEscapeSymbol && is_coded[at % all]) {
        escapes.push_back(static_cast<int16_t>(random_() % 9 - 4));
      }
    }
    if (odd == Odd::kMoreEscapes) escapes.push_back(1);
    if (odd == Odd::kNoPlanes) {
      escapes.clear();
      positions.clear();
    }
    std::vector<uint8_t> room(codecs::StreamBytesMax(tokens, tile.dim));
    const uint8_t* stream = codecs::EncodeStream(
        tokens, tile.dim, table_of,
        [&](uint32_t i, uint32_t token) { return uint32_t{symbols[i * all + token]}; }, room.data(),
        room.data() + room.size());
    codecs::StepStripParts parts{};
    parts.mode = codecs::StepStripMode::kCoded;
    parts.rows = static_cast<uint32_t>(positions.size());
    parts.planes = odd == Odd::kNoPlanes ? 0 : tile.planes;
    parts.escapes = static_cast<uint32_t>(escapes.size());
    parts.stream_bytes = odd == Odd::kNoPlanes
                             ? codecs::kCoderStatesBytes
                             : static_cast<uint32_t>(room.data() + room.size() - stream);
    codecs::PlaceStepParts(shape, &parts);
    std::vector<std::byte> strip(parts.bytes);
    uint8_t* bytes = codecs::U8(strip.data());
    codecs::StoreStepHeader(parts, bytes);
    for (uint64_t at = parts.low; at < parts.escape; ++at) {
      bytes[at] = static_cast<uint8_t>(random_());
    }
    const uint32_t plane_bytes = codecs::LowPlaneBytes(tokens), used = tokens % 32;
    for (uint64_t at = parts.low + plane_bytes; at <= parts.row_bits; at += plane_bytes) {
      uint8_t* last = bytes + at - 4;  // of a plane; bits past the last token are 0
      if (used != 0) codecs::Store(last, codecs::Load<uint32_t>(last) & ((1U << used) - 1));
    }
    std::memcpy(bytes + parts.escape, escapes.data(), 2 * escapes.size());
    std::ranges::copy(positions, bytes + parts.position);
    std::memcpy(bytes + parts.stream, stream, parts.stream_bytes);
    return strip;
  }

  // An image whose tiles are such strips, each smaller than raw.
  ImageOf StepsAs(const codecs::TileShape& shape, uint16_t tokens, Odd odd) {
    ImageOf image = MakeImage("cairn:2.3", shape, tokens, Content::kBell);
    const uint32_t tiles = image.View().tile_count();
    codecs::StepTile tile;
    std::vector<std::vector<std::byte>> strips;
    for (uint32_t i = 0; i < tiles; ++i) {
      codecs::MakeStepTile(image.side->profile, codecs::HeadOf(image.spec, i), i % 2,
                           {image.spec.recipe.multiplier, 0}, shape.dtype, &tile);
      strips.push_back(AnySteps(tile, tokens, odd));
    }
    image.bytes.resize(2 * image.source.size() + codecs::PrefixBytes(tiles));
    codecs::ImageWriter writer(image.spec, image.bytes);
    for (const std::vector<std::byte>& strip : strips) {
      const auto rows = codecs::Load<uint8_t>(strip.data() + codecs::step_strip::kRows);
      const codecs::TileEntry entry{0, static_cast<uint32_t>(strip.size()), codecs::Crc32c(strip),
                                    rows, codecs::kStepsForm};
      EXPECT_EQ(writer.Copy(entry, strip), Error::kOk);
    }
    image.bytes.resize(writer.Finish());
    return image;
  }
};

TEST_F(DecodeFastTest, PlanesOfEveryLength) {
  uint32_t trial = 0;
  for (const uint32_t dim : {32U, 64U, 96U, 128U, 256U, 480U}) {
    for (const uint16_t tokens : {1, 2, 7, 31, 33, 64, 65, 127, 128, 130, 257}) {
      if (dim * tokens > 256 * 70) continue;
      const DType dtype = trial++ % 2 == 0 ? DType::kBf16 : DType::kFp16;
      const auto content = trial % 3 == 0 ? Content::kTails : AnyContent();
      SCOPED_TRACE(testing::Message() << tokens << " tokens, dim " << dim << ", content "
                                      << static_cast<int>(content));
      Check(MakeImage("exact:fast", Kv(dtype, dim, 64), tokens, content), AnyShape());
      if (HasFailure()) return;
    }
  }
  // A latent's, the widest, and one that is wider.
  for (const uint32_t dim : {576U, kPlanesFastDimMax, kPlanesFastDimMax + 32}) {
    Check(MakeImage("exact:fast", {GroupKind::kLatent, DType::kBf16, dim, 0}, 9, Content::kBell),
          AnyShape());
  }
}

TEST_F(DecodeFastTest, PlanesThatNoEncoderWrites) {
  for (const uint16_t tokens : {25, 33, 64, 101, 128}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      // Below raw in bytes, as strips must be, by as many escapes as fit.
      const uint32_t escape_every = dtype == DType::kBf16 ? 6 : 40;
      const std::vector<std::byte> strips[] = {
          AnyStrip({tokens, 96, dtype, true}, escape_every),
          AnyStrip({tokens, 32, dtype, true}, escape_every),
      };
      Check(ImageOfStrips(Kv(dtype, 96, 32), tokens, strips), AnyShape());
      if (HasFailure()) return;
    }
  }
}

// Codes, nibbles and counts that say other than the rest.
TEST_F(DecodeFastTest, PlanesThatAreNone) {
  constexpr uint16_t kTokens = 40;
  uint32_t refused = 0;
  for (uint32_t round = 0; round < 48; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBf16 : DType::kFp16;
    ImageOf image = MakeImage("exact:fast", Kv(dtype, 64, 64), kTokens, Content::kTails);
    const codecs::TileEntry tile = image.View().Tile(0);
    uint8_t* strip = codecs::U8(image.bytes.data() + tile.offset);
    codecs::StripParts parts{};
    if (!codecs::ParseStrip({kTokens, 64, dtype, true}, strip, tile.bytes, &parts) ||
        parts.mode != codecs::StripMode::kPlanes || parts.escapes == 0) {
      continue;
    }
    const auto field = round % 3 == 0 ? codecs::strip::kEscapes : codecs::strip::kRaws;
    if (round % 3 == 2) {
      strip[parts.escape + random_() % (parts.escapes / 2 + 1)] = 0xFF;  // all of them raw
    } else {
      codecs::Store(strip + field, codecs::Load<uint32_t>(strip + field) + 1 - round % 4 / 2 * 2);
    }
    const uint32_t status = StatusOf(0, &image);
    std::vector<std::byte> payload(image.source.size());
    const Error error = codecs::Decode(codecs::ReferenceBackend(), image.View(), image.spec.slice,
                                       payload, image.Inputs());
    EXPECT_EQ(status, static_cast<uint32_t>(error)) << round;
    refused += error == Error::kBadTile ? 1 : 0;
  }
  EXPECT_GT(refused, 10U);
}

TEST_F(DecodeFastTest, StepsOfEveryLength) {
  constexpr codecs::RopeKind kRopes[] = {codecs::RopeKind::kNone, codecs::RopeKind::kHalf,
                                         codecs::RopeKind::kInterleaved};
  constexpr const char* kRecipes[] = {"cairn:2.3", "cairn:4.3", "cairn:4.3*9"};
  constexpr Content kContents[] = {Content::kBell, Content::kTails, Content::kFewRows};
  uint32_t trial = 0;
  for (const uint32_t dim : {16U, 64U, 80U, 128U}) {
    for (const uint16_t tokens : {1, 17, 32, 33, 64, 96, 100, 128, 130}) {
      if (dim * tokens > 64 * 130) continue;
      whole_rope_ = kRopes[trial % std::size(kRopes)];
      const char* recipe = kRecipes[trial / 2 % std::size(kRecipes)];
      const Content content = kContents[trial++ / 3 % std::size(kContents)];
      SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim " << dim
                                      << ", content " << static_cast<int>(content));
      Check(MakeImage(recipe, Kv(DType::kBf16, dim, 32), tokens, content), AnyShape());
      if (HasFailure()) return;
    }
  }
  // An engine's head, whole.
  whole_rope_ = codecs::RopeKind::kHalf;
  Check(MakeImage("cairn:2.3", Kv(DType::kBf16, 128, 128), 128, Content::kBell), AnyShape());
}

TEST_F(DecodeFastTest, StepsThatNoEncoderWrites) {
  for (const uint16_t tokens : {32, 45, 64, 100, 128}) {
    whole_rope_ = tokens % 8 == 0 ? codecs::RopeKind::kHalf : codecs::RopeKind::kNone;
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    Check(StepsAs(Kv(DType::kBf16, 64, 32), tokens, Odd::kNothing), AnyShape());
    for (const Odd odd : {Odd::kMoreEscapes, Odd::kNoPlanes}) {
      ImageOf image = StepsAs(Kv(DType::kBf16, 64, 32), tokens, odd);
      EXPECT_EQ(StatusOf(image.View().tile_count() - 1, AnyWholeShape(), &image),
                static_cast<uint32_t>(Error::kBadTile));
    }
    if (HasFailure()) return;
  }
}

// Tables of up to four profiles are each of a list.
TEST_F(DecodeFastTest, StepsOfManyProfiles) {
  std::vector<ImageOf> images;
  std::vector<codecs::Slice> slices;
  whole_rope_ = codecs::RopeKind::kHalf;
  for (uint32_t i = 0; i < kPlanProfilesMax + 1; ++i) {
    images.push_back(MakeImage("cairn:2.3", Kv(DType::kBf16, 32, 32), 40, Content::kBell));
    slices.push_back(images.back().spec.slice);
  }
  PagedCache cache(images[0].spec, slices[0], AnyShape(), random_);
  EXPECT_EQ(Run(images, slices, std::vector<PagedView>(images.size(), cache.view())).error,
            Error::kTooLarge);
  images.pop_back(), slices.pop_back();
  CheckBatch(images, slices);
}

// Whatever a coded strip with rows and escapes has in one place, the kernel says what the CPU says.
TEST_F(DecodeFastTest, StepsThatAreNone) {
  uint32_t refused = 0;
  whole_rope_ = codecs::RopeKind::kHalf;
  for (uint32_t round = 0; round < 40; ++round) {
    const Content content = round % 2 == 0 ? Content::kFewRows : Content::kTails;
    ImageOf image = MakeImage("cairn:4.3", Kv(DType::kBf16, 64, 32), 70, content);
    const codecs::TileEntry tile = image.View().Tile(0);
    if (tile.form != codecs::kStepsForm) continue;
    uint8_t* strip = codecs::U8(image.bytes.data() + tile.offset);
    codecs::StepStripParts parts{};
    ASSERT_TRUE(codecs::ParseStepStrip({70, 64, DType::kBf16, false}, strip, tile.bytes, &parts));
    if (parts.mode != codecs::StepStripMode::kCoded) continue;
    if (round % 4 == 0) {
      strip[codecs::step_strip::kEscapes] ^= 1;
    } else if (round % 4 == 1) {
      strip[parts.stream + random_() % 64] ^= 0x40;  // a first state
    } else if (round % 4 == 2) {
      strip[parts.end - 1] ^= 0x10;
    } else {
      strip[codecs::step_strip::kStream] ^= 1;
    }
    std::vector<std::byte> payload(image.source.size());
    Vouch(0, &image);
    const Error error = codecs::Decode(codecs::ReferenceBackend(), image.View(), image.spec.slice,
                                       payload, image.Inputs());
    EXPECT_EQ(StatusOf(0, &image), static_cast<uint32_t>(error)) << round;
    refused += error == Error::kBadTile ? 1 : 0;
  }
  EXPECT_GT(refused, 10U);
}

}  // namespace
}  // namespace cairn::kernels
