// SPDX-License-Identifier: Apache-2.0
// What a device adds up of a sample is what the CPU does, and the profile that is made of it is the
// CPU's, byte for byte.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/mine_pass_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::Content;
using codecs::DType;
using codecs::Error;
using codecs::GroupKind;
using codecs::RopeKind;
using codecs::TileShape;

class MinePassTest : public MinePassFixture {};

TEST_F(MinePassTest, ProfilesOfEveryShapeAndDType) {
  const TileShape shapes[] = {Kv(DType::kBf16, 16, 16),
                              Kv(DType::kFp16, 5, 18),
                              Kv(DType::kFp32, 9, 1),
                              {GroupKind::kLatent, DType::kFp32, 12, 0}};
  const RopeKind ropes[] = {RopeKind::kHalf, RopeKind::kInterleaved, RopeKind::kHalf,
                            RopeKind::kNone};
  for (size_t i = 0; i < std::size(shapes); ++i) {
    for (const uint16_t tokens : {1, 5, 33, 129}) {
      SCOPED_TRACE(testing::Message() << "shape " << i << ", " << tokens << " tokens");
      CompareWithHost(MakeSample(shapes[i], tokens, Content::kBell, ropes[i]));
    }
  }
  EXPECT_EQ(compared_, 16U);
}

TEST_F(MinePassTest, SamplesOfEveryContent) {
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    for (const DType dtype : {DType::kBf16, DType::kFp32}) {
      SCOPED_TRACE(testing::Message() << "content " << content);
      CompareWithHost(
          MakeSample(Kv(dtype, 6, 4), 40, static_cast<Content>(content), RopeKind::kHalf));
    }
  }
  EXPECT_EQ(compared_, 2 * static_cast<uint32_t>(Content::kCount));
}

// More than a block counts at once, of very different spreads: all tables, and low bits.
TEST_F(MinePassTest, ManyRatesAndSpreads) {
  Sample sample = MakeSample(Kv(DType::kFp32, 8, 10), 70, Content::kBell);
  sample.request.rates = {11, 40, 90};
  sample.request.query_squares.assign(size_t{2} * 2 * 8, 1.0F);
  sample.request.query_squares[3] = 1e6F;
  ForEachRow(&sample, [](uint32_t, uint32_t, std::span<std::byte> row) {
    for (size_t c = 0; c < row.size() / sizeof(float); ++c) {
      const auto value = codecs::Load<float>(row.data() + 4 * c);
      codecs::Store(row.data() + 4 * c, std::ldexp(value, static_cast<int>(2 * c) - 8));
    }
  });
  CompareWithHost(sample);
  EXPECT_EQ(compared_, 1U);
}

// Texts behind one another, of which the first tokens are left out; between them what no kernel may
// look at.
TEST_F(MinePassTest, RunsAtTheirPositions) {
  Sample sample = MakeSample(Kv(DType::kBf16, 8, 8), 200, Content::kBell, RopeKind::kHalf);
  sample.runs = {{.token_first = 0, .tokens = 40, .first_position = 0, .part = 2},
                 {.token_first = 48, .tokens = 9, .first_position = 3, .part = 0},
                 {.token_first = 64, .tokens = 131, .first_position = 1ULL << 40, .part = 3},
                 {.token_first = 195, .tokens = 1, .first_position = 2, .part = 1}};
  constexpr uint32_t kPageTokens = 8;
  const ImageOf& image = sample.image;
  PagedCache cache(image.spec, image.spec.slice, {.page_tokens = kPageTokens}, random_);
  cache.Fill(image.source);
  cache.pages()[40 / kPageTokens] = 0x7FFFFFFF;
  CompareWithHost(sample, cache.view(), image.source);
  EXPECT_EQ(compared_, 1U);
}

TEST_F(MinePassTest, TokensOfSmallNorms) {
  Sample sample = MakeSample(Kv(DType::kBf16, 3, 20), 150, Content::kBell);
  ForEachRow(&sample, [&](uint32_t plane, uint32_t token, std::span<std::byte> row) {
    for (size_t c = 0; c < row.size() / 2; ++c) {
      const bool is_small = plane == 1 && (token == 1 || token % 37 == 9 || token == 149);
      const float value = codecs::Bf16ToFloat(codecs::Load<uint16_t>(row.data() + 2 * c));
      codecs::Store(row.data() + 2 * c,
                    codecs::FloatToBf16(is_small ? std::ldexp(value, -6) : value));
    }
  });
  // As the image stands, and where its first tokens are further back.
  CompareWithHost(sample);
  sample.runs[0].first_position = 7;
  CompareWithHost(sample);
  EXPECT_EQ(compared_, 2U);
  EXPECT_GT(small_norms_, 0U);
}

TEST_F(MinePassTest, HolesAreAsTokensWithoutCodes) {
  constexpr uint32_t kPageTokens = 4;
  Sample sample = MakeSample(Kv(DType::kFp32, 6, 6), 80, Content::kBell, RopeKind::kInterleaved);
  const ImageOf& image = sample.image;
  PagedCache cache(image.spec, image.spec.slice, {.page_tokens = kPageTokens}, random_);
  cache.Fill(image.source);
  for (const uint32_t page : {2, 3, 11, 19}) cache.pages()[page] = -1;
  const PagedView view = cache.view();
  ForEachRow(&sample, [&](uint32_t, uint32_t token, std::span<std::byte> row) {
    const uint32_t page = token / kPageTokens;
    if (page != 2 && page != 3 && page != 11 && page != 19) return;
    codecs::Store(row.data() + row.size() - 4, std::numeric_limits<float>::quiet_NaN());
  });
  CompareWithHost(sample, view, sample.image.source);
  EXPECT_EQ(compared_, 1U);
}

TEST_F(MinePassTest, PagesThatAreNone) {
  Sample sample = MakeSample(Kv(DType::kBf16, 4, 4), 24, Content::kBell);
  const ImageOf& image = sample.image;
  PagedCache cache(image.spec, image.spec.slice, {.page_tokens = 4}, random_);
  cache.Fill(image.source);
  // The first page has tokens alone that do not count.
  for (const uint32_t entry : {0, 5}) {
    const int32_t good = cache.pages()[entry];
    for (const int32_t page : {static_cast<int32_t>(cache.view().page_count), 0x7FFFFFFF}) {
      cache.pages()[entry] = page;
      const Mined mined = Mine(sample, cache.view(), image.source);
      EXPECT_EQ(mined.fault, "");
      EXPECT_EQ(mined.status, static_cast<uint32_t>(Error::kTargetTooSmall));
    }
    cache.pages()[entry] = good;
  }
  // Codes are counted later.
  codecs::ProfileMiner miner(sample.request);
  ForEachStrip(sample, image.source, [&](const codecs::MinedStrip& strip) { miner.Add(strip); });
  miner.EndPass();
  cache.pages()[3] = -2;
  cache.pages()[4] = static_cast<int32_t>(cache.view().page_count);
  Mined mined;
  Pass(JobOf(sample, miner, cache.view()), &mined, [](const codecs::PassSums&) {});
  EXPECT_EQ(mined.fault, "");
  EXPECT_EQ(mined.status, static_cast<uint32_t>(Error::kTargetTooSmall));
}

TEST_F(MinePassTest, WhatIsNoPassIsRefused) {
  Sample sample = MakeSample(Kv(DType::kBf16, 8, 8), 16, Content::kBell, RopeKind::kHalf);
  const ImageOf& image = sample.image;
  PagedCache cache(image.spec, image.spec.slice, {.page_tokens = 4}, random_);
  codecs::ProfileMiner miner(sample.request);
  ForEachStrip(sample, image.source, [&](const codecs::MinedStrip& strip) { miner.Add(strip); });
  miner.EndPass();
  const MinePassJob job = JobOf(sample, miner, cache.view());
  std::vector<U32x4> room(MinePassPlanBytes(job) / sizeof(U32x4));
  const std::span<std::byte> buffer = std::as_writable_bytes(std::span(room));
  MinePassPlan plan;
  const auto error_with = [&](auto change) {
    MinePassJob changed = job;
    change(&changed);
    return MakeMinePassPlan(changed, buffer, &plan);
  };
  const Error wrong = Error::kInvalidShape, small = Error::kTargetTooSmall;
  SampleRun run = job.runs[0];
  const auto error_of_run = [&](const SampleRun& changed) {
    run = changed;
    return error_with([&](MinePassJob* j) { j->runs = {&run, 1}; });
  };
  EXPECT_EQ(error_of_run({.token_first = 0, .tokens = 0}), wrong);
  EXPECT_EQ(error_of_run({.token_first = 1, .tokens = 16}), wrong);
  EXPECT_EQ(error_of_run({.token_first = 0xFFFFFFFF, .tokens = 2}), wrong);
  EXPECT_EQ(error_of_run({.tokens = 16, .part = 4}), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->runs = {}; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->turns = j->turns.first(1); }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->pairs.first = 6; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->pass.channels[1] = j->pass.channels[1].first(31); }),
            wrong);
  const codecs::CodeColumn steep[] = {{.multiplier = -4097}};
  EXPECT_EQ(error_with([&](MinePassJob* j) { j->pass.columns = steep; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->sample.layers = 0; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->sample.heads = 0xFFFF; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->sample.tile.k_dim = 1025; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->sample.view.k.token_stride = 3; }), wrong);
  EXPECT_EQ(error_with([](MinePassJob* j) { j->sample.tokens = 17; }), small);
  EXPECT_EQ(MakeMinePassPlan(job, buffer.first(buffer.size() - 16), &plan), small);
  EXPECT_EQ(MakeMinePassPlan(job, buffer.subspan(8), &plan), wrong);
  EXPECT_EQ(plan.bytes, 0U);
  EXPECT_EQ(MakeMinePassPlan(job, buffer, &plan), Error::kOk);
  EXPECT_EQ(plan.bytes, buffer.size());
}

}  // namespace
}  // namespace cairn::kernels
