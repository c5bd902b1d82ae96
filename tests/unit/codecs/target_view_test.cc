// SPDX-License-Identifier: Apache-2.0
// Decoding to and encoding from where an engine keeps KV: every dtype and many recipes, odd
// strides, scattered tokens with holes, batches, and targets that an element would leave.
#include "codecs/types/target_view.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codecs/backend/backends.h"
#include "gtest/gtest.h"
#include "tests/support/codec_calls.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr uint16_t kLayers = 2, kHeads = 3, kTokens = 160;
constexpr auto kUntouched = std::byte{0x5A};

// Memory of one plane as an engine may have it, and the view of it.
struct Place {
  std::vector<std::byte> memory;
  std::vector<std::byte*> layers;
  std::vector<int64_t> offsets;
  TargetPlane view;

  void Own(size_t bytes, size_t origin) {
    memory.assign(bytes, kUntouched);
    view.data = memory.data() + origin;
    view.first_byte = -static_cast<int64_t>(origin);
    view.end_byte = static_cast<int64_t>(bytes - origin);
  }
};

enum class Kind : uint8_t { kDense, kTokenMajor, kGaps, kBackwards, kPaged, kPagedWithHoles };
constexpr Kind kKinds[] = {Kind::kDense,     Kind::kTokenMajor, Kind::kGaps,
                           Kind::kBackwards, Kind::kPaged,      Kind::kPagedWithHoles};

bool IsHole(Kind kind, uint32_t token) { return kind == Kind::kPagedWithHoles && token % 7 == 3; }

class TargetViewTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    spec_.tile = {GroupKind::kKv, GetParam(), 24, 40};
    spec_.slice = {1, kLayers, 2, kHeads};
    spec_.tokens = kTokens;
    spec_.first_position = kTokens;
    shape_ = {spec_.tile, kLayers, kHeads, kTokens};
    source_.resize(HeadBytes(shape_) * kLayers * kHeads);
    std::normal_distribution<float> bell;
    for (size_t i = 0; i < source_.size() / ElementBytes(GetParam()); ++i) {
      const float value = bell(random_);
      uint32_t bits = FloatBits(value);
      if (GetParam() == DType::kBf16) bits = FloatToBf16(value);
      if (GetParam() == DType::kFp16) bits = FloatToFp16(value, Fp16Rounding::kNearestEven);
      std::memcpy(source_.data() + i * ElementBytes(GetParam()), &bits, ElementBytes(GetParam()));
    }
  }

  void Make(Kind kind, uint32_t dim, Place* place) {
    const int64_t element = ElementBytes(GetParam());
    const int64_t row = dim * element;
    const int64_t all = int64_t{kLayers} * kHeads * kTokens * row;
    TargetPlane& view = place->view;
    switch (kind) {
      case Kind::kDense:
        place->Own(all, 0);
        view.stride_bytes = {kHeads * kTokens * row, kTokens * row, row, element};
        return;
      case Kind::kTokenMajor:
        place->Own(all, 0);
        view.stride_bytes = {kHeads * kTokens * row, row, kHeads * row, element};
        return;
      case Kind::kGaps:  // nothing is adjacent
        place->Own(3 * all + 2 * row, row);
        view.stride_bytes = {3 * kHeads * kTokens * row, 3 * kTokens * row, 3 * row, 3 * element};
        return;
      case Kind::kBackwards:
        place->Own(all, all - row);
        view.stride_bytes = {-kHeads * kTokens * row, -kTokens * row, -row, element};
        return;
      case Kind::kPaged:
      case Kind::kPagedWithHoles:
        break;
    }
    // Each layer by itself: [slot, head, dim] with twice as many slots as tokens, in no order.
    place->Own(2 * all, 0);
    const int64_t layer_bytes = int64_t{2} * kTokens * kHeads * row;
    view.data = nullptr;
    view.end_byte = layer_bytes;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      place->layers.push_back(place->memory.data() + layer * layer_bytes);
    }
    std::vector<int64_t> slots(2 * kTokens);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
    std::ranges::shuffle(slots, random_);
    for (uint32_t token = 0; token < kTokens; ++token) {
      place->offsets.push_back(IsHole(kind, token) ? kTokenSkipped : slots[token] * kHeads * row);
    }
    view.layers = place->layers;
    view.token_offsets = place->offsets;
    view.stride_bytes = {0, row, 0, element};
  }

  // Every element of the view against a payload, and that nothing else was written.
  void ExpectHolds(Kind kind, Place* places, const Bytes& payload) {
    const int64_t element = ElementBytes(GetParam());
    const std::byte* expected = payload.data();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t head = 0; head < kHeads; ++head) {
        for (uint32_t plane = 0; plane < 2; ++plane) {
          const TargetPlane& view = places[plane].view;
          const uint32_t dim = plane == 0 ? 24 : 40;
          for (uint32_t token = 0; token < kTokens; ++token) {
            for (int64_t c = 0; c < dim; ++c, expected += element) {
              if (IsHole(kind, token)) continue;
              std::byte* at = (view.layers.empty() ? view.data + layer * view.stride_bytes[0]
                                                   : view.layers[layer]) +
                              head * view.stride_bytes[1] + c * view.stride_bytes[3] +
                              (view.token_offsets.empty() ? token * view.stride_bytes[2]
                                                          : view.token_offsets[token]);
              ASSERT_EQ(std::memcmp(at, expected, element), 0)
                  << layer << " " << head << " " << plane << " " << token << " " << c;
              std::memset(at, static_cast<int>(kUntouched), element);
            }
          }
        }
      }
    }
    for (uint32_t plane = 0; plane < 2; ++plane) {
      const auto touched = std::ranges::count_if(places[plane].memory,
                                                 [](std::byte byte) { return byte != kUntouched; });
      EXPECT_EQ(touched, 0);
    }
  }

  Bytes Encoded(const char* recipe) {
    spec_.recipe = RecipeNamed(recipe);
    return EncodeOrFail(*CpuBackends().front(), spec_, source_);
  }

  std::mt19937_64 random_ = SeededRandom();
  ImageSpec spec_;
  ViewShape shape_;
  Bytes source_;
};

constexpr const char* kRecipes[] = {"raw",   "exact", "exact:fast", "kivi:8",     "kivi:2+",
                                    "ott:4", "fp8",   "mixkvq",     "logquant:4", "arkv"};

TEST_P(TargetViewTest, DecodesWholeSlicesToWhereverTheyAreKept) {
  const Backend& backend = *CpuBackends().front();
  for (const char* recipe : kRecipes) {
    const Bytes image = Encoded(recipe);
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    const Bytes decoded = DecodeOrFail(ReferenceBackend(), view, spec_.slice);
    for (const Kind kind : kKinds) {
      SCOPED_TRACE(std::string(recipe) + " " + std::to_string(static_cast<int>(kind)));
      Place places[2];
      Make(kind, 24, &places[0]);
      Make(kind, 40, &places[1]);
      const DecodeJob job{&view, spec_.slice, {places[0].view, places[1].view}};
      const uint64_t scratch_bytes = ScratchBytes({&job, 1});
      EXPECT_EQ(scratch_bytes == 0, kind == Kind::kDense);
      Bytes scratch(scratch_bytes);
      ASSERT_EQ(DecodeAll(backend, {&job, 1}, scratch), Error::kOk);
      ExpectHolds(kind, places, decoded);
    }
  }
}

TEST_P(TargetViewTest, EncodesFromWhereverItIsKept) {
  const Backend& backend = *CpuBackends().front();
  for (const char* recipe : kRecipes) {
    const Bytes expected = Encoded(recipe);
    for (const Kind kind : kKinds) {
      if (kind == Kind::kPagedWithHoles) continue;
      SCOPED_TRACE(std::string(recipe) + " " + std::to_string(static_cast<int>(kind)));
      Place places[2];
      Make(kind, 24, &places[0]);
      Make(kind, 40, &places[1]);
      const TargetView view{places[0].view, places[1].view};
      for (uint32_t tile = 0; tile < uint32_t{kLayers} * kHeads; ++tile) {
        const std::byte* head = source_.data() + tile * HeadBytes(shape_);
        ScatterTile(shape_, 0, view.k, tile / kHeads, tile % kHeads, head);
        ScatterTile(shape_, 1, view.v, tile / kHeads, tile % kHeads,
                    head + TileBytes(shape_.tile, Plane::kK, kTokens));
      }
      Bytes image(expected.size());
      Bytes scratch(ScratchBytes(spec_, view));
      size_t bytes = 0;
      ASSERT_EQ(Encode(backend, spec_, view, scratch, image, &bytes), Error::kOk);
      EXPECT_EQ(bytes, expected.size());
      EXPECT_EQ(image, expected);
    }
  }
}

TEST_P(TargetViewTest, ARawImageIsMadeAroundItsSource) {
  const Bytes expected = Encoded("raw");
  const uint64_t prefix_bytes = RawPrefixBytes(spec_);
  ASSERT_EQ(prefix_bytes, expected.size() - source_.size());
  Bytes image(expected.size(), kUntouched);
  std::copy(source_.begin(), source_.end(), image.begin() + static_cast<ptrdiff_t>(prefix_bytes));
  size_t bytes = 0;
  ASSERT_EQ(
      Encode(*CpuBackends().front(), spec_, std::span(image).subspan(prefix_bytes), image, &bytes),
      Error::kOk);
  EXPECT_EQ(bytes, expected.size());
  EXPECT_EQ(image, expected);
  // Tiles that are padded do not follow each other.
  ImageSpec padded = spec_;
  padded.tokens = 17;
  padded.tile.k_dim = 1;
  EXPECT_EQ(RawPrefixBytes(padded), 0);
}

TEST_P(TargetViewTest, DecodesABatchOfImagesAndPartsOfThem) {
  const Bytes exact = Encoded("exact");
  const Bytes coded = Encoded("kivi:4");
  ImageView views[2];
  ASSERT_EQ(ParseImage(exact, &views[0]), Error::kOk);
  ASSERT_EQ(ParseImage(coded, &views[1]), Error::kOk);
  std::vector<DecodeJob> jobs;
  std::vector<Bytes> targets;
  std::vector<Bytes> expected;
  for (uint32_t i = 0; i < 12; ++i) {
    const Slice slice = {static_cast<uint16_t>(1 + i % 2), 1, static_cast<uint16_t>(2 + i % 3), 1};
    expected.push_back(DecodeOrFail(ReferenceBackend(), views[i % 2], slice));
    targets.emplace_back(expected.back().size());
    const ViewShape shape{spec_.tile, 1, 1, kTokens};
    jobs.push_back({&views[i % 2], slice, DenseView(shape, targets.back().data())});
  }
  ASSERT_EQ(DecodeAll(*CpuBackends().front(), jobs, {}), Error::kOk);
  EXPECT_EQ(targets, expected);
}

TEST_P(TargetViewTest, WritesNothingWhereOneElementOfOneJobWouldLieOutside) {
  const Bytes image = Encoded("kivi:4");
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    Place places[4];
    for (uint32_t i = 0; i < 4; ++i) Make(kind, i % 2 == 0 ? 24 : 40, &places[i]);
    DecodeJob jobs[2] = {{&view, spec_.slice, {places[0].view, places[1].view}},
                         {&view, spec_.slice, {places[2].view, places[3].view}}};
    Bytes scratch(ScratchBytes(jobs));
    const TargetPlane valid = jobs[1].target.v;
    const auto expect_refused = [&](Error error) {
      size_t failed = 0;
      EXPECT_EQ(DecodeAll(ReferenceBackend(), jobs, scratch, &failed), error);
      EXPECT_EQ(failed, 1U);
      for (const Place& place : places) {
        EXPECT_TRUE(
            std::ranges::all_of(place.memory, [](std::byte byte) { return byte == kUntouched; }));
      }
      jobs[1].target.v = valid;
    };
    if (kind != Kind::kGaps && kind != Kind::kPaged && kind != Kind::kPagedWithHoles) {
      --jobs[1].target.v.end_byte;  // the last element does not fit any more
      expect_refused(Error::kTargetTooSmall);
      ++jobs[1].target.v.first_byte;
      expect_refused(Error::kTargetTooSmall);
    }
    if (!places[3].offsets.empty()) {
      const int64_t offset = places[3].offsets[5];
      places[3].offsets[5] = valid.end_byte;
      expect_refused(Error::kTargetTooSmall);
      places[3].offsets[5] = -1;
      expect_refused(Error::kTargetTooSmall);
      places[3].offsets[5] = std::numeric_limits<int64_t>::max();
      expect_refused(Error::kTargetTooSmall);
      places[3].offsets[5] = offset;
      jobs[1].target.v.token_offsets = valid.token_offsets.first(kTokens - 1);
      expect_refused(Error::kInvalidShape);
    }
    jobs[1].target.v.stride_bytes[1] = std::numeric_limits<int64_t>::max() / 2;
    expect_refused(Error::kTargetTooSmall);
    jobs[1].target.v.stride_bytes[3] = 0;
    expect_refused(Error::kInvalidShape);
    EXPECT_EQ(DecodeAll(ReferenceBackend(), jobs, scratch), Error::kOk);
  }
}

TEST_P(TargetViewTest, OverflowIsRefusedWhereTheMemoryIsNotStatedToo) {
  Place place;
  Make(Kind::kTokenMajor, 24, &place);
  place.view.first_byte = place.view.end_byte = 0;
  EXPECT_EQ(CheckPlane(shape_, 0, place.view, false), TargetFault::kNone);
  place.view.stride_bytes[2] = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(CheckPlane(shape_, 0, place.view, false), TargetFault::kOutside);
}

TEST_P(TargetViewTest, VerifiesEachTile) {
  Bytes image = Encoded("kivi:4");
  image[image.size() - 20] ^= std::byte{1};
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  Bytes target(source_.size());
  const DecodeJob job{&view, spec_.slice, DenseView(shape_, target.data())};
  EXPECT_EQ(DecodeAll(ReferenceBackend(), {&job, 1}, {}), Error::kBadChecksum);
}

TEST_P(TargetViewTest, ASourceSkipsNoToken) {
  Place places[2];
  Make(Kind::kPagedWithHoles, 24, &places[0]);
  Make(Kind::kPagedWithHoles, 40, &places[1]);
  const TargetView view{places[0].view, places[1].view};
  EXPECT_EQ(CheckPlane(shape_, 0, view.k, true), TargetFault::kSkippedSource);
  spec_.recipe = RecipeNamed("raw");
  Bytes image(2 * source_.size());
  Bytes scratch(ScratchBytes(spec_, view));
  size_t bytes = 0;
  EXPECT_EQ(Encode(ReferenceBackend(), spec_, view, scratch, image, &bytes), Error::kInvalidShape);
}

TEST_P(TargetViewTest, TooLittleScratchIsRefused) {
  const Bytes image = Encoded("raw");
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  Place places[2];
  Make(Kind::kGaps, 24, &places[0]);
  Make(Kind::kGaps, 40, &places[1]);
  const DecodeJob job{&view, spec_.slice, {places[0].view, places[1].view}};
  Bytes scratch(ScratchBytes({&job, 1}) - 1);
  EXPECT_EQ(DecodeAll(ReferenceBackend(), {&job, 1}, scratch), Error::kTargetTooSmall);
}

INSTANTIATE_TEST_SUITE_P(DTypes, TargetViewTest,
                         testing::Values(DType::kBf16, DType::kFp16, DType::kFp32));

}  // namespace
}  // namespace cairn::codecs
