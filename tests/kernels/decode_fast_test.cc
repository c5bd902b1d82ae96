// SPDX-License-Identifier: Apache-2.0
// The kernels that decode most of `exact:fast` give what the CPU gives.
#include <gtest/gtest.h>

#include <cstring>

#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
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

}  // namespace
}  // namespace cairn::kernels
