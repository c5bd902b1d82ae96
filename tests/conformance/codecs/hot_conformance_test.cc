// SPDX-License-Identifier: Apache-2.0
// encode_hot_strip and decode_hot_strip of every backend against the reference, bit for bit: all
// tail lengths, alignments and contents, every kind of profile, all widths.

#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/small_norm.h"
#include "codecs/backend/step_scratch.h"
#include "tests/conformance/codecs/each_backend.h"
#include "tests/support/profile_bytes.h"

namespace cairn::codecs {
namespace {

// A strip of a random profile.
struct HotCase {
  std::vector<std::byte> profile_bytes;
  Profile profile;
  HotTile tile;
  uint32_t tokens = 0;
  uint64_t position = 0;

  [[nodiscard]] size_t SourceBytes() const {
    return size_t{tokens} * tile.step.dim * ElementBytes(tile.step.dtype);
  }
  [[nodiscard]] size_t CodesBytes() const { return size_t{tokens} * tile.row_bytes; }
  [[nodiscard]] size_t CorrectionBytes() const {
    return tile.is_corrected ? HotCorrectionBytes(tile.step.dim) : 0;
  }
};

class HotConformanceTest : public EachBackendTest {
 protected:
  // Calls check(case) for every tail length of either side.
  template <typename Check>
  void ForEachCase(Check check) {
    const auto run = [&](uint32_t dim, uint32_t tokens) {
      if (HasFailure()) return;
      const auto made = AnyCase(dim, tokens);
      SCOPED_TRACE(testing::Message()
                   << tokens << " tokens x " << made->tile.step.dim << ", plane "
                   << made->tile.step.plane << ", pairs " << made->tile.step.pairs << ", basis "
                   << made->tile.step.has_basis << ", dtype "
                   << int{static_cast<uint8_t>(made->tile.step.dtype)} << ", bytes of a row "
                   << made->tile.row_bytes);
      check(*made);
    };
    for (uint32_t dim = 1; dim <= 140; ++dim) run(dim, 1 + Below(kStripTokens));
    for (uint32_t tokens = 1; tokens <= kStripTokens; ++tokens) run(1 + Below(140), tokens);
    for (uint32_t i = 0; i < 60; ++i) run(32 + i % 4 * 32, kStripTokens - Below(2) * Below(64));
    for (const uint32_t dim : {192U, 256U, 300U, 600U, 1024U}) run(dim, 70);
  }

  std::unique_ptr<HotCase> AnyCase(uint32_t dim, uint32_t tokens) {
    constexpr std::array kDTypes = {DType::kBf16, DType::kBf16,    DType::kFp16,
                                    DType::kFp32, DType::kFp8E4m3, DType::kFp8E5m2};
    constexpr std::array<uint64_t, 4> kPositions = {0, 128, 1000000, ~uint64_t{0} - 60};
    auto made = std::make_unique<HotCase>();
    ProfileShape shape = AnyProfileShape(dim, random_);
    if (shape.v_dim != 0 && dim % 32 == 0) shape.v_dim = dim;
    made->profile_bytes = ProfileBytes(shape, random_).bytes();
    random_.discard(1);
    EXPECT_EQ(ParseProfile(made->profile_bytes, &made->profile), Error::kOk);
    const uint32_t plane = shape.v_dim == 0 ? 0 : Below(2);
    const auto multiplier = static_cast<int16_t>(static_cast<int32_t>(Below(2400)) - 1200);
    MakeHotTile(made->profile, {shape.layers - 1U, shape.heads - 1U}, plane, multiplier,
                kDTypes[Below(kDTypes.size())], &made->tile);
    made->tokens = tokens;
    made->position = kPositions[Below(kPositions.size())];
    return made;
  }

  // Elements of a plane: as the profile says, with some far out, zeros, or any bits.
  GuardedBytes Source(const HotCase& of, uint32_t plane) {
    const DType dtype = of.tile.step.dtype;
    const uint32_t dim = of.profile.Dim(plane);
    const uint32_t kind = Below(8);
    GuardedBytes source = AnyBytes(size_t{of.tokens} * dim * ElementBytes(dtype));
    if (kind == 0) return source;
    for (uint64_t i = 0; i < uint64_t{of.tokens} * dim; ++i) {
      const ProfileChannel known =
          of.profile.Channel(plane, of.tile.step.at, static_cast<uint32_t>(i % dim));
      float away = bell_(random_) * Exp2(known.spread_log);
      if (kind == 1 && Below(50) == 0) away *= 100;
      float value = kind == 2 && Below(2) == 0 ? -0.0F : known.mean + away;
      if (kind == 3 && Below(300) == 0) value = std::numeric_limits<float>::quiet_NaN();
      if (kind == 4) value = std::numeric_limits<float>::infinity();
      if (kind == 5 && Below(100) == 0) value = 32767.5F * Exp2(known.spread_log);
      if (kind == 6 && i / dim % 7 == 3) value = 0.001F;
      reference::StoreElement(dtype, source.data(), i, value);
    }
    return source;
  }

  void ExpectDecodedLikeReference(const HotCase& of, const GuardedBytes& codes,
                                  const GuardedBytes& corrections) {
    GuardedBytes wanted(of.SourceBytes(), 0, 1);
    GuardedBytes got(of.SourceBytes(), Below(2) == 0 ? 0 : maker_.Misalignment(), 2);
    HotStripJob job{&of.tile,           of.tokens,     of.position,  codes.data(),
                    corrections.data(), wanted.data(), Below(2) == 0};
    ReferenceBackend().decode_hot_strip(job);
    const auto scratch = std::make_unique<StepScratch>();
    if (Below(2) == 0) job.scratch = scratch.get();
    job.target = got.data();
    OperationOf<&Backend::decode_hot_strip> (*GetParam())(job);
    EXPECT_TRUE(got.Equals(wanted));
    EXPECT_TRUE(got.IsIntact());
  }

 private:
  std::normal_distribution<float> bell_;
};

struct EncodedStrip {
  EncodedStrip(const HotCase& of, size_t misalignment, uint8_t fill)
      : codes(of.CodesBytes(), misalignment, fill),
        corrections(of.CorrectionBytes(), misalignment, fill) {}

  void Encode(const Backend& backend, const HotCase& of, const StepSource& source) {
    OperationOf<&Backend::encode_hot_strip>(backend)(of.tile, source, codes.data(),
                                                     corrections.data(), &rows);
  }

  GuardedBytes codes, corrections;
  StripTokens rows = {};
};

TEST_P(HotConformanceTest, CodesLikeTheReference) {
  uint32_t with_rows = 0;
  ForEachCase([&](const HotCase& of) {
    const GuardedBytes source = Source(of, of.tile.step.plane);
    const GuardedBytes v = Source(of, of.profile.planes() - 1);
    StepSource from{of.tokens, of.position, source.data(), nullptr, nullptr};
    if (of.profile.planes() == 2) from.v = of.tile.step.plane == 1 ? source.data() : v.data();
    EncodedStrip wanted(of, 0, 1);
    wanted.Encode(ReferenceBackend(), of, from);
    const auto scratch = std::make_unique<StepScratch>();
    if (Below(2) == 0) from.scratch = scratch.get();
    EncodedStrip got(of, maker_.Misalignment(), 2);
    got.Encode(*GetParam(), of, from);
    for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(got.rows.words[i], wanted.rows.words[i]);
    EXPECT_TRUE(got.codes.Equals(wanted.codes));
    EXPECT_TRUE(got.corrections.Equals(wanted.corrections));
    EXPECT_TRUE(got.codes.IsIntact() && got.corrections.IsIntact());
    ExpectDecodedLikeReference(of, got.codes, got.corrections);
    with_rows += wanted.rows.words[0] != 0 ? 1 : 0;
  });
  EXPECT_GT(with_rows, 50U);
}

TEST_P(HotConformanceTest, DecodesAnyBitsLikeTheReference) {
  ForEachCase([&](const HotCase& of) {
    ExpectDecodedLikeReference(of, AnyBytes(of.CodesBytes()), AnyBytes(of.CorrectionBytes()));
  });
}

// Means so large that turning them overflows, and gives what is no number.
TEST_P(HotConformanceTest, DecodesWildMeansLikeTheReference) {
  for (uint32_t round = 0; round < 40; ++round) {
    const auto made = AnyCase(32 + round % 4 * 32, kStripTokens);
    for (uint32_t c = 0; c < made->tile.step.dim; c += 1 + Below(8)) {
      made->tile.step.channels[c].mean = Below(2) == 0 ? 3.4e38F : -3.4e38F;
    }
    ExpectDecodedLikeReference(*made, AnyBytes(made->CodesBytes()),
                               AnyBytes(made->CorrectionBytes()));
  }
}

CAIRN_EACH_BACKEND(HotConformanceTest);

}  // namespace
}  // namespace cairn::codecs
