// SPDX-License-Identifier: Apache-2.0
// Slices of any layout make one image, and any part of it can be had alone.

#include "tests/property/codecs/images.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

constexpr Slice kWhole{2, 4, 1, 6};

struct Block {
  ImageSpec spec;
  Bytes source;  // of kWhole
};

Block MakeBlock(std::string_view recipe, std::mt19937_64& random) {
  Block block;
  block.spec = MakeSpec(DType::kBf16, kWhole, 48, 32, 24, RecipeNamed(recipe));
  block.source = RandomValues(block.spec, random);
  // So that tiles differ in form and rows.
  StoreValue(DType::kBf16, block.source.data(), 40, INFINITY);
  return block;
}

// The source payload of a part, by the layout that shape.h states.
Bytes Cut(const Block& block, const Slice& part) {
  const size_t head_bytes =
      size_t{block.spec.tokens} * (block.spec.tile.k_dim + block.spec.tile.v_dim) * 2;
  Bytes out;
  for (size_t layer = part.layer_first; layer < part.layer_first + size_t{part.layer_count};
       ++layer) {
    for (size_t head = part.head_first; head < part.head_first + size_t{part.head_count}; ++head) {
      const size_t index =
          (layer - kWhole.layer_first) * kWhole.head_count + (head - kWhole.head_first);
      const std::byte* first = block.source.data() + index * head_bytes;
      out.insert(out.end(), first, first + head_bytes);
    }
  }
  return out;
}

Bytes EncodePart(const Block& block, const Slice& part) {
  ImageSpec spec = block.spec;
  spec.slice = part;
  return EncodeOrFail(BestBackend(), spec, Cut(block, part));
}

Bytes GatherOrFail(std::span<const ImageView> sources, const Slice& slice) {
  uint64_t wanted = 0;
  EXPECT_EQ(GatheredBytes(sources, slice, &wanted), Error::kOk);
  Bytes target(wanted + 5, std::byte{0x3C});
  size_t bytes = 0;
  EXPECT_EQ(Gather(sources, slice, target, &bytes), Error::kOk);
  EXPECT_EQ(bytes, wanted);
  target.resize(bytes);
  return target;
}

Slice RandomSlice(std::mt19937_64& random) {
  const auto layer = static_cast<uint16_t>(random() % kWhole.layer_count);
  const auto head = static_cast<uint16_t>(random() % kWhole.head_count);
  return {static_cast<uint16_t>(kWhole.layer_first + layer),
          static_cast<uint16_t>(1 + random() % (kWhole.layer_count - layer)),
          static_cast<uint16_t>(kWhole.head_first + head),
          static_cast<uint16_t>(1 + random() % (kWhole.head_count - head))};
}

TEST(SlicePropertyTest, TensorParallelHalvesMakeTheWhole) {
  std::mt19937_64 random = SeededRandom();
  for (const std::string_view recipe :
       {"raw", "kivi:4", "kivi:2+", "exact", "exact:fast", "ott:2"}) {
    const Block block = MakeBlock(recipe, random);
    const Bytes first = EncodePart(block, {2, 4, 1, 3});
    const Bytes second = EncodePart(block, {2, 4, 4, 3});
    const std::array views = {ParseOrFail(second), ParseOrFail(first)};
    EXPECT_EQ(GatherOrFail(views, kWhole), EncodePart(block, kWhole)) << recipe;
  }
}

TEST(SlicePropertyTest, AnyPartsThatCoverASliceMakeIt) {
  std::mt19937_64 random = SeededRandom();
  const Block block = MakeBlock("kivi:2", random);
  int covered = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<Bytes> images;
    std::vector<ImageView> views;
    const size_t count = 1 + random() % 5;
    for (size_t j = 0; j < count; ++j) images.push_back(EncodePart(block, RandomSlice(random)));
    for (const Bytes& image : images) views.push_back(ParseOrFail(image));
    const Slice wanted = RandomSlice(random);
    bool is_covered = true;
    for (uint16_t l = 0; l < wanted.layer_count; ++l) {
      for (uint16_t h = 0; h < wanted.head_count; ++h) {
        const Slice one{static_cast<uint16_t>(wanted.layer_first + l), 1,
                        static_cast<uint16_t>(wanted.head_first + h), 1};
        is_covered &= std::any_of(views.begin(), views.end(), [&](const ImageView& view) {
          return view.spec().slice.Contains(one);
        });
      }
    }
    if (is_covered) {
      ++covered;
      EXPECT_EQ(GatherOrFail(views, wanted), EncodePart(block, wanted));
    } else {
      Bytes target(1 << 20);
      size_t bytes = 0;
      EXPECT_EQ(Gather(views, wanted, target, &bytes), Error::kIncomplete);
    }
  }
  EXPECT_GT(covered, 20);
}

TEST(SlicePropertyTest, DecodingAPartIsThePartOfTheDecoded) {
  std::mt19937_64 random = SeededRandom();
  Block block = MakeBlock("kivi:4", random);
  const Bytes image = EncodePart(block, kWhole);
  const ImageView view = ParseOrFail(image);
  Block decoded = block;
  decoded.source = DecodeOrFail(BestBackend(), view, kWhole);
  for (int i = 0; i < 50; ++i) {
    const Slice part = RandomSlice(random);
    EXPECT_EQ(VerifyTiles(view, part), Error::kOk);
    EXPECT_EQ(DecodeOrFail(BestBackend(), view, part), Cut(decoded, part));
  }
}

TEST(SlicePropertyTest, TheFirstSourceWinsATile) {
  std::mt19937_64 random = SeededRandom();
  const Block block = MakeBlock("raw", random);
  Block other = block;
  other.source[0] ^= std::byte{1};
  const Bytes first = EncodePart(block, kWhole);
  const Bytes second = EncodePart(other, kWhole);
  const std::array views = {ParseOrFail(first), ParseOrFail(second)};
  EXPECT_EQ(GatherOrFail(views, kWhole), first);
}

TEST(SlicePropertyTest, GatherRefusesWhatDoesNotBelongTogether) {
  std::mt19937_64 random = SeededRandom();
  const Block block = MakeBlock("kivi:4", random);
  const Bytes first = EncodePart(block, {2, 4, 1, 3});
  Bytes target(1 << 20);
  size_t bytes = 0;
  const auto gather_with = [&](const Block& other) {
    const Bytes second = EncodePart(other, {2, 4, 4, 3});
    const std::array views = {ParseOrFail(first), ParseOrFail(second)};
    return Gather(views, kWhole, target, &bytes);
  };
  EXPECT_EQ(gather_with(block), Error::kOk);
  Block other = block;
  other.spec.key[31] ^= 1;
  EXPECT_EQ(gather_with(other), Error::kMismatch);
  other = block;
  other.spec.recipe = RecipeNamed("kivi:2");
  EXPECT_EQ(gather_with(other), Error::kMismatch);
  other = block;
  other.spec.group += 1;
  EXPECT_EQ(gather_with(other), Error::kMismatch);
  other = block;
  other.spec.first_position = 48;
  EXPECT_EQ(gather_with(other), Error::kMismatch);

  const std::array views = {ParseOrFail(first)};
  EXPECT_EQ(Gather({}, kWhole, target, &bytes), Error::kIncomplete);
  EXPECT_EQ(Gather(views, Slice{}, target, &bytes), Error::kInvalidSlice);
  uint64_t wanted = 0;
  ASSERT_EQ(GatheredBytes(views, {2, 1, 1, 1}, &wanted), Error::kOk);
  EXPECT_EQ(Gather(views, {2, 1, 1, 1}, std::span(target).first(wanted - 1), &bytes),
            Error::kTargetTooSmall);
}

// A target may be as small as the image: one byte less is refused, and nothing behind it is
// touched.
TEST(SlicePropertyTest, EncodeKeepsInsideItsTarget) {
  std::mt19937_64 random = SeededRandom();
  for (const Recipe& recipe : AllRecipes()) {
    Block block = MakeBlock("raw", random);
    block.spec.recipe = recipe;
    const Slice part{2, 1, 1, 2};
    block.spec.slice = part;
    const Bytes source = Cut(block, part);
    const Bytes image = EncodeOrFail(BestBackend(), block.spec, source);
    for (size_t bytes = 0; bytes <= image.size(); bytes += bytes + 40 < image.size() ? 37 : 1) {
      Bytes target(bytes);  // exactly, for ASan
      size_t written = 0;
      const Error error = Encode(BestBackend(), block.spec, source, target, &written);
      EXPECT_EQ(error, bytes < image.size() ? Error::kTargetTooSmall : Error::kOk) << bytes;
      EXPECT_TRUE(error != Error::kOk || target == image);
    }
  }
}

}  // namespace
}  // namespace cairn::codecs
