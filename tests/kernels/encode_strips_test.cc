// SPDX-License-Identifier: Apache-2.0
// Strips that kernels encode are those of the CPU, whatever exponents they have.
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

// What lossless coding finds hard.
enum class Hard : uint8_t {
  kFarApart,     // tops that par cannot say
  kAnyExponent,  // a tenth of all: escapes, and raw bytes
  kZeros,        // dead channels
  kLate,         // noise behind the first strip, which is regular
  kAbove,        // exponents above the top
  kRegular,      // fewer than a table's
  kCount,
};

class EncodeStripsTest : public EncodeFixture {
 protected:
  // Gives the elements of an image other exponents.
  void Harden(Hard how, ImageOf* image) {
    const codecs::ImageSpec& spec = image->spec;
    const size_t bytes = codecs::ElementBytes(spec.tile.dtype);
    uint8_t* at = codecs::U8(image->source.data());
    const uint8_t* const end = at + image->source.size();
    for (uint32_t plane = 0; at < end; plane = (plane + 1) % codecs::PlaneCount(spec.tile.kind)) {
      const codecs::TileGeometry geometry = codecs::GeometryOf(spec, plane);
      for (uint64_t i = 0; i < uint64_t{geometry.rows} * geometry.dim; ++i, at += bytes) {
        uint32_t bits = 0;
        std::memcpy(&bits, at, bytes);
        codecs::Fields fields = codecs::Split(spec.tile.dtype, bits);
        fields.exponent = ExponentOf(how, static_cast<uint32_t>(i / geometry.dim),
                                     static_cast<uint32_t>(i % geometry.dim));
        bits = codecs::Join(spec.tile.dtype, fields);
        std::memcpy(at, &bits, bytes);
      }
    }
  }

  uint32_t ExponentOf(Hard how, uint32_t token, uint32_t channel) {
    const auto few = static_cast<uint32_t>(random_() % 3);
    switch (how) {
      case Hard::kFarApart:
        return 120 - channel % 5 * 9 + few;
      case Hard::kAnyExponent:
        return random_() % 10 == 0 ? static_cast<uint32_t>(random_()) : 120 + few;
      case Hard::kZeros:
        return channel % 3 == 0 && random_() % 9 != 0 ? 0 : 20 + few;
      case Hard::kLate:
        return token >= codecs::kStripTokens ? static_cast<uint32_t>(random_()) : 110;
      case Hard::kAbove:
        return 20 + (random_() % 8 == 0 ? 4 + static_cast<uint32_t>(random_() % 9) : 0);
      default:
        return 20 + (few == 2 ? 1 : 0);
    }
  }
};

TEST_F(EncodeStripsTest, StripsOfEveryMode) {
  constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3,
                               DType::kFp8E5m2};
  constexpr uint32_t kDims[] = {64, 33, 20, 96, 7, 260};
  constexpr uint16_t kTokens[] = {9, 33, 63, 70, 128, 131, 2, 200, 1, 64};
  uint32_t trial = 0;
  for (const DType dtype : kDTypes) {
    for (uint32_t how = 0; how < static_cast<uint32_t>(Hard::kCount); ++how) {
      for (const char* recipe : {"exact", "exact:fast"}) {
        ++trial;
        const uint32_t dim = kDims[trial % std::size(kDims)];
        const bool is_late = static_cast<Hard>(how) == Hard::kLate;
        const uint16_t tokens = is_late ? 150 : kTokens[trial % std::size(kTokens)];
        SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim " << dim
                                        << ", dtype " << static_cast<int>(dtype) << ", " << how);
        ImageOf image = MakeImage(recipe, Kv(dtype, dim, 16), tokens, Content::kBell);
        Harden(static_cast<Hard>(how), &image);
        Reencode(&image);
        CheckImage(image, AnyWholeShape());
        if (HasFailure()) return;
      }
    }
  }
  for (const uint32_t strips : modes_) EXPECT_GT(strips, 10U);
  EXPECT_GT(raw_, 10U);
  EXPECT_GT(escapes_, 1000U);
  EXPECT_GT(raws_, 100U);
}

// What KV looks like, at the shapes of engines.
TEST_F(EncodeStripsTest, StripsOfBells) {
  for (const uint16_t tokens : {40, 128}) {
    for (const char* recipe : {"exact", "exact:fast", "raw"}) {
      CheckImage(MakeImage(recipe, Kv(DType::kBf16, 128, 64), tokens, Content::kTails),
                 AnyWholeShape());
      if (HasFailure()) return;
    }
  }
  // Lanes without a token code more than the tokens have room for.
  for (const uint16_t tokens : {1, 2, 3}) {
    CheckImage(MakeImage("exact", Kv(DType::kBf16, 300, 300), tokens, Content::kBell),
               AnyWholeShape());
  }
}

}  // namespace
}  // namespace cairn::kernels
