// SPDX-License-Identifier: Apache-2.0
// Images in memory that somebody else writes while they are read: what is decoded is what was
// encoded, or an error, and nothing is read or written out of bounds (which AddressSanitizer sees).
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "codecs/side/profile.h"
#include "gtest/gtest.h"
#include "tests/support/codec_calls.h"
#include "tests/support/profile_bytes.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr uint16_t kLentLayers = 2, kLentHeads = 3, kLentTokens = 200;
constexpr ProfileShape kLentShape = {
    .layers = kLentLayers, .heads = kLentHeads, .k_dim = 32, .v_dim = 24, .rope = RopeKind::kNone};

class SharedImageTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(ParseProfile(profile_bytes_, &profile_), Error::kOk);
    spec_.tile = {GroupKind::kKv, DType::kBf16, 32, 24};
    spec_.slice = {0, kLentLayers, 0, kLentHeads};
    spec_.tokens = kLentTokens;
    const DecodeInputs profile{.profile = &profile_};
    const bool has_profile = std::string_view(GetParam()).starts_with("cairn");
    if (has_profile) inputs_ = profile;
    ASSERT_EQ(SetRecipe(GetParam(), inputs_, Digest{1}, &spec_), Error::kOk);
    shape_ = {spec_.tile, kLentLayers, kLentHeads, kLentTokens};
    Bytes source(HeadBytes(shape_) * kLentLayers * kLentHeads);
    std::normal_distribution<float> bell;
    for (size_t i = 0; i < source.size(); i += 2) {
      const uint16_t bits = FloatToBf16(bell(random_));
      std::memcpy(&source[i], &bits, 2);
    }
    image_ = EncodeOrFail(backend_, spec_, source, {.profile = inputs_.profile});
    ImageView view;
    ASSERT_EQ(ParseImage(image_, &view), Error::kOk);
    expected_ = DecodeOrFail(ReferenceBackend(), view, spec_.slice, inputs_);
    prefix_bytes_ = PrefixBytes(view.tile_count());
  }

  // As a reader of shared memory does it. `shared` has its own bounds.
  Error Read(std::span<const std::byte> shared, const TargetView& target) {
    Bytes prefix(kHeaderBytes);
    std::memcpy(prefix.data(), shared.data(), kHeaderBytes);
    uint64_t bytes = 0;
    if (const Error error = PeekPrefixBytes(prefix, &bytes); error != Error::kOk) return error;
    if (bytes > shared.size()) return Error::kTruncated;
    prefix.resize(bytes);
    std::memcpy(prefix.data(), shared.data(), bytes);
    ImageView view;
    if (const Error error = ParseSharedImage(prefix, shared, &view); error != Error::kOk) {
      return error;
    }
    if (view.spec() != spec_) return Error::kMismatch;
    const DecodeJob job{&view, spec_.slice, target, inputs_};
    Bytes scratch(ScratchBytes({&job, 1}));
    return DecodeAll(backend_, {&job, 1}, scratch);
  }

  std::mt19937_64 random_ = SeededRandom();
  const Backend& backend_ = *CpuBackends().front();
  const std::vector<std::byte> profile_bytes_ = ProfileBytes(kLentShape, SeededRandom()).bytes();
  Profile profile_;
  DecodeInputs inputs_;
  ImageSpec spec_;
  ViewShape shape_;
  Bytes image_, expected_;
  uint64_t prefix_bytes_ = 0;
};

TEST_P(SharedImageTest, DecodesAsAnyOther) {
  Bytes dense(expected_.size());
  ASSERT_EQ(Read(image_, DenseView(shape_, dense.data())), Error::kOk);
  EXPECT_EQ(dense, expected_);
  // To where no tile lies as in a payload: a token of all heads after the other.
  Bytes k(expected_.size()), v(expected_.size());
  TargetView scattered = DenseView(shape_, k.data());
  for (TargetPlane* plane : {&scattered.k, &scattered.v}) {
    const int64_t row = (plane == &scattered.k ? 32 : 24) * 2;
    plane->data = plane == &scattered.k ? k.data() : v.data();
    plane->first_byte = 0;
    plane->end_byte = static_cast<int64_t>(k.size());
    plane->stride_bytes = {kLentHeads * kLentTokens * row, row, kLentHeads * row, 2};
  }
  ASSERT_EQ(Read(image_, scattered), Error::kOk);
  for (size_t layer = 0, at = 0; layer < kLentLayers; ++layer) {
    for (size_t head = 0; head < kLentHeads; ++head) {
      for (const auto& [plane, row] : {std::pair(&k, size_t{64}), std::pair(&v, size_t{48})}) {
        for (size_t token = 0; token < kLentTokens; ++token, at += row) {
          const size_t place = ((layer * kLentTokens + token) * kLentHeads + head) * row;
          ASSERT_EQ(std::memcmp(&(*plane)[place], &expected_[at], row), 0);
        }
      }
    }
  }
}

TEST_P(SharedImageTest, EveryChangedByteIsFound) {
  Bytes target(expected_.size());
  for (size_t at = 0; at < image_.size(); at += at < prefix_bytes_ ? 1 : 97) {
    image_[at] ^= std::byte{0x10};
    EXPECT_NE(Read(image_, DenseView(shape_, target.data())), Error::kOk) << at;
    image_[at] ^= std::byte{0x10};
  }
}

TEST_P(SharedImageTest, OnlyDecodeAllTakesOne) {
  ImageView view;
  ASSERT_EQ(ParseSharedImage(std::span(image_).first(prefix_bytes_), image_, &view), Error::kOk);
  Bytes target(expected_.size());
  EXPECT_EQ(VerifyTiles(view), Error::kMismatch);
  EXPECT_EQ(Decode(backend_, view, spec_.slice, target, inputs_), Error::kMismatch);
  EXPECT_EQ(ParseSharedImage(std::span(image_).first(prefix_bytes_ - 1), image_, &view),
            Error::kTruncated);
  EXPECT_EQ(ParseSharedImage(std::span(image_).first(prefix_bytes_),
                             std::span(image_).first(image_.size() - 1), &view),
            Error::kTruncated);
}

// The slice's tiles lie apart: they are decoded where they lie.
TEST_P(SharedImageTest, ASliceInSeveralPlacesDecodesAsAGatheredOne) {
  ImageView whole;
  ASSERT_EQ(ParseImage(image_, &whole), Error::kOk);
  for (const Slice& slice : {Slice{0, 2, 1, 1}, Slice{0, 2, 0, 2}, Slice{1, 1, 0, 3}}) {
    Bytes gathered(image_.size());
    size_t bytes = 0;
    ASSERT_EQ(Gather({&whole, 1}, slice, gathered, &bytes), Error::kOk);
    gathered.resize(bytes);
    Bytes prefix(GatheredPrefixBytes(whole, slice));
    std::vector<std::span<const std::byte>> places(slice.layer_count);
    PlacedImage image;
    ASSERT_EQ(GatherInPlace({&whole, 1}, slice, prefix, places, &image), Error::kOk);
    EXPECT_EQ(image.places.size(), slice.layer_count) << "one a layer";
    EXPECT_EQ(image.bytes, bytes);
    EXPECT_EQ(image.crc32c, Crc32c(gathered));
    Bytes joined = prefix;
    std::vector<SharedPart> parts;
    for (const std::span<const std::byte> place : image.places) {
      parts.push_back({joined.size(), place});
      joined.insert(joined.end(), place.begin(), place.end());
    }
    ASSERT_EQ(joined, gathered);
    ImageView view;
    ASSERT_EQ(ParseSharedImage(image.prefix, parts, &view), Error::kOk);
    ImageView copied;
    ASSERT_EQ(ParseImage(gathered, &copied), Error::kOk);
    const Bytes expected = DecodeOrFail(ReferenceBackend(), copied, slice, inputs_);
    Bytes target(expected.size());
    const ViewShape shape = {spec_.tile, slice.layer_count, slice.head_count, kLentTokens};
    const DecodeJob job{&view, slice, DenseView(shape, target.data()), inputs_};
    Bytes scratch(ScratchBytes({&job, 1}));
    ASSERT_EQ(DecodeAll(backend_, {&job, 1}, scratch), Error::kOk);
    EXPECT_EQ(target, expected);
    // A changed byte of any place is found.
    for (const std::span<const std::byte> place : image.places) {
      image_[static_cast<size_t>(place.data() - image_.data()) + place.size() / 2] ^= std::byte{1};
      EXPECT_NE(DecodeAll(backend_, {&job, 1}, scratch), Error::kOk);
      image_[static_cast<size_t>(place.data() - image_.data()) + place.size() / 2] ^= std::byte{1};
    }
    EXPECT_EQ(GatherInPlace({&whole, 1}, slice, prefix, std::span(places).first(places.size() - 1),
                            &image),
              Error::kTooLarge);
    EXPECT_EQ(GatherInPlace({&whole, 1}, slice, std::span(prefix).first(prefix.size() - 1), places,
                            &image),
              Error::kTargetTooSmall);
  }
}

TEST_P(SharedImageTest, PartsThatAreNotTheImageAreRefused) {
  const std::span<const std::byte> prefix = std::span(image_).first(prefix_bytes_);
  const std::span<const std::byte> tiles = std::span(image_).subspan(prefix_bytes_);
  ImageView view;
  ASSERT_EQ(ParseImage(image_, &view), Error::kOk);
  const uint64_t cut = view.Tile(1).offset;
  const auto parse = [&](const std::vector<SharedPart>& parts) {
    return ParseSharedImage(prefix, parts, &view);
  };
  const SharedPart first{prefix_bytes_, tiles.first(cut - prefix_bytes_)};
  const SharedPart rest{cut, tiles.subspan(cut - prefix_bytes_)};
  EXPECT_EQ(parse({first, rest}), Error::kOk);
  EXPECT_EQ(parse({{prefix_bytes_, tiles}}), Error::kOk);
  EXPECT_EQ(parse({}), Error::kTruncated);
  EXPECT_EQ(parse({first}), Error::kTruncated);
  EXPECT_EQ(parse({rest}), Error::kTruncated);
  EXPECT_EQ(parse({rest, first}), Error::kTruncated);
  EXPECT_EQ(parse({first, first, rest}), Error::kTruncated);
  EXPECT_EQ(parse({first, {cut, {}}, rest}), Error::kTruncated);
  EXPECT_EQ(parse({first, {cut + 16, rest.bytes}}), Error::kTruncated);
  EXPECT_EQ(parse({first, rest, {image_.size(), tiles.first(16)}}), Error::kTruncated);
  EXPECT_EQ(parse({{prefix_bytes_, tiles.first(16)}, {prefix_bytes_ + 16, tiles.subspan(16)}}),
            Error::kIncomplete);
  const SharedPart all{prefix_bytes_, tiles};
  EXPECT_EQ(ParseSharedImage(image_, {&all, 1}, &view), Error::kTruncated);
}

// A thread writes all the time: single bits, whole words, lengths, and back. A reader gets an
// error or the values, whichever moment it meets.
TEST_P(SharedImageTest, AWriterMeanwhileMakesNoWrongValues) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is what is tested";
#endif
  const Bytes original = image_;
  std::atomic<bool> is_over{false};
  std::thread writer([&, random = SeededRandom()]() mutable {
    while (!is_over.load(std::memory_order_relaxed)) {
      const size_t at = random() % (image_.size() - 8);
      volatile std::byte* bytes = image_.data() + at;
      const size_t count = 1 + random() % 8;
      for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(random());
      for (size_t i = 0, pause = random() % 2000; i < pause; ++i) bytes[0] = bytes[0];
      for (size_t i = 0; i < count; ++i) bytes[i] = original[at + i];
      for (size_t i = 0, pause = random() % 2000; i < pause; ++i) bytes[0] = original[at];
    }
  });
  int read = 0, refused = 0;
  Bytes target(expected_.size());
  for (int i = 0; i < 300; ++i) {
    if (Read(image_, DenseView(shape_, target.data())) == Error::kOk) {
      ++read;
      ASSERT_EQ(std::memcmp(target.data(), expected_.data(), target.size()), 0) << i;
    } else {
      ++refused;
    }
  }
  is_over = true;
  writer.join();
  RecordProperty("read", read);
  RecordProperty("refused", refused);
}

INSTANTIATE_TEST_SUITE_P(Recipes, SharedImageTest,
                         testing::Values("raw", "exact", "exact:fast", "kivi:8", "kivi:2+", "ott:4",
                                         "fp8", "mixkvq", "logquant:4", "arkv", "cairn:2.3",
                                         "cairn-hot:2.4"));

}  // namespace
}  // namespace cairn::codecs
