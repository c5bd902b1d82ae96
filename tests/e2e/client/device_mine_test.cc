// SPDX-License-Identifier: Apache-2.0
// Banks and profiles mined from an engine's cache on a device, which is emulated: those of the CPU,
// byte for byte.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/mine.h"
#include "codecs/mine/bank_miner.h"
#include "codecs/mine/profile_miner.h"
#include "proto/mine_request.h"
#include "tests/e2e/client/device_fixture.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr uint32_t kTextKeys = 3;
constexpr size_t kSkipped = 4;  // of the engine's blocks

// Consecutive tokens of the two texts, by the engine's blocks.
struct BlockRun {
  size_t block, count;
  uint64_t first_position;
  uint32_t part;
};

class DeviceMineTest : public DeviceTest {
 protected:
  void OpenMiner(const std::string& recipe) {
    client_ = Connect(Options());
    proto::SpaceIdentity identity = ToyIdentity(kBf16, Model());
    identity.groups[0].rope = {proto::Rope::Kind::kHalf, kDim, 10000, {}};
    space_ = cairn::ClientTest::Open(client_, identity, recipe);
    ASSERT_TRUE(client_ && space_);
    for (uint32_t i = 0; i < kKeys * kPagesPerKey; ++i) {
      table_.push_back((i * 5 + 3) % kPages);
    }
    cache_ = std::make_unique<EngineCache>(device_);
    Fill(*cache_);
    blocks_.assign(table_.begin(), table_.begin() + kTextKeys * kPagesPerKey);
    blocks_[kSkipped] = kBlockSkipped;
    const std::span<const int64_t> all(blocks_);
    texts_ = {{.blocks = all.first(3)}, {.blocks = all.subspan(3), .first_position = 32}};
    miner_ = DeviceMiner::Make(*space_, device_);
  }
  void TearDown() override {
    miner_.reset();
    cache_.reset();
    DeviceTest::TearDown();
  }
  DeviceSample Sample() {
    return {.cache = cache_->Describe(), .texts = texts_, .stream = &stream_, .timeout = kPatience};
  }
  // The rows of a tile in some of the engine's blocks.
  Bytes Rows(size_t tile, size_t block, size_t count) const {
    Bytes rows;
    for (size_t i = block; i < block + count; ++i) {
      const Bytes source = SourceOf(static_cast<uint32_t>(i / kPagesPerKey));
      const auto first =
          source.begin() +
          static_cast<long>((tile * kTokens + i % kPagesPerKey * kPageTokens) * kRow);
      rows.insert(rows.end(), first, first + static_cast<long>(kPageTokens * kRow));
    }
    return rows;
  }

  Bytes ProfileOnHost(codecs::MineRequest request, std::span<const BlockRun> runs) const {
    codecs::ProfileMiner miner(std::move(request));
    for (; miner.NeedsPass(); miner.EndPass()) {
      for (size_t tile = 0; tile < size_t{kLayers} * kHeads * 2; ++tile) {
        const auto head = static_cast<uint32_t>(tile / 2);
        for (const BlockRun& run : runs) {
          const Bytes rows = Rows(tile, run.block, run.count);
          miner.Add({.at = {head / kHeads, head % kHeads},
                     .plane = static_cast<uint32_t>(tile % 2),
                     .part = run.part,
                     .first_position = run.first_position,
                     .tokens = static_cast<uint32_t>(run.count) * kPageTokens,
                     .source = rows});
        }
      }
    }
    Bytes profile;
    EXPECT_EQ(miner.Write(&profile), codecs::Error::kOk);
    return profile;
  }

  std::unique_ptr<EngineCache> cache_;
  std::vector<int64_t> blocks_;
  std::vector<DeviceText> texts_;
  std::unique_ptr<DeviceMiner> miner_;
};

TEST_F(DeviceMineTest, ABankIsTheHosts) {
  ASSERT_NO_FATAL_FAILURE(OpenMiner("patternkv:2"));
  // Without the block that has the first tokens of a chain.
  Bytes source;
  for (size_t tile = 0; tile < size_t{kLayers} * kHeads * 2; ++tile) {
    for (const auto& [block, count] : {std::pair{1, 3}, std::pair{5, 1}}) {
      const Bytes rows = Rows(tile, block, count);
      source.insert(source.end(), rows.begin(), rows.end());
    }
  }
  Bytes expected;
  ASSERT_EQ(
      codecs::MineBank({kLayers, kHeads, 5, kDim, kDim}, kBf16, 4 * kPageTokens, source, &expected),
      codecs::Error::kOk);
  const absl::StatusOr<Bytes> bank = miner_->MineBank(Sample(), 5);
  ASSERT_TRUE(bank.ok()) << bank.status();
  EXPECT_EQ(*bank, expected);
  EXPECT_TRUE(space_->PutSideObject(0, SideObjectKind::kBank, *bank, kPatience).ok());
}

TEST_F(DeviceMineTest, AProfileIsTheHosts) {
  ASSERT_NO_FATAL_FAILURE(OpenMiner("cairn:3.0"));
  const BlockRun runs[] = {{0, 2, 0, 0}, {2, 1, 16, 1}, {3, 1, 32, 2}, {5, 1, 48, 3}};
  const uint16_t rates[] = {30};
  std::vector<float> squares(size_t{kLayers} * kHeads * kDim, 1.0F);
  squares[7] = 40;
  codecs::MineRequest request = proto::MineRequestOf(space_->identity(), 0, {});
  request.rates = {30};
  request.query_squares = squares;
  const absl::StatusOr<Bytes> profile =
      miner_->MineProfile(Sample(), {.rates = rates, .query_squares = squares});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(*profile, ProfileOnHost(request, runs));
  EXPECT_TRUE(space_->PutSideObject(0, SideObjectKind::kProfile, *profile, kPatience).ok());
}

// One miner makes one after another, in memory that grows.
TEST_F(DeviceMineTest, RatesAreThoseOfTheSpaceWhereNoneAreAskedFor) {
  ASSERT_NO_FATAL_FAILURE(OpenMiner("cairn:6.1"));
  texts_ = {{.blocks = std::span<const int64_t>(blocks_).first(1), .first_position = 100}};
  EXPECT_TRUE(miner_->MineBank(Sample(), 2).ok());
  const absl::StatusOr<Bytes> profile = miner_->MineProfile(Sample());
  ASSERT_TRUE(profile.ok()) << profile.status();
  codecs::Profile parsed;
  ASSERT_EQ(codecs::ParseProfile(*profile, &parsed), codecs::Error::kOk);
  EXPECT_EQ(parsed.PairCount(), kDim / 2);
  for (const uint32_t bits : {23U, 30U, 43U, 61U}) {
    EXPECT_TRUE(parsed.MultiplierOf(bits).has_value()) << bits;
  }
  EXPECT_TRUE(miner_->MineBank(Sample(), 2).ok());
}

TEST_F(DeviceMineTest, WhatIsWrongIsNamed) {
  ASSERT_NO_FATAL_FAILURE(OpenMiner("cairn:2.3"));
  const auto refused = [&](const std::function<void(DeviceSample*)>& change) {
    DeviceSample sample = Sample();
    change(&sample);
    const absl::Status bank = miner_->MineBank(sample, 4).status();
    const absl::Status profile = miner_->MineProfile(sample).status();
    EXPECT_TRUE(absl::IsInvalidArgument(bank)) << bank;
    EXPECT_EQ(bank.message(), profile.message());
    return std::string(bank.message());
  };
  EXPECT_THAT(refused([](DeviceSample* s) { s->stream = nullptr; }), HasSubstr("stream is null"));
  EXPECT_THAT(refused([](DeviceSample* s) { s->group = 1; }), HasSubstr("group"));
  EXPECT_THAT(refused([](DeviceSample* s) { s->cache.block_count = 0; }),
              HasSubstr("cache.block_count is 0"));
  EXPECT_THAT(refused([](DeviceSample* s) { s->cache.tokens_per_block = 0; }),
              HasSubstr("cache.tokens_per_block is 0"));
  EXPECT_THAT(refused([](DeviceSample* s) { s->texts = {}; }),
              HasSubstr("texts have 0 tokens, expected 1 to 65535"));
  EXPECT_THAT(refused([](DeviceSample* s) { s->cache.tokens_per_block = 65535; }),
              HasSubstr("tokens, expected 1 to 65535"));
  EXPECT_THAT(refused([](DeviceSample* s) { s->cache.v.layer_bytes -= 1; }), HasSubstr("cache: "));
  blocks_[2] = kPages;
  EXPECT_THAT(refused([](DeviceSample*) {}), HasSubstr("texts[0]: blocks[2] is 64, expected -1"));
  blocks_[2] = 0;
  const auto bank_with = [&](uint32_t patterns) {
    return std::string(miner_->MineBank(Sample(), patterns).status().message());
  };
  EXPECT_THAT(bank_with(0), HasSubstr("patterns is 0, expected 1 to 256"));
  EXPECT_THAT(bank_with(257), HasSubstr("patterns is 257"));
  const auto profile_with = [&](const ProfileOptions& options) {
    return std::string(miner_->MineProfile(Sample(), options).status().message());
  };
  const uint16_t same[] = {23, 23};
  const uint16_t low[] = {9};
  EXPECT_THAT(profile_with({.rates = same}), HasSubstr("rates[1] is 23, expected 24 to 160"));
  EXPECT_THAT(profile_with({.rates = low}), HasSubstr("rates[0] is 9, expected 10 to 160"));
  std::vector<float> squares(3);
  EXPECT_THAT(profile_with({.query_squares = squares}), HasSubstr("query_squares has 3 numbers"));
  squares.resize(size_t{kLayers} * kHeads * kDim);
  squares[5] = -1;
  EXPECT_THAT(profile_with({.query_squares = squares}), HasSubstr("query_squares[5] is -1"));
  // Nothing is left: but for a first block, or of a text that is skipped.
  texts_ = {{.blocks = std::span<const int64_t>(blocks_).first(1)}};
  EXPECT_THAT(bank_with(4), HasSubstr("texts have no token to mine from"));
  texts_[0].blocks = std::span<const int64_t>(blocks_).subspan(kSkipped, 1);
  EXPECT_THAT(profile_with({}), HasSubstr("all of their blocks are skipped"));
}

TEST_F(DeviceMineTest, ALateAFullOrALostDeviceSaysSo) {
  ASSERT_NO_FATAL_FAILURE(OpenMiner("cairn:2.3"));
  EmulatedDevice device;
  kernels::Stream const stream = device.OpenStream();
  EngineCache cache(device);
  Fill(cache);
  {
    const auto miner = DeviceMiner::Make(*space_, device);
    DeviceSample sample = Sample();
    sample.cache = cache.Describe();
    sample.stream = stream;
    device.SetHung(true);
    sample.timeout = absl::Milliseconds(20);
    EXPECT_TRUE(absl::IsDeadlineExceeded(miner->MineBank(sample, 2).status()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(miner->MineProfile(sample).status()));
    device.SetHung(false);
    sample.timeout = kPatience;
    EXPECT_EQ(miner->MineBank(sample, 2).status(), absl::OkStatus());
    device.SetFull();
    const auto poor = DeviceMiner::Make(*space_, device);
    EXPECT_TRUE(absl::IsResourceExhausted(poor->MineBank(sample, 2).status()));
    device.DieAfter(1);
    EXPECT_TRUE(absl::IsUnavailable(miner->MineBank(sample, 2).status()));
    EXPECT_TRUE(absl::IsUnavailable(miner->MineProfile(sample).status()));
    const auto late = DeviceMiner::Make(*space_, device);
    EXPECT_TRUE(absl::IsUnavailable(late->MineBank(sample, 2).status())) << "no memory is had";
  }
  EXPECT_EQ(device.allocations(), 1) << "the cache";
  device.CloseStream(stream);
}

}  // namespace
}  // namespace cairn
