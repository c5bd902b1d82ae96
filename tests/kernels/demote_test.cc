// SPDX-License-Identifier: Apache-2.0
// Images that a device codes anew are those that the CPU makes of them.
#include <cstring>
#include <string_view>
#include <vector>

#include "codecs/backend/step_tile.h"
#include "codecs/transform/demote.h"
#include "codecs/transform/thin.h"
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32};

class DemoteTest : public EncodeFixture {
 protected:
  static codecs::Recipe RecipeOf(std::string_view name) {
    codecs::Recipe recipe;
    const bool is_known = codecs::ParseRecipe(name, &recipe) == Error::kOk ||
                          codecs::ParsePlannedRecipe(name, &recipe) == Error::kOk;
    EXPECT_TRUE(is_known) << name;
    return recipe;
  }

  // With fewer bits, or at a higher level.
  static codecs::Recipe Lower(codecs::Recipe recipe, uint8_t bits_or_level) {
    (recipe.id == codecs::RecipeId::kCairn ? recipe.level : recipe.bits) = bits_or_level;
    return recipe;
  }

  // What the CPU makes of it.
  static Error OnHost(const ImageOf& from, const codecs::Recipe& to, uint64_t chain_tokens,
                      ImageOf* made) {
    const codecs::Backend& backend = codecs::ReferenceBackend();
    const codecs::ImageView view = from.View();
    made->bytes.resize(codecs::DemoteBytesMax(view, to));
    size_t bytes = 0;
    Error error = Error::kOk;
    if (from.spec.recipe.id == codecs::RecipeId::kCairn) {
      error = codecs::DemoteSteps(view, from.side->profile, to.level, made->bytes, &bytes);
    } else if (from.spec.recipe == to) {
      error = codecs::Thin(backend, view, chain_tokens, made->bytes, &bytes);
    } else {
      error = codecs::Demote(backend, view, to, made->bytes, &bytes);
    }
    made->bytes.resize(bytes);
    if (error == Error::kOk) made->spec = made->View().spec();
    return error;
  }

  // And the device. The spec has to outlive it.
  Encoded OnDevice(const ImageOf& from, const codecs::ImageSpec& spec, uint64_t chain_tokens = 0) {
    DeviceBytes bytes(from.bytes, false);
    codecs::ImagePrefix prefix;
    EXPECT_EQ(codecs::ParseImagePrefix(from.bytes, &prefix), Error::kOk);
    const StoredImage stored{&prefix, bytes.address()};
    EncodeJob job{.spec = &spec, .stored = &stored, .chain_tokens = chain_tokens};
    if (from.side != nullptr) {
      job.side = from.Inputs();
      job.side_object = from.side->on_device->address();
    }
    return Encode({job});
  }

  // The likeliest code of a channel that is an escape a level higher; 0: there is none.
  static int32_t NearEscape(const codecs::StepTile& by, const codecs::StepTile& then,
                            uint32_t channel) {
    const auto frequency_of = [&](const codecs::StepTile& tile, int32_t code) -> uint32_t {
      const uint32_t symbol = codecs::StepSymbol(code, tile.channels[channel].shape.low_bits);
      return symbol < codecs::kEscapeSymbol ? TableOf(tile, channel).frequency[symbol] : 0;
    };
    int32_t found = 0;
    uint32_t frequency = 0;
    for (int32_t code = 1; code < 300; ++code) {
      if (frequency_of(then, codecs::Coarsen(code, 1)) != 0) continue;
      if (frequency_of(by, code) <= frequency) continue;
      found = code;
      frequency = frequency_of(by, code);
    }
    return found;
  }

  // Gives V such codes, in its first strip; the others have values of no information.
  static void PushOut(ImageOf* image) {
    const int16_t multiplier = image->spec.recipe.multiplier;
    uint64_t element = 0;
    codecs::StepTile by, then;
    for (uint32_t tile = 0; tile < image->View().tile_count(); ++tile) {
      const codecs::TileGeometry geometry = codecs::GeometryOf(image->spec, tile % 2);
      const codecs::ProfileHead at = codecs::HeadOf(image->spec, tile);
      MakeStepTile(image->side->profile, at, tile % 2, {multiplier, 0}, geometry.dtype, &by);
      MakeStepTile(image->side->profile, at, tile % 2, {multiplier, 1}, geometry.dtype, &then);
      for (uint32_t i = 0; i < geometry.rows * geometry.dim; ++i, ++element) {
        if (tile % 2 == 0) continue;
        const uint32_t channel = i % geometry.dim;
        const codecs::StepChannel& known = by.channels[channel];
        const bool is_first = i / geometry.dim < codecs::kStripTokens;
        const auto code = static_cast<float>(is_first ? NearEscape(by, then, channel) : 0);
        codecs::StoreElement(geometry.dtype, codecs::U8(image->source.data()), element,
                             known.mean + code * known.step);
      }
    }
    Reencode(image);
  }

  void Check(const ImageOf& from, const codecs::Recipe& to, uint64_t chain_tokens = 0) {
    ImageOf want;
    ASSERT_EQ(OnHost(from, to, chain_tokens, &want), Error::kOk);
    codecs::ImageSpec spec = from.spec;
    spec.recipe = to;
    Encoded encoded = OnDevice(from, spec, chain_tokens);
    ASSERT_EQ(encoded.error, Error::kOk);
    ASSERT_EQ(encoded.fault, "");
    Compare(want, &encoded, 0, 0);
  }
};

TEST_F(DemoteTest, FewerBitsOfEveryTail) {
  constexpr struct {
    const char* recipe;
    uint8_t bits;
  } kWays[] = {{"kivi:8", 4}, {"kivi:8", 2},     {"kivi:4", 2},     {"kivi:4+", 2},
               {"ott:4", 2},  {"logquant:4", 2}, {"patternkv:4", 2}};
  uint32_t trial = 0;
  for (const auto& way : kWays) {
    for (const uint16_t tokens : {1, 2, 33, 129, 200}) {
      const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
      SCOPED_TRACE(testing::Message() << way.recipe << " to " << int{way.bits} << " of " << tokens);
      const ImageOf from = MakeImage(way.recipe, Kv(dtype, 21, 13), tokens, Content::kFewRows);
      Check(from, Lower(from.spec.recipe, way.bits));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(raw_, 10U);
  EXPECT_GT(coded_, 80U);
  EXPECT_GT(with_rows_, 40U);
}

// Tiles of kivi that stay raw in 8 bits are encoded of their bits; of others they stay.
TEST_F(DemoteTest, FewerBitsOfEveryContent) {
  constexpr const char* kWays[] = {"kivi:8", "ott:4", "kivi:8+", "patternkv:4:l2",
                                   "logquant:4/log"};
  for (const TileShape& shape : {Kv(DType::kFp32, 12, 70), Kv(DType::kBf16, 5, 3),
                                 TileShape{GroupKind::kLatent, DType::kFp16, 96, 0}}) {
    for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
      const char* recipe = kWays[content % std::size(kWays)];
      SCOPED_TRACE(testing::Message()
                   << recipe << ", dim " << shape.k_dim << ", content " << content);
      const ImageOf from = MakeImage(recipe, shape, static_cast<uint16_t>(1 + random_() % 40),
                                     static_cast<Content>(content));
      Check(from, Lower(from.spec.recipe, 2));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(raw_, 10U);
  EXPECT_GT(coded_, 40U);
}

// Opaque bytes too, and wherever in its chain a block stands.
TEST_F(DemoteTest, AnyRecipeOfRaw) {
  for (const char* recipe : {"kivi:2", "kivi:4+", "ott:2", "logquant:2", "arkv", "arkv:paper",
                             "mixkvq", "fp8", "exact", "exact:fast"}) {
    SCOPED_TRACE(recipe);
    ImageOf from = MakeImage("raw", Kv(DType::kBf16, 24, 16), 70, Content::kFewRows);
    for (const uint64_t position : {0, 128}) {
      from.spec.first_position = position;
      Reencode(&from);
      Check(from, RecipeOf(recipe));
    }
    Check(MakeImage("raw", {GroupKind::kState, DType::kBytes, 41, 0}, 40, Content::kBell),
          RecipeOf(recipe));
    if (HasFailure()) return;
  }
}

TEST_F(DemoteTest, LongerStepsOfEveryTail) {
  constexpr const char* kRecipes[] = {"cairn:2.3", "cairn:4.3", "cairn:4.3*3"};
  uint32_t trial = 0;
  for (const uint16_t tokens : {1, 31, 33, 128, 129, 300}) {
    for (const char* recipe : kRecipes) {
      const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
      SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens");
      const ImageOf from = MakeImage(recipe, Kv(dtype, 24, 20), tokens, Content::kBell);
      Check(from, Lower(from.spec.recipe, static_cast<uint8_t>(2 + trial % 2)));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(coded_, 50U);
  EXPECT_GT(with_rows_, 5U);
  for (const uint32_t strips : {modes_[0], modes_[1]}) EXPECT_GT(strips, 0U);
}

// Escapes, and rows of every kind.
TEST_F(DemoteTest, LongerStepsOfEveryContent) {
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    SCOPED_TRACE(content);
    const TileShape shape = content % 2 == 0 ? Kv(DType::kFp32, 33, 20)
                                             : TileShape{GroupKind::kLatent, DType::kBf16, 48, 0};
    ImageOf from = MakeImage("cairn:4.3", shape, 140, static_cast<Content>(content));
    Check(from, Lower(from.spec.recipe, 1));
    if (shape.kind == GroupKind::kKv) {
      SetPlane(
          1,
          [&](uint32_t token, uint32_t, float value) { return token % 9 == 2 ? 0.0F : 20 * value; },
          &from);
      Check(from, Lower(from.spec.recipe, 2));
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(escapes_, 100U);
  EXPECT_GT(raw_, 3U);
}

TEST_F(DemoteTest, FewerRowsOfEveryChain) {
  for (const char* recipe : {"logquant:2", "logquant:4/log"}) {
    for (const uint16_t tokens : {1, 40, 129, 300}) {
      for (const uint64_t position : {0, 128}) {
        SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " at " << position);
        ImageOf from = MakeImage(recipe, Kv(DType::kBf16, 20, 12), tokens,
                                 position == 0 ? Content::kFewRows : Content::kBell);
        from.spec.first_position = position;
        Reencode(&from);
        const uint64_t end = position + tokens;
        for (const uint64_t chain : {uint64_t{0}, end + 50, end + 130, end + 100000}) {
          Check(from, from.spec.recipe, chain);
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(raw_, 10U);
  EXPECT_GT(with_rows_, 100U);
}

// Coarser codes of one strip are escapes, which take more than raw, while the tile would not.
TEST_F(DemoteTest, StripsThatWouldGrow) {
  uint32_t refused = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    ImageOf from = MakeImage("cairn:4.3", Kv(DType::kFp16, 4, 4), 250, Content::kBell);
    PushOut(&from);
    codecs::ImageSpec spec = from.spec;
    spec.recipe = Lower(from.spec.recipe, 1);
    ImageOf want;
    const Error error = OnHost(from, spec.recipe, 0, &want);
    const Encoded encoded = OnDevice(from, spec);
    ASSERT_EQ(encoded.error, Error::kOk);
    EXPECT_EQ(encoded.status[0], static_cast<uint32_t>(error));
    refused += error == Error::kNotDemotable ? 1 : 0;
  }
  EXPECT_GT(refused, 1U);
}

// Bytes that are no strips any more. Where the CPU makes something of them, the device makes the
// same.
TEST_F(DemoteTest, StripsThatAreNone) {
  const ImageOf whole = MakeImage("cairn:4.3", Kv(DType::kBf16, 16, 16), 140, Content::kFewRows);
  codecs::ImageSpec spec = whole.spec;
  spec.recipe = Lower(spec.recipe, 1);
  uint32_t refused = 0;
  for (uint32_t round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    ImageOf from = whole;
    const auto index = static_cast<uint32_t>(random_() % from.View().tile_count());
    const codecs::TileEntry tile = from.View().Tile(index);
    // Often in a header.
    const uint64_t at = round % 2 == 0 ? random_() % 16 : random_() % tile.bytes;
    from.bytes[tile.offset + at] ^= static_cast<std::byte>(1 + random_() % 255);
    Vouch(index, &from);
    ImageOf want;
    const Error error = OnHost(from, spec.recipe, 0, &want);
    Encoded encoded = OnDevice(from, spec);
    ASSERT_EQ(encoded.error, Error::kOk);
    ASSERT_EQ(encoded.fault, "");
    EXPECT_EQ(encoded.status[0], static_cast<uint32_t>(error));
    refused += error != Error::kOk ? 1 : 0;
    if (error != Error::kOk) continue;
    Compare(want, &encoded, 0, 0);
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 20U);
}

TEST_F(DemoteTest, PlansRefuseOtherWays) {
  const TileShape shape = Kv(DType::kBf16, 32, 32);
  const auto error_of = [&](const char* from, auto change) {
    const ImageOf image = MakeImage(from, shape, 40, Content::kBell);
    codecs::ImageSpec spec = image.spec;
    change(&spec);
    return OnDevice(image, spec).error;
  };
  using Spec = codecs::ImageSpec;
  const auto to = [](const char* recipe) {
    return [recipe](Spec* spec) { spec->recipe = RecipeOf(recipe); };
  };
  EXPECT_EQ(error_of("kivi:8", to("kivi:4")), Error::kOk);
  EXPECT_EQ(error_of("kivi:8", to("kivi:8")), Error::kNotDemotable);
  EXPECT_EQ(error_of("kivi:2", to("kivi:4")), Error::kNotDemotable);
  EXPECT_EQ(error_of("kivi:8", to("kivi:4+")), Error::kNotDemotable);
  EXPECT_EQ(error_of("exact", to("kivi:4")), Error::kNotDemotable);
  EXPECT_EQ(error_of("arkv", to("arkv")), Error::kNotDemotable);
  EXPECT_EQ(error_of("logquant:4", to("logquant:4")), Error::kOk);
  EXPECT_EQ(error_of("logquant:4", to("logquant:2/log")), Error::kNotDemotable);
  const auto level = [](uint8_t of) { return [of](Spec* spec) { spec->recipe.level = of; }; };
  EXPECT_EQ(error_of("cairn:4.3*3", level(2)), Error::kOk);
  for (const uint8_t of : {0, 1, 200}) {
    EXPECT_NE(error_of("cairn:4.3*3", level(of)), Error::kOk) << int{of};
  }
  EXPECT_EQ(error_of("kivi:8",
                     [](Spec* spec) {
                       spec->recipe = RecipeOf("kivi:4");
                       spec->first_position += 1;
                     }),
            Error::kMismatch);
  const ImageOf image = MakeImage("cairn:4.3", shape, 40, Content::kBell);
  codecs::ImageSpec spec = image.spec;
  spec.recipe = Lower(spec.recipe, 1);
  ImageOf other = image;
  other.side = MakeProfile(Kv(DType::kBf16, 32, 16));
  EXPECT_EQ(OnDevice(other, spec).error, Error::kNoProfile);
}

}  // namespace
}  // namespace cairn::kernels
