// SPDX-License-Identifier: Apache-2.0
// What docs/recipes/exact.md promises: every bit pattern comes back, at any shape; bytes are equal
// on every backend; and strips that no encoder wrote are refused without harm.

#include <bit>

#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/pack/strip.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr std::array<std::string_view, 2> kNames = {"exact", "exact:fast"};

enum class Content : uint8_t {
  kBell,
  kOffsets,
  kAnyBits,
  kZeros,
  kConstant,
  kSparse,
  kAllExponents
};
constexpr int kContents = 7;

// One latent tile.
Bytes Fill(const ImageSpec& spec, Content content, std::mt19937_64& random) {
  const DType dtype = spec.tile.dtype;
  const size_t element_bytes = ElementBytes(dtype);
  const uint32_t dim = spec.tile.k_dim;
  Bytes source(size_t{spec.tokens} * dim * element_bytes);
  std::normal_distribution<float> bell(0.0F, 1.0F);
  for (size_t i = 0; i < source.size() / element_bytes; ++i) {
    const auto channel = static_cast<int>(i % dim);
    float value = std::ldexp(bell(random), channel % 9 - 4);
    uint64_t bits = random();
    switch (content) {
      case Content::kBell:
        break;
      case Content::kOffsets:
        value = 8.0F * static_cast<float>(channel % 3) + bell(random) / 4;
        break;
      case Content::kZeros:
        value = bits % 2 == 0 ? 0.0F : -0.0F;
        break;
      case Content::kConstant:
        value = -0.7F;
        break;
      case Content::kSparse:  // dead channels, and exponents far from the others
        value = channel % 4 == 0 ? 0.0F : std::ldexp(value, channel % 5 == 0 ? -40 : 0);
        if (bits % 61 == 0) value = std::ldexp(bell(random), static_cast<int>(bits % 200) - 100);
        break;
      default:
        if (content == Content::kAllExponents) {
          const uint32_t shift = ExponentShift(dtype);
          bits = (bits & ~(uint64_t{0xFF} << shift)) | (i % 256) << shift;
        }
        std::memcpy(source.data() + i * element_bytes, &bits, element_bytes);
        continue;
    }
    StoreValue(dtype, source.data(), i, value);
  }
  return source;
}

ImageSpec LatentSpec(DType dtype, uint32_t tokens, uint32_t dim, std::string_view recipe) {
  ImageSpec spec =
      MakeSpec(dtype, {0, 1, 0, 1}, static_cast<uint16_t>(tokens), dim, 1, RecipeNamed(recipe));
  spec.tile = {GroupKind::kLatent, dtype, dim, 0};
  return spec;
}

Bytes EncodeEverywhere(const ImageSpec& spec, const Bytes& source) {
  const Bytes image = EncodeOrFail(ReferenceBackend(), spec, source);
  for (const Backend* backend : CpuBackends()) {
    if (backend == &ReferenceBackend()) continue;
    EXPECT_EQ(EncodeOrFail(*backend, spec, source), image) << backend->name;
    // A target of just the image's bytes is enough.
    Bytes tight(image.size());
    size_t bytes = 0;
    EXPECT_EQ(Encode(*backend, spec, source, tight, &bytes), Error::kOk);
    EXPECT_EQ(tight, image);
  }
  return image;
}

void ExpectRoundTrip(const ImageSpec& spec, const Bytes& source) {
  const Bytes image = EncodeEverywhere(spec, source);
  const ImageView view = ParseOrFail(image);
  for (const Backend* backend : CpuBackends()) {
    Bytes decoded(source.size());
    ASSERT_EQ(Decode(*backend, view, spec.slice, decoded), Error::kOk) << backend->name;
    ASSERT_EQ(decoded, source) << backend->name;
  }
}

TEST(ExactPropertyTest, EveryBitComesBackAtEveryShape) {
  std::mt19937_64 random = SeededRandom();
  const auto try_one = [&](DType dtype, uint32_t tokens, uint32_t dim, std::string_view name) {
    const auto content = static_cast<Content>(random() % kContents);
    SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(dim) + " dtype " +
                 std::to_string(static_cast<int>(dtype)) + " content " +
                 std::to_string(static_cast<int>(content)) + " " + std::string(name));
    const ImageSpec spec = LatentSpec(dtype, tokens, dim, name);
    if (!testing::Test::HasFailure()) ExpectRoundTrip(spec, Fill(spec, content, random));
  };
  for (const DType dtype : kDTypes) {
    for (const std::string_view name : kNames) {
      for (const uint32_t tokens : {1U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 128U, 129U}) {
        for (const uint32_t dim : {64U, 80U}) try_one(dtype, tokens, dim, name);
        try_one(dtype, tokens, static_cast<uint32_t>(1 + random() % 200), name);
      }
      for (const uint32_t dim : {1U, 2U, 3U, 7U, 96U, 128U, 192U, 256U, 576U, 1030U}) {
        try_one(dtype, static_cast<uint32_t>(1 + random() % 140), dim, name);
      }
      try_one(dtype, 1024, 16, name);
      try_one(dtype, 300, 64, name);
    }
  }
}

TEST(ExactPropertyTest, EveryContentComesBack) {
  std::mt19937_64 random = SeededRandom();
  for (const DType dtype : kDTypes) {
    for (const std::string_view name : kNames) {
      for (int content = 0; content < kContents; ++content) {
        SCOPED_TRACE(std::string(name) + " content " + std::to_string(content));
        const ImageSpec spec = LatentSpec(dtype, 128, 64, name);
        ExpectRoundTrip(spec, Fill(spec, static_cast<Content>(content), random));
      }
    }
  }
}

// Every exponent in every mode, and every mode chosen where it is the best.
TEST(ExactPropertyTest, TheModeIsTheSmallest) {
  std::mt19937_64 random = SeededRandom();
  const auto encode = [&](std::string_view name, uint32_t tokens, Content content) {
    const ImageSpec spec = LatentSpec(DType::kBf16, tokens, 128, name);
    return EncodeEverywhere(spec, Fill(spec, content, random));
  };
  const auto mode_of = [](const Bytes& image) {
    const ImageView view = ParseOrFail(image);
    EXPECT_EQ(view.Tile(0).form, kStripsForm);
    return static_cast<StripMode>(view.TileContent(0)[0]);
  };
  const Bytes bell = encode("exact", 128, Content::kBell);
  EXPECT_EQ(mode_of(bell), StripMode::kLanes32);
  const size_t tile_bytes = ParseOrFail(bell).Tile(0).bytes;
  EXPECT_LT(tile_bytes, 128 * 128 * 2 / 1.48);
  const Bytes fast = encode("exact:fast", 128, Content::kBell);
  EXPECT_EQ(mode_of(fast), StripMode::kPlanes);
  EXPECT_LT(ParseOrFail(fast).Tile(0).bytes, 128 * 128 * 2 / 1.40);
  EXPECT_EQ(mode_of(encode("exact", 4, Content::kBell)), StripMode::kPlanes);
  EXPECT_EQ(ParseOrFail(encode("exact", 128, Content::kAnyBits)).Tile(0).form, kRawForm);
  // One strip of noise among three of values: raw alone.
  const ImageSpec spec = LatentSpec(DType::kBf16, 384, 128, "exact");
  Bytes source = Fill(spec, Content::kBell, random);
  const Bytes noise = RandomBits(size_t{128} * 128 * 2, random);
  std::memcpy(source.data(), noise.data(), noise.size());
  EXPECT_EQ(mode_of(EncodeEverywhere(spec, source)), StripMode::kRaw);
}

TEST(ExactPropertyTest, DemotionEqualsDirectEncoding) {
  std::mt19937_64 random = SeededRandom();
  for (const std::string_view from : kNames) {
    for (const DType dtype : kDTypes) {
      ImageSpec spec = MakeSpec(dtype, {1, 2, 0, 2}, 140, 48, 80, RecipeNamed(from));
      const Bytes source = RandomValues(spec, random);
      const Bytes image = EncodeOrFail(BestBackend(), spec, source);
      const ImageView view = ParseOrFail(image);
      for (const Recipe& recipe : AllRecipes()) {
        Bytes target(DemoteBytesMax(view, recipe));
        size_t bytes = 0;
        ASSERT_EQ(Demote(BestBackend(), view, recipe, target, &bytes), Error::kOk);
        target.resize(bytes);
        spec.recipe = recipe;
        EXPECT_EQ(target, EncodeOrFail(BestBackend(), spec, source)) << FormatRecipe(recipe);
      }
    }
  }
}

// ---- Strips that no encoder wrote ----

struct Strip {
  ImageSpec spec;
  Bytes image;

  Strip(std::string_view name, DType dtype, uint32_t tokens, uint32_t dim, std::mt19937_64& random)
      : spec(LatentSpec(dtype, tokens, dim, name)),
        image(EncodeOrFail(BestBackend(), spec, Fill(spec, Content::kSparse, random))) {}

  [[nodiscard]] size_t First() const { return PrefixBytes(1); }

  // The error that verifying and then decoding gives; the same from every backend.
  [[nodiscard]] static Error Use(Bytes changed) {
    std::byte* entry = changed.data() + kHeaderBytes;
    const auto tile = std::span(changed).subspan(PrefixBytes(1));
    Store(entry + directory::kCrc, Crc32c(tile));
    FixPrefixCrc(changed, 1);
    ImageView view;
    if (const Error error = ParseImage(changed, &view); error != Error::kOk) return error;
    const Error verified = VerifyTiles(view);
    Bytes wanted(SourceBytesOf(view.spec()));
    const Error decoded = Decode(ReferenceBackend(), view, view.spec().slice, wanted);
    for (const Backend* backend : CpuBackends()) {
      Bytes got(wanted.size());
      EXPECT_EQ(Decode(*backend, view, view.spec().slice, got), decoded) << backend->name;
      if (decoded != Error::kOk || verified != Error::kOk) continue;
      EXPECT_EQ(got, wanted) << backend->name;
    }
    const Error error = verified != Error::kOk ? verified : decoded;
    ExpectInOnePass(view, wanted, error);
    return error;
  }

  // Verifies and decodes tile by tile, as readers do. A tile of several strips with several faults
  // may show another one of them.
  static void ExpectInOnePass(const ImageView& view, const Bytes& wanted, Error error) {
    const ImageSpec& spec = view.spec();
    for (const Backend* backend : CpuBackends()) {
      Bytes got(wanted.size());
      const DecodeJob job{
          &view, spec.slice, DenseView({spec.tile, 1, 1, spec.tokens}, got.data()), {}};
      const Error got_error = DecodeAll(*backend, {&job, 1}, {});
      EXPECT_EQ(got_error == Error::kOk, error == Error::kOk) << backend->name;
      if (spec.tokens <= kStripTokens) {
        EXPECT_EQ(got_error, error) << backend->name;
      }
      if (error == Error::kOk) {
        EXPECT_EQ(got, wanted) << backend->name;
      }
    }
  }
};

TEST(HostileStripTest, HeadersThatNoEncoderWritesAreRefused) {
  std::mt19937_64 random = SeededRandom();
  for (const std::string_view name : kNames) {
    const Strip strip(name, DType::kBf16, 100, 72, random);
    const auto with = [&](size_t offset, auto value) {
      Bytes changed = strip.image;
      Store(changed.data() + strip.First() + offset, value);
      return Strip::Use(changed);
    };
    const auto stated = [&](size_t offset) {
      return Load<uint32_t>(strip.image.data() + strip.First() + offset);
    };
    ASSERT_EQ(with(strip::kZero, uint16_t{0}), Error::kOk);
    const bool is_fast = name != "exact";
    for (uint8_t mode = 0; mode < 9; ++mode) {
      if (mode == (is_fast ? 1 : 2)) continue;
      EXPECT_EQ(with(strip::kMode, mode), Error::kBadTile) << +mode;
    }
    EXPECT_EQ(with(strip::kTop, uint8_t{0}), Error::kBadTile);
    EXPECT_EQ(with(strip::kZero, uint16_t{0x100}), Error::kBadTile);
    for (const uint32_t offset : {strip::kStream, strip::kEscapes, strip::kRaws}) {
      const uint32_t value = stated(offset);
      for (const uint32_t other : {value + 1, value - 1, value + 16, 0xFFFFFFFFU, 0x80000000U}) {
        EXPECT_NE(with(offset, other), Error::kOk) << offset << " " << other;
      }
    }
    // Directory and strips have to agree.
    Bytes longer = strip.image;
    longer.resize(longer.size() + 16);
    Store(longer.data() + header::kImageBytes, uint64_t{longer.size()});
    Store(longer.data() + kHeaderBytes + directory::kBytes,
          static_cast<uint32_t>(longer.size() - strip.First()));
    EXPECT_EQ(Strip::Use(longer), Error::kBadTile);
  }
}

TEST(HostileStripTest, PaddingMustBeZero) {
  std::mt19937_64 random = SeededRandom();
  for (const std::string_view name : kNames) {
    for (const DType dtype : kDTypes) {
      const Strip strip(name, dtype, 37, 23, random);
      const StripShape shape{37, 23, dtype, name != "exact"};
      StripParts parts = {};
      const uint8_t* bytes = U8(strip.image.data()) + strip.First();
      ASSERT_TRUE(ParseStrip(shape, bytes, strip.image.size() - strip.First(), &parts));
      int tried = 0;
      const auto try_at = [&](uint64_t offset, uint8_t bits) {
        Bytes changed = strip.image;
        changed[strip.First() + offset] |= static_cast<std::byte>(bits);
        EXPECT_EQ(Strip::Use(changed), Error::kBadPadding) << offset;
        ++tried;
      };
      for (uint64_t i = parts.coded_end; i < parts.plane; ++i) try_at(i, 0x10);
      for (uint64_t i = parts.end; i < parts.bytes; ++i) try_at(i, 1);
      // 851 elements: 19 in the last run.
      if (parts.mode == StripMode::kPlanes) try_at(parts.escape - 1, 0x80);
      if (HasLowRuns(dtype)) try_at(parts.low + LowBytes(shape) - 8 + 2, 0x08);
      if (dtype == DType::kFp8E4m3) try_at(parts.low + LowBytes(shape) - 16 + 3, 0x10);
      EXPECT_GT(tried, 0);
    }
  }
}

// In mode planes, the codes and nibbles must be as many as the header says.
TEST(HostileStripTest, EscapesAreCounted) {
  std::mt19937_64 random = SeededRandom();
  for (const DType dtype : kDTypes) {
    const Strip strip("exact:fast", dtype, 128, 72, random);
    StripParts parts = {};
    const uint8_t* bytes = U8(strip.image.data()) + strip.First();
    ASSERT_TRUE(
        ParseStrip({128, 72, dtype, true}, bytes, strip.image.size() - strip.First(), &parts));
    const auto try_at = [&](uint64_t offset, uint8_t bits) {
      Bytes changed = strip.image;
      changed[strip.First() + offset] ^= static_cast<std::byte>(bits);
      EXPECT_EQ(Strip::Use(changed), Error::kBadTile) << offset;
    };
    int tried = 0;
    for (uint32_t i = 0; i < parts.escapes; i += 7, ++tried) {
      const uint64_t at = parts.escape + i / 2;
      const uint32_t shift = i % 2 * 4;
      const uint32_t nibble = bytes[at] >> shift & 15;
      try_at(at, static_cast<uint8_t>((nibble == kRawNibble ? 1U : nibble ^ kRawNibble) << shift));
    }
    const uint64_t elements = uint64_t{128} * 72;
    for (uint64_t i = 0; i < elements; i += 61, ++tried) {
      const uint32_t code = LoadRunCode(bytes + parts.coded, i);
      // One of its bits: a code of 7 becomes another, or one that lacks this bit becomes 7.
      const uint32_t other = code == kPlanesReach ? 1 : code ^ kPlanesReach;
      if (std::popcount(other) != 1) continue;
      const uint32_t word = static_cast<uint32_t>(std::countr_zero(other));
      try_at(parts.coded + i / kRun * kRunBytes + 8 * word + i % kRun / 8,
             static_cast<uint8_t>(1U << i % 8));
    }
    EXPECT_GT(tried, 20);
  }
}

TEST(HostileStripTest, TenThousandMutationsAreRefusedOrHarmless) {
  std::mt19937_64 random = SeededRandom();
  int refused = 0;
  int tried = 0;
  for (const std::string_view name : kNames) {
    for (const DType dtype : kDTypes) {
      const Strip strip(name, dtype, 45, 21, random);
      for (int i = 0; i < 1700; ++i) {
        Bytes changed = strip.image;
        // The headers as often as all the rest.
        const size_t room = random() % 2 == 0 ? 40 : changed.size() - strip.First();
        for (uint64_t count = 1 + random() % 3; count > 0; --count) {
          changed[strip.First() + random() % room] =
              random() % 4 == 0 ? std::byte{0xFF} : static_cast<std::byte>(random());
        }
        refused += Strip::Use(changed) != Error::kOk ? 1 : 0;
        ++tried;
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(tried, 10000);
  EXPECT_GT(refused, tried / 2);
}

TEST(HostileStripTest, EveryShorterTileIsRefused) {
  std::mt19937_64 random = SeededRandom();
  for (const std::string_view name : kNames) {
    const Strip strip(name, DType::kBf16, 130, 24, random);
    for (size_t bytes = strip.First() + 16; bytes < strip.image.size(); bytes += 16) {
      Bytes cut(strip.image.begin(), strip.image.begin() + static_cast<ptrdiff_t>(bytes));
      Store(cut.data() + header::kImageBytes, uint64_t{bytes});
      Store(cut.data() + kHeaderBytes + directory::kBytes,
            static_cast<uint32_t>(bytes - strip.First()));
      EXPECT_NE(Strip::Use(cut), Error::kOk) << bytes;
    }
  }
}

}  // namespace
}  // namespace cairn::codecs
