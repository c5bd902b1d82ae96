// SPDX-License-Identifier: Apache-2.0
// The banks that a device mines are those of the CPU, byte for byte.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "codecs/mine/bank_miner.h"
#include "kernels/device.h"
#include "kernels/mine_plan.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {
namespace {

using codecs::Content;
using codecs::DType;
using codecs::Error;
using codecs::GroupKind;
using codecs::TileShape;

constexpr std::byte kUnwritten{0xCE};

class MineTest : public DecodeFixture {
 protected:
  struct Mined {
    Error error = Error::kOk;
    std::string fault;
    uint32_t status = 0;
    std::vector<std::byte> bank;
  };

  static MineJob JobOf(const ImageOf& sample, uint32_t patterns) {
    MineJob job;
    job.sample.tile = sample.spec.tile;
    job.sample.layers = sample.spec.slice.layer_count;
    job.sample.heads = sample.spec.slice.head_count;
    job.sample.tokens = sample.spec.tokens;
    job.patterns = patterns;
    return job;
  }

  Mined Mine(MineJob job) {
    Mined mined;
    const codecs::BankShape shape = BankShapeOf(job);
    const bool is_valid = codecs::Validate(shape) == Error::kOk;
    DeviceBytes bank(is_valid ? codecs::BankBytes(shape) : 16, true);
    std::ranges::fill(bank.span(), kUnwritten);
    job.bank = bank.address();
    const uint32_t heads = is_valid ? shape.layers * shape.heads * codecs::BankPlanes(shape) : 0;
    std::vector<U32x4> room(MinePlanBytes(heads) / sizeof(U32x4));
    MinePlan plan;
    mined.error = MakeMinePlan(job, std::as_writable_bytes(std::span(room)), &plan);
    if (mined.error != Error::kOk) return mined;
    DeviceBytes on_device(std::as_bytes(std::span(room)).first(plan.bytes), false);
    DeviceBytes scratch(plan.scratch_bytes, true);
    DeviceBytes status(sizeof(uint32_t), true);
    std::ranges::fill(scratch.span(), std::byte{0xCD});
    std::memset(status.data(), 0, status.size());
    DeviceBytes::UploadAll();
    device::Mine(plan, on_device.address(), scratch.address(),
                 reinterpret_cast<uint32_t*>(status.address()), random_());
    mined.fault = device::Finish();
    if (mined.fault.empty()) mined.fault = DeviceBytes::DownloadAll();
    std::memcpy(&mined.status, status.data(), sizeof(mined.status));
    mined.bank.assign(bank.span().begin(), bank.span().end());
    for (uint64_t i = 0; i < codecs::kBankHeaderBytes; ++i) {
      EXPECT_EQ(mined.bank[i], kUnwritten) << i;
    }
    return mined;
  }

  // The bank of a sample that lies in a cache, but for `left_out`, is the CPU's.
  void CompareWithHost(const ImageOf& sample, uint32_t patterns, PagedView view,
                       std::span<const std::byte> source, uint32_t tokens) {
    MineJob job = JobOf(sample, patterns);
    job.sample.view = view;
    std::vector<std::byte> expected;
    const Error error =
        codecs::MineBank(BankShapeOf(job), job.sample.tile.dtype, tokens, source, &expected);
    Mined mined = Mine(job);
    ASSERT_EQ(mined.error, Error::kOk);
    ASSERT_EQ(mined.fault, "");
    ASSERT_EQ(mined.status, static_cast<uint32_t>(error));
    if (error != Error::kOk) return;
    ++compared_;
    codecs::WriteBankFrame(BankShapeOf(job), mined.bank);
    ASSERT_EQ(mined.bank, expected);
    codecs::Bank bank;
    EXPECT_EQ(codecs::ParseBank(mined.bank, &bank), Error::kOk);
  }

  void CompareWithHost(const ImageOf& sample, uint32_t patterns) {
    PagedCache cache(sample.spec, sample.spec.slice, AnyWholeShape(), random_);
    cache.Fill(sample.source);
    CompareWithHost(sample, patterns, cache.view(), sample.source, sample.spec.tokens);
  }

  uint32_t compared_ = 0;
};

TEST_F(MineTest, BanksOfEveryShapeAndDType) {
  const TileShape shapes[] = {Kv(DType::kBf16, 16, 16),
                              Kv(DType::kFp16, 5, 33),
                              Kv(DType::kFp32, 8, 17),
                              Kv(DType::kBf16, 130, 1),
                              {GroupKind::kLatent, DType::kFp32, 24, 0}};
  for (const TileShape& shape : shapes) {
    for (const uint16_t tokens : {1, 31, 33, 70}) {
      for (const uint32_t patterns : {1U, 3U, 34U}) {
        SCOPED_TRACE(testing::Message() << "dims " << shape.k_dim << " " << shape.v_dim << ", "
                                        << tokens << " tokens, " << patterns << " patterns");
        CompareWithHost(MakeImage("raw", shape, tokens, Content::kBell), patterns);
      }
    }
  }
  EXPECT_EQ(compared_, 5U * 4 * 3);
}

TEST_F(MineTest, SamplesOfEveryContent) {
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      SCOPED_TRACE(testing::Message() << "content " << content);
      CompareWithHost(MakeImage("raw", Kv(dtype, 19, 16), 40, static_cast<Content>(content)), 9);
    }
  }
  EXPECT_GT(compared_, 10U);
}

// Two values alone: most centres have no point, and go to the farthest, one after another.
TEST_F(MineTest, CentresWithoutPoints) {
  ImageOf sample = MakeImage("raw", Kv(DType::kFp32, 4, 4), 64, Content::kBell);
  for (uint64_t i = 0; i < sample.source.size(); i += sizeof(float)) {
    codecs::Store(sample.source.data() + i, random_() % 16 == 0 ? 3.0F + random_() % 3 : 1.0F);
  }
  CompareWithHost(sample, 20);
  for (uint64_t i = 0; i < sample.source.size(); i += sizeof(float)) {
    codecs::Store(sample.source.data() + i, -0.5F);
  }
  CompareWithHost(sample, 20);
  EXPECT_EQ(compared_, 2U);
}

// Two tokens whose channels are exchanged in pairs, and others whose channels are equal in pairs:
// those are as far from the one as from the other but for the order of summing.
TEST_F(MineTest, DistancesAreSummedInOrder) {
  constexpr uint32_t kDim = 48, kTokens = 40;
  ImageOf sample = MakeImage("raw", Kv(DType::kFp32, kDim, kDim), kTokens, Content::kBell);
  std::vector<uint32_t> order(kDim);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::shuffle(order, random_);
  std::normal_distribution<float> bell;
  for (std::byte* tile = sample.source.data(); tile != sample.source.data() + sample.source.size();
       tile += kTokens * kDim * sizeof(float)) {
    const auto set = [&](uint32_t token, uint32_t channel, float value) {
      codecs::Store(tile + (token * kDim + channel) * sizeof(float), value);
    };
    for (uint32_t i = 0; i < kDim; i += 2) {
      const uint32_t one = order[i];
      const uint32_t other = order[i + 1];
      for (uint32_t token = 0; token < kTokens; ++token) {
        const float value = bell(random_);
        set(token, one, value);
        set(token, other, value);
      }
      const float a = bell(random_);
      const float b = bell(random_);
      set(0, one, a);
      set(0, other, b);
      set(kTokens / 2, one, b);
      set(kTokens / 2, other, a);
    }
  }
  CompareWithHost(sample, 2);
  EXPECT_EQ(compared_, 1U);
}

// As the first tokens of a text are.
TEST_F(MineTest, HolesAreLeftOut) {
  constexpr uint16_t kTokens = 48;
  constexpr uint32_t kPageTokens = 4;
  const ImageOf sample = MakeImage("raw", Kv(DType::kBf16, 16, 8), kTokens, Content::kBell);
  PagedCache cache(sample.spec, sample.spec.slice, {.page_tokens = kPageTokens}, random_);
  cache.Fill(sample.source);
  const auto is_left_out = [](uint32_t token) { return token < 4 || (token >= 20 && token < 28); };
  std::vector<std::byte> rest;
  const std::byte* from = sample.source.data();
  uint32_t tokens = 0;
  for (uint32_t tile = 0; from < sample.source.data() + sample.source.size(); ++tile) {
    tokens = 0;
    for (uint32_t token = 0; token < kTokens; ++token, from += cache.row_bytes(tile % 2)) {
      if (is_left_out(token)) continue;
      rest.insert(rest.end(), from, from + cache.row_bytes(tile % 2));
      ++tokens;
    }
  }
  for (uint32_t token = 0; token < kTokens; token += kPageTokens) {
    if (is_left_out(token)) cache.pages()[token / kPageTokens] = -1;
  }
  CompareWithHost(sample, 7, cache.view(), rest, tokens);
  EXPECT_EQ(compared_, 1U);

  std::ranges::fill(cache.pages(), -1);
  MineJob job = JobOf(sample, 7);
  job.sample.view = cache.view();
  Mined mined = Mine(job);
  EXPECT_EQ(mined.fault, "");
  EXPECT_EQ(mined.status, static_cast<uint32_t>(Error::kIncomplete));

  std::ranges::fill(cache.pages(), 0);
  for (const int32_t page : {static_cast<int32_t>(cache.view().page_count), 0x7FFFFFFF}) {
    cache.pages().back() = page;
    mined = Mine(job);
    EXPECT_EQ(mined.fault, "");
    EXPECT_EQ(mined.status, static_cast<uint32_t>(Error::kTargetTooSmall));
  }
}

TEST_F(MineTest, WhatIsNoSampleIsRefused) {
  const ImageOf sample = MakeImage("raw", Kv(DType::kBf16, 8, 8), 16, Content::kBell);
  PagedCache cache(sample.spec, sample.spec.slice, {.page_tokens = 4}, random_);
  MineJob job = JobOf(sample, 3);
  job.sample.view = cache.view();
  EXPECT_EQ(Mine(job).error, Error::kOk);
  const auto error_with = [&](auto change) {
    MineJob changed = job;
    change(&changed);
    return Mine(changed).error;
  };
  const Error wrong = Error::kInvalidShape, small = Error::kTargetTooSmall;
  EXPECT_EQ(error_with([](MineJob* j) { j->patterns = 0; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->patterns = 257; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.layers = 0; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.heads = 0; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.heads = 0xFFFF; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.tokens = 0; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.tokens = 0x10000; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.tile.k_dim = 1025; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) {
              j->sample.tile = {GroupKind::kState, DType::kBytes, 8, 0};
            }),
            wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.view.page_tokens = 0; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.view.k.layers = {}; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.view.k.token_stride = 3; }), wrong);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.tokens = 17; }), small);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.view.v.layer_bytes -= 1; }), small);
  EXPECT_EQ(error_with([](MineJob* j) { j->sample.view.k.page_stride = ~uint64_t{15}; }), small);

  DeviceBytes bank(codecs::BankBytes(BankShapeOf(job)), true);
  std::vector<U32x4> room(64);
  const std::span<std::byte> buffer = std::as_writable_bytes(std::span(room));
  MinePlan plan;
  EXPECT_EQ(MakeMinePlan(job, buffer, &plan), wrong) << "no bank";
  job.bank = bank.address() + 8;
  EXPECT_EQ(MakeMinePlan(job, buffer, &plan), wrong);
  job.bank = bank.address();
  EXPECT_EQ(MakeMinePlan(job, buffer.subspan(8), &plan), wrong);
  EXPECT_EQ(MakeMinePlan(job, buffer.first(MinePlanBytes(8) - 16), &plan), small);
  EXPECT_EQ(plan.bytes, 0U);
  EXPECT_EQ(MakeMinePlan(job, buffer.first(MinePlanBytes(8)), &plan), Error::kOk);
  EXPECT_EQ(plan.bytes, MinePlanBytes(8));
}

}  // namespace
}  // namespace cairn::kernels
