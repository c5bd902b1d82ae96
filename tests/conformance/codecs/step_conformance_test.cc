// SPDX-License-Identifier: Apache-2.0
// encode_step_strip and decode_step_strips of every backend against the reference, bit for bit: all
// tail lengths, alignments and contents, every kind of profile, levels, one strip and several at
// once, rooms that are just enough and just not. A backend that this CPU cannot run is reported as
// skipped, by name.

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <ostream>
#include <vector>

#include "codecs/backend/reference/reference.h"
#include "codecs/backend/step_scratch.h"
#include "codecs/backend/step_tile.h"
#include "tests/conformance/codecs/each_backend.h"
#include "tests/support/profile_bytes.h"

namespace cairn::codecs {
namespace {

// What elements are like.
enum class Values : uint8_t {
  kExpected,  // as the profile says
  kTails,     // with some far out
  kAnyBits,
  kSomeNaN,       // tokens that cannot be coded
  kAllNaN,        // nothing else
  kTooLarge,      // for codes
  kSomeTooLarge,  // likewise, but for most
  kZeros,
  kSmallV,  // tokens with small norms, ties among them
  kCount,
};

// A tile of a random profile.
struct StepCase {
  std::vector<std::byte> profile_bytes;
  Profile profile;
  StepTile tile;
  uint32_t tokens = 0;
  uint64_t position = 0;

  StepCase(const ProfileShape& shape, uint32_t plane, DType dtype, StepRate rate,
           std::mt19937_64& random)
      : profile_bytes(ProfileBytes(shape, random).bytes()) {
    EXPECT_EQ(ParseProfile(profile_bytes, &profile), Error::kOk);
    MakeStepTile(profile, {shape.layers - 1U, shape.heads - 1U}, plane, rate, dtype, &tile);
  }
  [[nodiscard]] StripShape Shape() const { return {tokens, tile.dim, tile.dtype, false}; }
  [[nodiscard]] size_t SourceBytes() const { return ElementCount(Shape()) * BytesOf(tile.dtype); }
};

class StepConformanceTest : public EachBackendTest {
 protected:
  std::unique_ptr<StepCase> AnyCase(uint32_t dim, uint32_t tokens) {
    constexpr std::array kDTypes = {DType::kBf16, DType::kBf16,    DType::kFp16,
                                    DType::kFp32, DType::kFp8E4m3, DType::kFp8E5m2};
    constexpr std::array kLevels = {0, 0, 0, 1, 5};
    const ProfileShape shape = AnyProfileShape(dim, random_);
    const uint32_t plane = shape.v_dim == 0 ? 0 : Below(2);
    const StepRate rate{static_cast<int16_t>(static_cast<int32_t>(Below(1200)) - 800),
                        static_cast<uint8_t>(kLevels[Below(kLevels.size())])};
    auto made =
        std::make_unique<StepCase>(shape, plane, kDTypes[Below(kDTypes.size())], rate, random_);
    made->tokens = tokens;
    constexpr std::array<uint64_t, 4> kPositions = {0, 128, 1000000, ~uint64_t{0} - 60};
    made->position = kPositions[Below(kPositions.size())];
    return made;
  }

  template <typename Check>
  void ForEachCase(Check check) {
    constexpr std::array<uint32_t, 8> kTokens = {1, 16, 31, 33, 63, 64, 127, 128};
    const auto run = [&](uint32_t dim, uint32_t tokens) {
      if (HasFailure()) return;
      const auto made = AnyCase(dim, tokens);
      SCOPED_TRACE(testing::Message()
                   << tokens << " tokens x " << made->tile.dim << ", plane " << made->tile.plane
                   << ", pairs " << made->tile.pairs << ", basis " << made->tile.has_basis
                   << ", dtype " << int{static_cast<uint8_t>(made->tile.dtype)} << ", level "
                   << int{made->tile.level});
      check(*made);
    };
    for (uint32_t dim = 1; dim <= 140; dim += 1 + Below(3)) run(dim, kTokens[Below(8)]);
    for (uint32_t tokens = 1; tokens <= kStripTokens; ++tokens) run(1 + Below(140), tokens);
    for (uint32_t i = 0; i < 24; ++i) run(32 + i % 4 * 32, kTokens[i % 8]);
    for (const uint32_t dim : {64U, 128U, 192U, 256U, 300U, 512U, 600U, 1024U}) {
      run(dim, dim > 300 ? 40 : 128);
    }
  }

  // Of the tile's elements, or of the V beside it.
  GuardedBytes Source(const StepCase& of, uint32_t plane, Values values) {
    const uint32_t dim = plane == of.tile.plane ? of.tile.dim : of.tile.v_dim;
    const StripShape shape{of.tokens, dim, of.tile.dtype, false};
    GuardedBytes source(ElementCount(shape) * BytesOf(of.tile.dtype), maker_.Misalignment());
    for (uint64_t i = 0; i < ElementCount(shape); ++i) {
      const auto token = static_cast<uint32_t>(i / dim);
      const ProfileChannel channel =
          of.profile.Channel(plane, of.tile.at, static_cast<uint32_t>(i % dim));
      if (values == Values::kAnyBits) {
        const auto bits = static_cast<uint32_t>(random_());
        std::memcpy(source.data() + i * BytesOf(of.tile.dtype), &bits, BytesOf(of.tile.dtype));
        continue;
      }
      reference::StoreElement(of.tile.dtype, source.data(), i, ValueOf(channel, token, values));
    }
    return source;
  }

  GuardedBytes Source(const StepCase& of) {
    return Source(of, of.tile.plane,
                  static_cast<Values>(Below(static_cast<uint64_t>(Values::kCount))));
  }

  // Empty where the room does not suffice.
  static std::vector<uint8_t> Encode(const Backend& backend, const StepCase& of,
                                     const GuardedBytes& source, const GuardedBytes& v,
                                     GuardedBytes& room, uint32_t* rows,
                                     StepScratch* scratch = nullptr) {
    const bool is_v = of.tile.plane == 1;
    const bool has_v = of.profile.planes() == 2;
    const StepSource from{of.tokens, of.position, source.data(),
                          !has_v ? nullptr
                          : is_v ? source.data()
                                 : v.data(),
                          scratch};
    const uint64_t bytes = OperationOf<&Backend::encode_step_strip>(backend)(
        of.tile, from, room.data(), room.size(), rows);
    EXPECT_LE(bytes, room.size());
    EXPECT_TRUE(room.IsIntact());
    return {room.data(), room.data() + bytes};
  }
  std::vector<uint8_t> EncodePlainly(const StepCase& of, const GuardedBytes& source) {
    const GuardedBytes v = Source(of, of.profile.planes() - 1, Values::kSmallV);
    GuardedBytes room(RawStripBytes(of.Shape()), 0);
    uint32_t rows = 0;
    return Encode(ReferenceBackend(), of, source, v, room, &rows);
  }

 private:
  float ValueOf(const ProfileChannel& channel, uint32_t token, Values values) {
    const float expected = channel.mean + normal_(random_) * Exp2(channel.spread_log);
    switch (values) {
      case Values::kTails:
        return Below(50) == 0 ? channel.mean + (expected - channel.mean) * 50 : expected;
      case Values::kSomeNaN:
        return Below(300) == 0 ? std::numeric_limits<float>::quiet_NaN() : expected;
      case Values::kAllNaN:
        return -std::numeric_limits<float>::infinity();
      case Values::kTooLarge:
        return Below(100) == 0 ? 32752.0F : 32767.5F * Exp2(channel.step_log) + expected;
      case Values::kSomeTooLarge:
        return Below(500) == 0 ? -32000.0F : expected;
      case Values::kZeros:
        return Below(2) == 0 ? 0.0F : -0.0F;
      case Values::kSmallV:
        return token % 7 == 3 ? 0.001F * static_cast<float>(token % 2) : 100 + expected;
      default:
        return expected;
    }
  }

  std::normal_distribution<float> normal_;
};

TEST_P(StepConformanceTest, EncodesLikeTheReference) {
  uint32_t coded = 0;
  ForEachCase([&](const StepCase& of) {
    const GuardedBytes source = Source(of);
    const auto of_v = static_cast<Values>(Below(static_cast<uint64_t>(Values::kCount)));
    const GuardedBytes v = Source(of, of.profile.planes() - 1, of_v);
    GuardedBytes wide(RawStripBytes(of.Shape()) + Below(300), 0);
    uint32_t wanted_rows = 0;
    const auto wanted = Encode(ReferenceBackend(), of, source, v, wide, &wanted_rows);
    ASSERT_FALSE(wanted.empty());
    coded += wanted[0] != 0 && of.tile.shared.has_exact_lookups ? 1 : 0;
    uint32_t rows = 0;
    auto scratch = std::make_unique<StepScratch>();
    for (const size_t room_bytes : {wanted.size(), wanted.size() + 16, wide.size()}) {
      GuardedBytes room(room_bytes, maker_.Misalignment());
      ASSERT_EQ(Encode(*GetParam(), of, source, v, room, &rows, scratch.get()), wanted)
          << room_bytes;
      ASSERT_EQ(rows, wanted_rows);
    }
    for (const size_t less : {size_t{1}, size_t{16}, size_t{1 + Below(wanted.size())}}) {
      if (less >= wanted.size()) continue;
      GuardedBytes room(wanted.size() - less, maker_.Misalignment());
      ASSERT_TRUE(Encode(*GetParam(), of, source, v, room, &rows).empty()) << less;
    }
  });
  EXPECT_GT(coded, 80U);
}

TEST_P(StepConformanceTest, DecodesAnyNumberAtOnce) {
  ForEachCase([&](const StepCase& first) {
    const uint32_t count = 1 + Below(kStripsAtOnce);
    std::vector<std::unique_ptr<StepCase>> others;
    std::vector<GuardedBytes> strips, targets, wanted;
    std::array<StepStripJob, kStripsAtOnce> jobs{};
    for (uint32_t i = 0; i < count; ++i) {
      const StepCase* of = &first;
      if (Below(2) == 0) {
        others.push_back(AnyCase(Below(2) == 0 ? first.tile.dim : 1 + Below(140),
                                 Below(4) == 0 ? 1 + Below(128) : first.tokens));
        of = others.back().get();
      }
      const std::vector<uint8_t> strip = EncodePlainly(*of, Source(*of));
      strips.emplace_back(strip.size(), maker_.Misalignment());
      std::memcpy(strips[i].data(), strip.data(), strip.size());
      targets.emplace_back(of->SourceBytes(), Below(2) == 0 ? 0 : maker_.Misalignment());
      wanted.emplace_back(of->SourceBytes(), 0);
      jobs[i] = {&of->tile,        of->tokens, of->position,     {},
                 strips[i].data(), kNoMemory,  wanted[i].data(), Below(2) == 0};
      ASSERT_TRUE(ParseStepStrip(of->Shape(), strips[i].data(), strip.size(), &jobs[i].parts));
    }
    ASSERT_TRUE(ReferenceBackend().decode_step_strips(jobs.data(), count));
    const auto scratch = std::make_unique<StepScratch>();
    const bool has_scratch = Below(2) == 0;
    for (uint32_t i = 0; i < count; ++i) {
      jobs[i].target = targets[i].data();
      if (has_scratch) jobs[i].scratch = scratch.get();
    }
    ASSERT_TRUE(OperationOf<&Backend::decode_step_strips>(*GetParam())(jobs.data(), count));
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_TRUE(targets[i].Equals(wanted[i])) << i;
      ASSERT_TRUE(targets[i].IsIntact());
    }
  });
}

// Means so large that turning them overflows, and gives what is no number.
TEST_P(StepConformanceTest, DecodesWildMeansLikeTheReference) {
  uint32_t coded = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    const auto made = AnyCase(64 + round % 2 * 64, 128);
    if (BytesOf(made->tile.dtype) != 2) continue;
    const std::vector<uint8_t> strip =
        EncodePlainly(*made, Source(*made, made->tile.plane, Values::kExpected));
    for (uint32_t c = 0; c < made->tile.dim; c += 1 + Below(8)) {
      made->tile.channels[c].mean = Below(2) == 0 ? 3.4e38F : -3.4e38F;
    }
    GuardedBytes wanted(made->SourceBytes(), 0);
    GuardedBytes got(made->SourceBytes(), 0);
    StepStripJob job{&made->tile,  made->tokens, made->position, {},
                     strip.data(), strip.data(), wanted.data(),  Below(2) == 0};
    ASSERT_TRUE(ParseStepStrip(made->Shape(), strip.data(), strip.size(), &job.parts));
    coded += job.parts.mode == StepStripMode::kCoded ? 1 : 0;
    ASSERT_TRUE(ReferenceBackend().decode_step_strips(&job, 1));
    job.target = got.data();
    ASSERT_TRUE(OperationOf<&Backend::decode_step_strips>(*GetParam())(&job, 1));
    ASSERT_TRUE(got.Equals(wanted)) << round;
  }
  EXPECT_GT(coded, 10U);
}

TEST_P(StepConformanceTest, DecodesHostileStripsInBounds) {
  uint32_t decoded = 0;
  ForEachCase([&](const StepCase& of) {
    if (ElementCount(of.Shape()) > 20000) return;
    const std::vector<uint8_t> strip = EncodePlainly(of, Source(of, of.tile.plane, Values::kTails));
    GuardedBytes changed(strip.size(), maker_.Misalignment());
    std::memcpy(changed.data(), strip.data(), strip.size());
    // Everything behind the header, so that it parses; or of the parts before the stream only.
    StepStripParts parts = {};
    ASSERT_TRUE(ParseStepStrip(of.Shape(), changed.data(), changed.size(), &parts));
    const uint64_t end = Below(2) == 0 ? strip.size() : parts.position;
    for (uint64_t at = kStripHeaderBytes; at < end; at += 1 + Below(16)) {
      changed.data()[at] = static_cast<uint8_t>(Below(3) == 0 ? 0xFF : random_());
    }
    const auto decode = [&](const Backend& backend, GuardedBytes& target) {
      const StepStripJob job{&of.tile,       of.tokens, of.position,   parts,
                             changed.data(), kNoMemory, target.data(), false};
      const bool is_ok = OperationOf<&Backend::decode_step_strips>(backend)(&job, 1);
      EXPECT_TRUE(target.IsIntact());
      return is_ok;
    };
    GuardedBytes wanted(of.SourceBytes(), 0);
    GuardedBytes got(of.SourceBytes(), maker_.Misalignment());
    const bool is_ok = decode(ReferenceBackend(), wanted);
    decoded += is_ok ? 1 : 0;
    ASSERT_EQ(decode(*GetParam(), got), is_ok);
    ASSERT_TRUE(!is_ok || got.Equals(wanted));
  });
  EXPECT_GT(decoded, 20U);
}

CAIRN_EACH_BACKEND(StepConformanceTest);

}  // namespace
}  // namespace cairn::codecs
