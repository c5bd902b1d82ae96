// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/attend.h"

#include <cmath>
#include <random>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/backend/reference/attention.h"
#include "codecs/image/token_reader.h"
#include "codecs/numbers/attention.h"
#include "codecs/pack/elements.h"
#include "codecs/stages/select/token_plan.h"
#include "gtest/gtest.h"
#include "tests/support/codec_calls.h"
#include "tests/support/hostile_float.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

TEST(AttentionNumbersTest, ExpIsWithinTwoUnits) {
  double worst = 0;
  for (float x = -87.0F; x <= 0.0F; x = x < -1e-3F ? x + 0.000731F : x / 2) {
    const double exact = std::exp(double{x});
    worst = std::max(worst, std::abs(AttentionExp(x) - exact) / exact);
    if (x > -1e-30F) break;
  }
  EXPECT_LT(worst, std::ldexp(1.0, -22));
  EXPECT_EQ(AttentionExp(0.0F), 1.0F);
  EXPECT_EQ(AttentionExp(-88.0F), 0.0F);
  EXPECT_EQ(AttentionExp(-INFINITY), 0.0F);
}

TEST(AttentionNumbersTest, LogIsWithinTwoUnits) {
  for (float x = 1e-30F; x < 1e30F; x *= 1.00173F) {
    const double exact = std::log(double{x});
    EXPECT_NEAR(AttentionLog(x), exact, std::max(1.0, std::abs(exact)) * std::ldexp(1.0, -22)) << x;
  }
  EXPECT_EQ(AttentionLog(1.0F), 0.0F);
}

// An image, what it decodes to, and queries.
class AttendTest : public testing::Test {
 protected:
  static constexpr uint32_t kQueryHeads = 6;

  void SetUp() override {
    spec_.tile = {GroupKind::kKv, DType::kBf16, 40, 24};
    spec_.slice = {2, 2, 1, 2};
    spec_.tokens = 48;
  }

  // Encodes bells and decodes them again.
  void MakeImage(const char* recipe, const EncodeInputs& inputs = {}) {
    spec_.recipe = RecipeNamed(recipe);
    uint64_t bytes = 0;
    ASSERT_EQ(SourceBytes(spec_.tile, spec_.slice, spec_.tokens, &bytes), Error::kOk);
    Bytes source(bytes);
    std::normal_distribution<float> bell;
    for (uint64_t i = 0; i < bytes / 2; ++i) {
      StoreElement(DType::kBf16, reinterpret_cast<uint8_t*>(source.data()), i, bell(random_));
    }
    image_ = EncodeOrFail(ReferenceBackend(), spec_, source, inputs);
    ASSERT_EQ(ParseImage(image_, &view_), Error::kOk);
    ASSERT_EQ(VerifyTiles(view_), Error::kOk);
    queries_.resize(size_t{kQueryHeads} * spec_.tile.k_dim);
    for (float& q : queries_) q = bell(random_);
  }

  struct Part {
    std::vector<float> outputs, log_sums;
    bool operator==(const Part&) const = default;
  };

  Part Attended(uint16_t layer, uint32_t v_dim) {
    Part part{std::vector<float>(size_t{kQueryHeads} * v_dim), std::vector<float>(kQueryHeads)};
    EXPECT_EQ(
        AttendImage(*CpuBackends().front(), view_, {layer, kQueryHeads, v_dim, 0.15F, queries_}, {},
                    part.outputs, part.log_sums),
        Error::kOk);
    return part;
  }

  // In double, over the tokens from `first` to `end` that are kept.
  void Expect(uint16_t layer, uint32_t q, uint32_t v_dim, std::vector<double>* output,
              double* log_sum) {
    const uint32_t k_dim = spec_.tile.k_dim;
    const auto head =
        static_cast<uint16_t>(spec_.slice.head_first + q / (kQueryHeads / spec_.slice.head_count));
    const Bytes decoded = DecodeOrFail(ReferenceBackend(), view_, {layer, 1, head, 1});
    const auto* k = reinterpret_cast<const uint8_t*>(decoded.data());
    const bool is_latent = spec_.tile.kind == GroupKind::kLatent;
    const uint8_t* v = is_latent ? k : k + size_t{2} * spec_.tokens * k_dim;
    const uint32_t v_row = is_latent ? k_dim : v_dim;
    std::vector<uint8_t> kept(spec_.tokens);
    ASSERT_EQ(ReadKept(view_, layer, head, kept), Error::kOk);
    double sum = 0;
    output->assign(v_dim, 0.0);
    for (uint32_t t = 0; t < spec_.tokens; ++t) {
      if (kept[t] == 0) continue;
      double score = 0;
      for (uint32_t c = 0; c < k_dim; ++c) {
        score +=
            double{queries_[q * k_dim + c]} * LoadElement(DType::kBf16, k, uint64_t{t} * k_dim + c);
      }
      const double weight = std::exp(0.15F * score);
      sum += weight;
      for (uint32_t c = 0; c < v_dim; ++c) {
        (*output)[c] += weight * LoadElement(DType::kBf16, v, uint64_t{t} * v_row + c);
      }
    }
    for (double& of : *output) of /= sum;
    *log_sum = std::log(sum);
  }

  void ExpectAttends(uint16_t layer, uint32_t v_dim) {
    const Part part = Attended(layer, v_dim);
    for (uint32_t q = 0; q < kQueryHeads; ++q) {
      std::vector<double> output;
      double log_sum = 0;
      Expect(layer, q, v_dim, &output, &log_sum);
      EXPECT_NEAR(part.log_sums[q], log_sum, 2e-6 * std::max(1.0, std::abs(log_sum)));
      for (uint32_t c = 0; c < v_dim; ++c) {
        EXPECT_NEAR(part.outputs[q * v_dim + c], output[c], 3e-6) << q << " " << c;
      }
    }
  }

  std::mt19937_64 random_ = SeededRandom();
  ImageSpec spec_;
  Bytes image_;
  ImageView view_;
  std::vector<float> queries_;
};

TEST_F(AttendTest, IsTheSoftmaxOfDoublesOverWhatTheImageDecodesTo) {
  for (const char* recipe : {"raw", "exact", "kivi:4", "fp8"}) {
    SCOPED_TRACE(recipe);
    MakeImage(recipe);
    ExpectAttends(2, spec_.tile.v_dim);
    ExpectAttends(3, spec_.tile.v_dim);
  }
}

TEST_F(AttendTest, TakesVOfLatentsFromK) {
  spec_.tile = {GroupKind::kLatent, DType::kBf16, 40, 0};
  spec_.slice = {0, 1, 0, 1};
  MakeImage("kivi:8");
  ExpectAttends(0, 32);
}

TEST_F(AttendTest, LeavesOutWhatIsNotKept) {
  std::vector<uint8_t> states(size_t{4} * spec_.tokens);
  for (size_t i = 0; i < states.size(); ++i) states[i] = i % 3 == 0 ? 0 : 1;
  MakeImage("arkv:paper", {.token_states = states});
  std::vector<uint8_t> kept(spec_.tokens);
  ASSERT_EQ(ReadKept(view_, 2, 1, kept), Error::kOk);
  ASSERT_EQ(kept[0], 0);
  ExpectAttends(2, spec_.tile.v_dim);
}

TEST_F(AttendTest, HasNothingToSayOfNoTokens) {
  const std::vector<uint8_t> states(size_t{4} * spec_.tokens, 0);
  MakeImage("arkv:paper", {.token_states = states});
  const Part part = Attended(2, spec_.tile.v_dim);
  for (const float output : part.outputs) EXPECT_EQ(output, 0.0F);
  for (const float log_sum : part.log_sums) EXPECT_EQ(log_sum, -INFINITY);
}

TEST_F(AttendTest, PartsOfAChainMergeToTheWhole) {
  // Two blocks, and the same tokens in one.
  MakeImage("raw");
  const uint32_t v_dim = spec_.tile.v_dim;
  const Part part = Attended(2, v_dim);
  std::vector<float> outputs(2 * size_t{v_dim});
  std::copy_n(part.outputs.begin(), v_dim, outputs.begin());
  std::copy_n(part.outputs.begin() + v_dim, v_dim, outputs.begin() + v_dim);
  const std::vector<float> log_sums = {part.log_sums[0], part.log_sums[1]};
  std::vector<float> merged(v_dim);
  float log_sum = 0;
  reference::MergeAttention(2, v_dim, outputs.data(), log_sums.data(), merged.data(), &log_sum);
  const double a = std::exp(double{log_sums[0]});
  const double b = std::exp(double{log_sums[1]});
  EXPECT_NEAR(log_sum, std::log(a + b), 2e-6 * std::max(1.0, std::abs(std::log(a + b))));
  for (uint32_t c = 0; c < v_dim; ++c) {
    EXPECT_NEAR(merged[c], (a * outputs[c] + b * outputs[v_dim + c]) / (a + b), 2e-6);
  }
  // A part without tokens adds nothing.
  const std::vector<float> one_empty = {part.log_sums[0], -INFINITY};
  reference::MergeAttention(2, v_dim, outputs.data(), one_empty.data(), merged.data(), &log_sum);
  EXPECT_EQ(log_sum, part.log_sums[0]);
  EXPECT_TRUE(std::equal(merged.begin(), merged.end(), outputs.begin()));
}

TEST_F(AttendTest, GivesTheSameBitsOnEveryThread) {
  MakeImage("exact");
  EXPECT_FALSE(InAnyFloat([&] { return Attended(2, spec_.tile.v_dim); }).outputs.empty());
}

TEST_F(AttendTest, RefusesWhatIsNotThere) {
  MakeImage("raw");
  const uint32_t v_dim = spec_.tile.v_dim;
  std::vector<float> outputs(size_t{kQueryHeads} * v_dim);
  std::vector<float> log_sums(kQueryHeads);
  const auto attend = [&](AttentionQuery query) {
    return AttendImage(ReferenceBackend(), view_, query, {}, outputs, log_sums);
  };
  EXPECT_EQ(attend({4, kQueryHeads, 0, 1, queries_}), Error::kInvalidSlice);
  EXPECT_EQ(attend({2, 5, 0, 1, queries_}), Error::kInvalidShape);
  EXPECT_EQ(attend({2, 0, 0, 1, {}}), Error::kInvalidShape);
  EXPECT_EQ(attend({2, kQueryHeads, 0, 1, std::span(queries_).first(1)}), Error::kInvalidShape);
  EXPECT_EQ(attend({2, kQueryHeads, 0, 1, queries_}), Error::kOk);
}

}  // namespace
}  // namespace cairn::codecs
