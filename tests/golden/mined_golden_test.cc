// SPDX-License-Identifier: Apache-2.0
// The miners against cairn.profile and cairn.bank, on the sample of generate_mined.py.
#include <cmath>
#include <cstring>

#include "codecs/mine/bank_miner.h"
#include "codecs/mine/profile_miner.h"
#include "tests/golden/golden.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 2, kDim = 16, kTexts = 4, kTokens = 256;

// Of sources.py.
std::vector<double> Noise(uint32_t seed, size_t count) {
  uint32_t state = seed * 2654435761U + 12345U;
  std::vector<double> bells(count);
  for (double& bell : bells) {
    double total = -131070;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525U + 1013904223U;
      total += state >> 16;
    }
    bell = total / 32768;
  }
  return bells;
}

// [layers, heads, tokens, dim]
std::vector<float> Sample(uint32_t text, uint32_t plane) {
  const auto bells = Noise(2 * text + plane, size_t{kLayers} * kHeads * kTokens * kDim);
  std::vector<float> values(bells.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto channel = static_cast<uint32_t>(i % kDim);
    values[i] = static_cast<float>(std::ldexp(bells[i], -static_cast<int>(channel % 4)) +
                                   (channel % 5) / 4.0);
  }
  return values;
}

MineRequest Request() {
  MineRequest request;
  request.group.tile = {GroupKind::kKv, DType::kFp32, kDim, kDim};
  request.group.layers = kLayers;
  request.group.heads = kHeads;
  request.group.rope = {RopeKind::kHalf, kDim, 10000};
  for (uint32_t i = 0; i < kDim; i += 2) {
    request.turns.push_back(TurnsOf(std::pow(10000.0, -static_cast<double>(i) / kDim)));
  }
  request.rates = {22, 30, 43};
  for (uint32_t i = 0; i < kLayers * kHeads * kDim; ++i) {
    request.query_squares.push_back(static_cast<float>(1 + i % 7));
  }
  return request;
}

void Show(std::span<const float> values, uint32_t text, uint32_t plane, ProfileMiner* miner) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  constexpr size_t kStripBytes = sizeof(float) * kStripTokens * kDim;
  for (uint32_t i = 0; i < bytes.size() / kStripBytes; ++i) {
    const uint32_t head = i / (kTokens / kStripTokens);
    miner->Add({.at = {head / kHeads, head % kHeads},
                .plane = plane,
                .part = text,
                .first_position = i % (kTokens / kStripTokens) * kStripTokens,
                .tokens = kStripTokens,
                .source = bytes.subspan(i * kStripBytes, kStripBytes)});
  }
}

TEST(MinedGoldenTest, TheMinerMakesWhatPythonMakes) {
  const Bytes golden = ReadFile(kFolder / "mined" / "bells.profile");
  Profile expected;
  ASSERT_EQ(ParseProfile(golden, &expected), Error::kOk);
  const MineRequest request = Request();
  ASSERT_EQ(Validate(request), Error::kOk);
  std::vector<float> samples[kTexts][2];
  for (uint32_t text = 0; text < kTexts; ++text) {
    for (uint32_t plane = 0; plane < 2; ++plane) samples[text][plane] = Sample(text, plane);
  }
  const Bytes bytes = InAnyFloat([&] {
    ProfileMiner miner(request);
    int passes = 0;
    for (; miner.NeedsPass(); ++passes) {
      for (uint32_t text = 0; text < kTexts; ++text) {
        for (uint32_t plane = 0; plane < 2; ++plane) {
          Show(samples[text][plane], text, plane, &miner);
        }
      }
      miner.EndPass();
    }
    EXPECT_EQ(passes, 5);
    Bytes written;
    EXPECT_EQ(miner.Write(&written), Error::kOk);
    return written;
  });
  ASSERT_EQ(bytes.size(), golden.size());
  Profile mined;
  ASSERT_EQ(ParseProfile(bytes, &mined), Error::kOk);
  ASSERT_EQ(mined.PairCount(), expected.PairCount());
  for (uint32_t pair = 0; pair < mined.PairCount(); ++pair) {
    EXPECT_EQ(mined.PairTurns(pair), expected.PairTurns(pair));
    EXPECT_EQ(mined.PairFirst(pair), expected.PairFirst(pair));
    EXPECT_EQ(mined.PairSecond(pair), expected.PairSecond(pair));
  }
  for (const uint32_t bits : {22U, 30U, 43U}) {
    EXPECT_NEAR(*mined.MultiplierOf(bits), *expected.MultiplierOf(bits), 2) << bits;
  }
  for (uint32_t plane = 0; plane < 2; ++plane) {
    for (uint32_t table = 0; table < kProfileTables; ++table) {
      for (uint32_t i = 0; i < kCoderSymbols; ++i) {
        EXPECT_NEAR(mined.Table(plane, table).frequency[i],
                    expected.Table(plane, table).frequency[i], 1)
            << plane << " " << table << " " << i;
      }
      for (uint32_t i = 0; i < 2; ++i) {
        EXPECT_NEAR(mined.Offsets(plane)[table][i], expected.Offsets(plane)[table][i], 2 / 256.0);
      }
    }
    for (uint32_t i = 0; i < kLayers * kHeads * kDim; ++i) {
      const ProfileHead at = {i / (kHeads * kDim), i / kDim % kHeads};
      const ProfileChannel a = mined.Channel(plane, at, i % kDim);
      const ProfileChannel b = expected.Channel(plane, at, i % kDim);
      EXPECT_NEAR(a.mean, b.mean, 1e-5) << plane << " " << i;
      EXPECT_NEAR(a.step_log, b.step_log, 1) << plane << " " << i;
      EXPECT_NEAR(a.spread_log, b.spread_log, 1) << plane << " " << i;
    }
  }
}

TEST(MinedGoldenTest, BanksAreThoseOfPython) {
  // As a payload: of each head all texts' tokens, K then V.
  constexpr uint32_t kElements = kTokens * kDim;
  std::vector<float> sample;
  for (uint32_t head = 0; head < kLayers * kHeads; ++head) {
    for (uint32_t plane = 0; plane < 2; ++plane) {
      for (uint32_t text = 0; text < kTexts; ++text) {
        const std::vector<float> values = Sample(text, plane);
        const auto first = values.begin() + head * kElements;
        sample.insert(sample.end(), first, first + kElements);
      }
    }
  }
  const int lines = ForEachLine("mined", [&](const std::string&, std::istringstream& line) {
    BankShape shape{.layers = kLayers, .heads = kHeads, .k_dim = kDim, .v_dim = kDim};
    size_t bytes = 0;
    std::string crc;
    ASSERT_TRUE(line >> shape.patterns >> bytes >> crc);
    const Bytes mined = InAnyFloat([&] {
      Bytes bank;
      EXPECT_EQ(
          MineBank(shape, DType::kFp32, kTexts * kTokens, std::as_bytes(std::span(sample)), &bank),
          Error::kOk);
      return bank;
    });
    EXPECT_EQ(mined.size(), bytes);
    EXPECT_EQ(Crc32c(mined), Hex(crc)) << shape.patterns;
  });
  EXPECT_EQ(lines, 4);
}

}  // namespace
}  // namespace cairn::codecs
