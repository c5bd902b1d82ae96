// SPDX-License-Identifier: Apache-2.0
// Profiles out of samples: sizes that rates promise, and samples that nothing can be made of.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "codecs/backend/backends.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "codecs/mine/profile_miner.h"
#include "gtest/gtest.h"
#include "tests/support/bf16_error.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

using Bytes = std::vector<std::byte>;
using ValueAt = std::function<float(uint32_t plane, uint64_t position, uint32_t channel)>;

MineRequest Request(uint32_t k_dim = 64, uint32_t v_dim = 64) {
  MineRequest request;
  request.group.tile = {v_dim == 0 ? GroupKind::kLatent : GroupKind::kKv, DType::kBf16, k_dim,
                        v_dim};
  request.group.layers = 2;
  request.group.heads = v_dim == 0 ? 1 : 2;
  request.rates = {23, 30, 43};
  return request;
}

// Blocks of one chain, as payloads of the whole group.
std::vector<Bytes> Blocks(const MineRequest& request, uint32_t count, uint32_t tokens,
                          const ValueAt& value_at) {
  const GroupShape& group = request.group;
  std::vector<Bytes> blocks;
  for (uint32_t block = 0; block < count; ++block) {
    Bytes& bytes = blocks.emplace_back();
    for (uint32_t i = 0; i < Tiling(group.tile.kind, WholeOf(group), {}).count(); ++i) {
      const uint32_t plane = i % PlaneCount(group.tile.kind);
      const uint32_t dim = PlaneDim(group.tile, PlaneAt(group.tile.kind, plane));
      for (uint32_t j = 0; j < tokens * dim; ++j) {
        const uint16_t bits =
            FloatToBf16(value_at(plane, uint64_t{block} * tokens + j / dim, j % dim));
        bytes.push_back(static_cast<std::byte>(bits & 0xFF));
        bytes.push_back(static_cast<std::byte>(bits >> 8));
      }
    }
  }
  return blocks;
}

// The tiles of a block, strip by strip.
void Show(const MineRequest& request, const std::vector<Bytes>& blocks, uint32_t block,
          uint32_t tokens, ProfileMiner* miner) {
  const GroupShape& group = request.group;
  const uint32_t planes = PlaneCount(group.tile.kind);
  std::span<const std::byte> rest = blocks[block];
  for (uint32_t i = 0; i < Tiling(group.tile.kind, WholeOf(group), {}).count(); ++i) {
    const uint64_t row_bytes = TileBytes(group.tile, PlaneAt(group.tile.kind, i % planes), 1);
    for (uint32_t first = 0; first < tokens; first += kStripTokens) {
      const uint32_t count = std::min(kStripTokens, tokens - first);
      miner->Add({.at = {i / planes / group.heads, i / planes % group.heads},
                  .plane = i % planes,
                  .part = block % kSampleParts,
                  .first_position = uint64_t{block} * tokens + first,
                  .tokens = count,
                  .source = rest.first(count * row_bytes)});
      rest = rest.subspan(count * row_bytes);
    }
  }
}

Bytes Mined(const MineRequest& request, const std::vector<Bytes>& blocks, uint32_t tokens) {
  EXPECT_EQ(Validate(request), Error::kOk);
  ProfileMiner miner(request);
  while (miner.NeedsPass()) {
    for (uint32_t block = 0; block < blocks.size(); ++block) {
      Show(request, blocks, block, tokens, &miner);
    }
    miner.EndPass();
  }
  Bytes bytes;
  EXPECT_EQ(miner.Write(&bytes), Error::kOk);
  return bytes;
}

class MineTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ActiveBackend(&backend_), Error::kOk); }
  float Bell() { return std::normal_distribution<float>()(random_); }

  struct Coded {
    double bits = 0;   // an element
    double error = 0;  // root of the mean square, of K of the first head
  };
  Coded Code(const MineRequest& request, const std::vector<Bytes>& blocks, uint32_t tokens,
             const Profile& profile, uint32_t bits) {
    Coded coded;
    double squares = 0;
    for (uint32_t block = 0; block < blocks.size(); ++block) {
      ImageSpec spec;
      spec.tile = request.group.tile;
      spec.slice = WholeOf(request.group);
      spec.tokens = static_cast<uint16_t>(tokens);
      spec.first_position = uint64_t{block} * tokens;
      EXPECT_EQ(SetCairn(profile, {}, bits, 0, &spec), Error::kOk);
      uint64_t bytes_max = 0;
      EXPECT_EQ(MaxImageBytes(spec, &bytes_max), Error::kOk);
      Bytes image(bytes_max);
      size_t image_bytes = 0;
      EXPECT_EQ(Encode(*backend_, spec, blocks[block], image, &image_bytes, {.profile = &profile}),
                Error::kOk);
      coded.bits += static_cast<double>(image_bytes) * 8;
      ImageView view;
      EXPECT_EQ(ParseImage(image, &view), Error::kOk);
      Bytes decoded(blocks[block].size());
      EXPECT_EQ(Decode(*backend_, view, spec.slice, decoded, {.profile = &profile}), Error::kOk);
      // K of the first head.
      const size_t k_bytes = size_t{tokens} * request.group.tile.k_dim * 2;
      squares += std::pow(
          Bf16Error(std::span(decoded).first(k_bytes), std::span(blocks[block]).first(k_bytes)), 2);
    }
    const auto blocks_count = static_cast<double>(blocks.size());
    coded.bits /= blocks_count * static_cast<double>(blocks[0].size()) / 2;
    coded.error = std::sqrt(squares / blocks_count);
    return coded;
  }

  // Whatever it is of, it is a profile, and codes the sample to something that decodes.
  void ExpectProfile(const MineRequest& request, const ValueAt& value_at, uint32_t tokens = 128) {
    const std::vector<Bytes> blocks = Blocks(request, 4, tokens, value_at);
    const Bytes bytes = Mined(request, blocks, tokens);
    Profile profile;
    ASSERT_EQ(ParseProfile(bytes, &profile), Error::kOk);
    EXPECT_TRUE(profile.Fits(request.group.tile, WholeOf(request.group)));
    Code(request, blocks, tokens, profile, 23);
  }

  const Backend* backend_ = nullptr;
  std::mt19937_64 random_ = SeededRandom();
};

TEST_F(MineTest, RatesAreWhatTheSampleTakes) {
  MineRequest request = Request();
  request.group.rope = {RopeKind::kHalf, 64, 10000};
  for (uint32_t i = 0; i < 64; i += 2) {
    request.turns.push_back(TurnsOf(std::pow(10000.0, -static_cast<double>(i) / 64)));
  }
  // Spreads of several octaves, heavy tails, and tokens of small V.
  const std::vector<Bytes> blocks =
      Blocks(request, 8, 128, [this](uint32_t plane, uint64_t position, uint32_t channel) {
        const float value = std::ldexp(Bell(), static_cast<int>(channel % 7) - 3);
        if (plane == 1 && position % 128 == 3) return value / 64;
        return channel == 5 ? value * Bell() + 2 : value;
      });
  const Bytes bytes = Mined(request, blocks, 128);
  Profile profile;
  ASSERT_EQ(ParseProfile(bytes, &profile), Error::kOk);
  double last_error = std::numeric_limits<double>::infinity();
  for (const uint32_t bits : request.rates) {
    const Coded coded = Code(request, blocks, 128, profile, bits);
    EXPECT_NEAR(coded.bits, bits / 10.0, 0.03 * bits / 10.0);
    // A bit more halves the error.
    EXPECT_LT(coded.error, 0.75 * last_error);
    last_error = coded.error;
  }
  // What uniform steps of the layer's spread come to at four bits.
  EXPECT_LT(last_error, 0.3);
}

TEST_F(MineTest, VIsCoarserThanKWhereQueriesAreKnown) {
  MineRequest request = Request();
  const std::vector<Bytes> blocks =
      Blocks(request, 4, 128, [this](uint32_t, uint64_t, uint32_t) { return Bell(); });
  Profile profiles[2];
  Bytes bytes[2];
  for (int i = 0; i < 2; ++i) {
    bytes[i] = Mined(request, blocks, 128);
    ASSERT_EQ(ParseProfile(bytes[i], &profiles[i]), Error::kOk);
    request.query_squares.assign(256, 1);
  }
  const auto finer = [&](uint32_t plane) {
    return profiles[0].Channel(plane, {1, 1}, 5).step_log -
           profiles[1].Channel(plane, {1, 1}, 5).step_log;
  };
  // A tenth of the loss, by the power -0.35, half of it to each plane.
  const double half = 0.5 * 0.35 * std::log2(1 / 0.3) * 256;
  EXPECT_NEAR(finer(0), half, 1.5);
  EXPECT_NEAR(finer(1), -half, 1.5);
  const double bits = Code(request, blocks, 128, profiles[1], 30).bits;
  EXPECT_NEAR(bits, 3.0, 0.09);
}

TEST_F(MineTest, AnySampleMakesAProfile) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto bell = [this](uint32_t, uint64_t, uint32_t) { return Bell(); };
  ExpectProfile(Request(), [](uint32_t, uint64_t, uint32_t) { return 0.0F; });
  ExpectProfile(Request(), [](uint32_t, uint64_t, uint32_t channel) { return 3.3F + channel; });
  ExpectProfile(Request(), [](uint32_t, uint64_t, uint32_t) { return std::nanf(""); });
  ExpectProfile(Request(), [](uint32_t, uint64_t, uint32_t) { return 3e38F; });
  ExpectProfile(Request(), [](uint32_t, uint64_t, uint32_t) { return 1e-38F; });
  ExpectProfile(Request(), [this](uint32_t, uint64_t position, uint32_t channel) {
    return position % 9 == 5 && channel == 3 ? -kInfinity : 30000 * Bell();
  });
  ExpectProfile(Request(), bell, 1);
  ExpectProfile(Request(), bell, 300);
  ExpectProfile(Request(1, 3), bell);
  ExpectProfile(Request(96, 0), bell);
  MineRequest weighted = Request();
  weighted.query_squares.assign(256, 0);
  weighted.query_squares[7] = 1e30F;
  ExpectProfile(weighted, bell);
}

TEST_F(MineTest, ASampleThatLacksAHeadMakesNone) {
  const MineRequest request = Request();
  ProfileMiner miner(request);
  while (miner.NeedsPass()) miner.EndPass();
  Bytes bytes;
  EXPECT_EQ(miner.Write(&bytes), Error::kIncomplete);
  EXPECT_TRUE(bytes.empty());
}

TEST_F(MineTest, RequestsAreChecked) {
  const auto refused = [](const std::function<void(MineRequest*)>& change) {
    MineRequest request = Request();
    change(&request);
    return Validate(request) == Error::kInvalidShape;
  };
  EXPECT_FALSE(refused([](MineRequest*) {}));
  EXPECT_TRUE(refused([](MineRequest* request) { request->rates.clear(); }));
  EXPECT_TRUE(refused([](MineRequest* request) { request->rates = {30, 23}; }));
  EXPECT_TRUE(refused([](MineRequest* request) { request->rates = {9}; }));
  EXPECT_TRUE(refused([](MineRequest* request) { request->turns.resize(3); }));
  EXPECT_TRUE(refused([](MineRequest* request) { request->group.tile.k_dim = 2048; }));
  EXPECT_TRUE(refused([](MineRequest* request) { request->query_squares.resize(3); }));
  MineRequest large = Request(1024, 1024);
  large.group.layers = 512;
  large.group.heads = 8;
  EXPECT_EQ(Validate(large), Error::kTooLarge);
  EXPECT_TRUE(refused([](MineRequest* request) {
    request->query_squares.assign(256, 1);
    request->query_squares[3] = std::nanf("");
  }));
}

TEST_F(MineTest, TurnsAreWholeAnglesModuloATurn) {
  EXPECT_EQ(TurnsOf(0), 0u);
  EXPECT_EQ(TurnsOf(3.141592653589793), uint64_t{1} << 63);
  EXPECT_NEAR(static_cast<double>(TurnsOf(1)), std::ldexp(1 / 6.283185307179586, 64), 1e4);
  EXPECT_NEAR(static_cast<double>(TurnsOf(7)), std::ldexp(7 / 6.283185307179586 - 1, 64), 1e4);
  EXPECT_NEAR(static_cast<double>(TurnsOf(-1)), static_cast<double>(~TurnsOf(1)), 1e4);
}

// Every strip of the blocks, by its tile and its number in it.
std::vector<MinedStrip> StripsOf(const MineRequest& request, const std::vector<Bytes>& blocks,
                                 uint32_t tokens) {
  const GroupShape& group = request.group;
  const uint32_t planes = PlaneCount(group.tile.kind);
  std::vector<MinedStrip> strips;
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    std::span<const std::byte> rest = blocks[block];
    for (uint32_t i = 0; i < Tiling(group.tile.kind, WholeOf(group), {}).count(); ++i) {
      const uint64_t row_bytes = TileBytes(group.tile, PlaneAt(group.tile.kind, i % planes), 1);
      for (uint32_t first = 0; first < tokens; first += kStripTokens) {
        const uint32_t count = std::min(kStripTokens, tokens - first);
        strips.push_back({.at = {i / planes / group.heads, i / planes % group.heads},
                          .plane = i % planes,
                          .part = block % kSampleParts,
                          .first_position = uint64_t{block} * tokens + first,
                          .tokens = count,
                          .source = rest.first(count * row_bytes)});
        rest = rest.subspan(count * row_bytes);
      }
    }
  }
  return strips;
}

TEST_F(MineTest, TheProfileIsTheSameInWhateverOrderTheSampleComes) {
  const MineRequest request = Request(32, 16);
  const auto blocks = Blocks(request, 6, 160, [&](uint32_t plane, uint64_t, uint32_t channel) {
    // Of very different sizes, so that sums of floats would depend on their order.
    return Bell() * std::exp2(static_cast<float>(channel % 12) - 6) + (plane == 0 ? 100.0F : 0.0F);
  });
  const Bytes expected = Mined(request, blocks, 160);
  std::vector<MinedStrip> strips = StripsOf(request, blocks, 160);
  for (int i = 0; i < 4; ++i) {
    ProfileMiner miner(request);
    while (miner.NeedsPass()) {
      std::ranges::shuffle(strips, random_);
      for (const MinedStrip& strip : strips) miner.Add(strip);
      miner.EndPass();
    }
    Bytes bytes;
    ASSERT_EQ(miner.Write(&bytes), Error::kOk);
    EXPECT_EQ(bytes, expected);
  }
}

}  // namespace
}  // namespace cairn::codecs
