// SPDX-License-Identifier: Apache-2.0
// What docs/recipes/patternkv.md and docs/internals/formats/bank.md promise, on random sources and
// banks.

#include <cmath>
#include <vector>

#include "codecs/format/tile_layout.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/gate.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "tests/property/codecs/images.h"
#include "tests/support/bank_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr Slice kSlice{1, 1, 1, 2};

struct PatternCase {
  Bytes bank_bytes;
  Bank bank;
  ImageSpec spec;
};

PatternCase CaseOf(std::string_view name, uint32_t patterns, std::mt19937_64& random,
                   DType dtype = DType::kBf16, uint32_t k_dim = 32, uint32_t v_dim = 80) {
  PatternCase made;
  made.bank_bytes = BankBytes({2, 3, patterns, k_dim, v_dim}, random);
  EXPECT_EQ(ParseBank(made.bank_bytes, &made.bank), Error::kOk);
  made.spec = MakeSpec(dtype, kSlice, 140, k_dim, v_dim, Recipe{});
  EXPECT_EQ(SetRecipe(name, {.bank = &made.bank}, Digest{7}, &made.spec), Error::kOk);
  return made;
}

Bytes EncodeWith(const PatternCase& made, const Bytes& source,
                 const Backend& backend = BestBackend()) {
  return EncodeOrFail(backend, made.spec, source, {.bank = &made.bank});
}

Bytes DecodeWith(const PatternCase& made, const Bytes& image,
                 const Backend& backend = BestBackend()) {
  const ImageView view = ParseOrFail(image);
  return DecodeOrFail(backend, view, view.spec().slice, {.bank = &made.bank});
}

float PatternValue(const PatternCase& made, uint32_t plane, ProfileHead at, uint32_t number,
                   uint32_t channel) {
  const uint64_t index = uint64_t{number} * made.bank.Dim(plane) + channel;
  return Fp16ToFloat(Load<uint16_t>(made.bank.PatternsOf(plane, at) + 2 * index));
}

// rho*^2 of d channels, for 4 z^2 / 5.
double RhoStar(double level, double d) {
  const double a = 1 - level / d;
  return std::sqrt((1 - std::sqrt(1 - a * a)) / a);
}

bool PassesOneGroup(float level, uint32_t d, float rho) {
  return PassesGate(AddGroup({}, d, 1.0F, rho), level);
}

TEST(GateTest, RejectsAtTheBoundaryOfThePapersTable) {
  struct Row {
    uint32_t d;
    double of_10, of_05, of_01;
  };
  constexpr std::array kTable = {Row{64, .9029, .8764, .8275}, Row{96, .9202, .8984, .8581},
                                 Row{128, .9306, .9116, .8764}, Row{256, .9505, .9368, .9115}};
  constexpr double kZ10 = 1.2815515655446004, kZ05 = 1.6448536269514722, kZ01 = 2.3263478740408408;
  EXPECT_FLOAT_EQ(kGateLevel, static_cast<float>(4 * kZ05 * kZ05 / 5));
  for (const Row& row : kTable) {
    for (const auto& [z, wanted] :
         {std::pair{kZ10, row.of_10}, {kZ05, row.of_05}, {kZ01, row.of_01}}) {
      const double level = 4 * z * z / 5;
      const double rho = RhoStar(level, row.d);
      EXPECT_NEAR(rho, wanted, 6e-5) << row.d << " " << z;
      EXPECT_TRUE(PassesOneGroup(static_cast<float>(level), row.d, static_cast<float>(rho - 1e-4)));
      EXPECT_FALSE(
          PassesOneGroup(static_cast<float>(level), row.d, static_cast<float>(rho + 1e-4)));
    }
  }
  EXPECT_NEAR(RhoStar(kGateLevel, 128), 0.91155, 1e-5);
}

TEST(GateTest, NothingGainedIsNothingTaken) {
  EXPECT_FALSE(PassesOneGroup(kGateLevel, 64, 1.0F));
  EXPECT_FALSE(PassesOneGroup(kGateLevel, 64, 2.0F));
  EXPECT_FALSE(PassesGate(AddGroup({}, 64, 0.0F, 0.0F), kGateLevel));
  EXPECT_TRUE(PassesOneGroup(kGateLevel, 64, 0.0F));
  EXPECT_FALSE(PassesOneGroup(kGateLevel, 2, 0.0F)) << "two channels say too little";
}

// Equal groups: the sums of the paper's rule for several groups.
TEST(GateTest, GroupsAddUp) {
  std::mt19937_64 random = SeededRandom();
  std::uniform_real_distribution<double> part(0.5, 1.5);
  for (int round = 0; round < 2000; ++round) {
    GateSums sums;
    double gain = 0;
    double fourth = 0;
    for (int group = 0; group < 4; ++group) {
      const double raw = part(random);
      const double flat = part(random);
      sums = AddGroup(sums, 64, static_cast<float>(raw), static_cast<float>(flat));
      gain += raw * raw - flat * flat;
      fourth += std::pow(raw, 4) + std::pow(flat, 4);
    }
    const double bound = 2 * 1.6448536269514722 / std::sqrt(5.0 * 64) * std::sqrt(fourth);
    if (std::fabs(gain - bound) < 1e-4) continue;
    EXPECT_EQ(PassesGate(sums, kGateLevel), gain >= bound);
  }
}

// Tokens that are patterns leave nothing, so they come back exactly, and duplicates with them.
TEST(PatternkvPropertyTest, TokensThatArePatternsComeBack) {
  std::mt19937_64 random = SeededRandom();
  for (const char* name : {"patternkv:2", "patternkv:4:l2"}) {
    const PatternCase made = CaseOf(name, 5, random, DType::kFp16);
    Bytes source(SourceBytesOf(made.spec));
    size_t element = 0;
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t plane = 0; plane < 2; ++plane) {
        for (uint32_t token = 0; token < 140; ++token) {
          for (uint32_t channel = 0; channel < made.bank.Dim(plane); ++channel) {
            StoreValue(DType::kFp16, source.data(), element++,
                       PatternValue(made, plane, {1, 1 + head}, token % 5, channel));
          }
        }
      }
    }
    const Bytes image = EncodeWith(made, source);
    EXPECT_EQ(DecodeWith(made, image), source);
    EXPECT_EQ(ParseOrFail(image).Tile(1).form, PatternedForm(made.spec.recipe.bits));
  }
}

// Less is left of tokens near patterns, and V without the gate's leave is kivi's.
TEST(PatternkvPropertyTest, PatternsHelpWhereTheyFitAndTheGateKeepsThemOutElsewhere) {
  std::mt19937_64 random = SeededRandom();
  const PatternCase made = CaseOf("patternkv:2", 16, random);
  const auto error_of = [&](const Bytes& source, const Bytes& decoded) {
    double sum = 0;
    for (size_t i = 0; i < source.size() / 2; ++i) {
      const double distance =
          LoadValue(DType::kBf16, source.data(), i) - LoadValue(DType::kBf16, decoded.data(), i);
      sum += distance * distance;
    }
    return sum;
  };
  ImageSpec kivi = MakeSpec(DType::kBf16, kSlice, 140, 32, 80, RecipeNamed("kivi:2"));
  std::normal_distribution<float> bell(0.0F, 0.2F);
  Bytes near(SourceBytesOf(made.spec));
  size_t element = 0;
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t plane = 0; plane < 2; ++plane) {
      for (uint32_t token = 0; token < 140; ++token) {
        const auto number = static_cast<uint32_t>(random() % 16);
        for (uint32_t channel = 0; channel < made.bank.Dim(plane); ++channel) {
          StoreValue(DType::kBf16, near.data(), element++,
                     PatternValue(made, plane, {1, 1 + head}, number, channel) + bell(random));
        }
      }
    }
  }
  const auto kivi_of = [&](const Bytes& source) {
    return DecodeOrFail(BestBackend(), ParseOrFail(EncodeOrFail(BestBackend(), kivi, source)),
                        kSlice);
  };
  EXPECT_LT(error_of(near, DecodeWith(made, EncodeWith(made, near))),
            error_of(near, kivi_of(near)) / 20);
  // V far larger than any pattern: no pattern pays.
  Bytes far = RandomValues(made.spec, random);
  for (size_t i = 0; i < far.size() / 2; ++i) {
    StoreValue(DType::kBf16, far.data(), i, bell(random) * 10000.0F);
  }
  const size_t k_bytes = size_t{140} * 32 * 2;
  const size_t head_bytes = size_t{140} * 112 * 2;
  const Bytes got = DecodeWith(made, EncodeWith(made, far));
  const Bytes wanted = kivi_of(far);
  for (size_t head = 0; head < 2; ++head) {
    EXPECT_EQ(std::memcmp(got.data() + head * head_bytes + k_bytes,
                          wanted.data() + head * head_bytes + k_bytes, head_bytes - k_bytes),
              0);
  }
}

TEST(PatternkvPropertyTest, SameBytesOnEveryBackendAndAfterDemotion) {
  std::mt19937_64 random = SeededRandom();
  for (int round = 0; round < 6; ++round) {
    const bool is_nearest = round % 2 == 1;
    const DType dtype = std::array{DType::kBf16, DType::kFp16, DType::kFp32}[round % 3];
    PatternCase made =
        CaseOf(is_nearest ? "patternkv:4:l2" : "patternkv:4", 1 + random() % 40, random, dtype);
    Bytes source = RandomValues(made.spec, random);
    StoreValue(dtype, source.data(), 40, NAN);
    StoreValue(dtype, source.data(), 400, 32752.0F);
    const Bytes four = EncodeWith(made, source);
    const Bytes decoded = DecodeWith(made, four);
    for (const Backend* backend : CpuBackends()) {
      EXPECT_EQ(EncodeWith(made, source, *backend), four);
      EXPECT_EQ(DecodeWith(made, four, *backend), decoded);
    }
    Recipe recipe = made.spec.recipe;
    recipe.bits = 2;
    Bytes two(DemoteBytesMax(ParseOrFail(four), recipe));
    size_t bytes = 0;
    ASSERT_EQ(Demote(BestBackend(), ParseOrFail(four), recipe, two, &bytes), Error::kOk);
    two.resize(bytes);
    made.spec.recipe = recipe;
    EXPECT_EQ(two, EncodeWith(made, source));
  }
}

TEST(PatternkvPropertyTest, WithoutItsBankThereIsNothing) {
  std::mt19937_64 random = SeededRandom();
  const PatternCase made = CaseOf("patternkv:2", 8, random);
  const Bytes source = RandomValues(made.spec, random);
  const Bytes image = EncodeWith(made, source);
  Bytes target(image.size() + 100000);
  size_t bytes = 0;
  const PatternCase other = CaseOf("patternkv:2", 9, random);
  const PatternCase narrow = CaseOf("patternkv:2", 8, random, DType::kBf16, 16);
  for (const Bank* bank : {static_cast<const Bank*>(nullptr), &other.bank, &narrow.bank}) {
    EXPECT_EQ(Encode(BestBackend(), made.spec, source, target, &bytes, {.bank = bank}),
              Error::kNoBank);
    EXPECT_EQ(Decode(BestBackend(), ParseOrFail(image), kSlice, target, {.bank = bank}),
              Error::kNoBank);
  }
  ImageSpec spec = made.spec;
  EXPECT_EQ(SetRecipe("patternkv:2", {}, {}, &spec), Error::kNoBank);
  EXPECT_EQ(SetRecipe("patternkv:3", {.bank = &made.bank}, {}, &spec), Error::kUnknownRecipe);
  Recipe recipe;
  EXPECT_EQ(ParseRecipe("patternkv:2", &recipe), Error::kUnknownRecipe);
  EXPECT_EQ(FormatRecipe(made.spec.recipe), "patternkv:2");
}

// Any byte of a tile, with a CRC that fits: refused, or decoded in bounds.
TEST(PatternkvPropertyTest, HostileTilesAreSafe) {
  std::mt19937_64 random = SeededRandom();
  const PatternCase made = CaseOf("patternkv:2", 5, random);
  const Bytes image = EncodeWith(made, RandomValues(made.spec, random));
  const ImageView view = ParseOrFail(image);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    const auto tile = static_cast<uint32_t>(random() % view.tile_count());
    const TileEntry entry = view.Tile(tile);
    Bytes changed = image;
    // The last bytes are those of pattern numbers and gates.
    const size_t back =
        1 + random() % std::min<size_t>(entry.bytes, round % 2 == 0 ? 120 : 1000000);
    changed[entry.offset + entry.bytes - back] ^= static_cast<std::byte>(1 + random() % 255);
    FixTileCrc(changed, tile);
    ImageView hostile;
    ASSERT_EQ(ParseImage(changed, &hostile), Error::kOk);
    refused += VerifyTiles(hostile) == Error::kOk ? 0 : 1;
    Bytes target(SourceBytesOf(made.spec));
    EXPECT_EQ(Decode(BestBackend(), hostile, kSlice, target, {.bank = &made.bank}), Error::kOk);
  }
  EXPECT_GT(refused, 50);
}

TEST(BankTest, EveryByteThatIsWrongIsRefused) {
  std::mt19937_64 random = SeededRandom();
  const Bytes bytes = BankBytes({2, 3, 5, 7, 3}, random);
  Bank bank;
  ASSERT_EQ(ParseBank(bytes, &bank), Error::kOk);
  EXPECT_EQ(bank.patterns(), 5U);
  for (size_t i = 0; i < 64; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = bytes;
      changed[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_NE(ParseBank(changed, &bank), Error::kOk) << i << " " << bit;
    }
  }
  for (size_t count = 0; count < bytes.size(); ++count) {
    EXPECT_EQ(ParseBank(std::span(bytes).first(count), &bank), Error::kTruncated);
  }
  for (const uint16_t value : {0x7C00, 0xFE00, 0x7800, 0xFBFF}) {  // infinite, NaN, 32768, -65504
    Bytes changed = bytes;
    Store(changed.data() + 64 + 2 * (random() % 100), value);
    EXPECT_EQ(ParseBank(changed, &bank), Error::kBadBank);
  }
  Bytes changed = bytes;
  changed.back() = std::byte{1};
  EXPECT_EQ(ParseBank(changed, &bank), Error::kBadPadding);
}

}  // namespace
}  // namespace cairn::codecs
