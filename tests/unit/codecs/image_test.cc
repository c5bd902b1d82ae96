// SPDX-License-Identifier: Apache-2.0
// Images byte by byte, and the arguments that encoders and decoders refuse.
#include "codecs/image/image.h"
#include "codecs/format/image_header.h"

#include <algorithm>
#include <span>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/crc_join.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/types/bytes.h"
#include "gtest/gtest.h"

namespace cairn::codecs {
namespace {

ImageSpec SmallSpec() {
  ImageSpec spec;
  spec.space.fill(0xAA);
  spec.key.fill(0xBB);
  spec.group = 0x0102;
  spec.tile = {GroupKind::kKv, DType::kFp32, 3, 2};
  spec.slice = {7, 2, 5, 3};
  spec.tokens = 4;
  spec.first_position = 0x1122334455667788;
  return spec;
}

std::vector<std::byte> EncodeSmall() {
  const ImageSpec spec = SmallSpec();
  uint64_t bytes_max = 0;
  EXPECT_EQ(MaxImageBytes(spec, &bytes_max), Error::kOk);
  std::vector<std::byte> image(bytes_max);
  const std::vector<std::byte> source(6 * 4 * 5 * 4, std::byte{0x42});
  size_t bytes = 0;
  EXPECT_EQ(Encode(ReferenceBackend(), spec, source, image, &bytes), Error::kOk);
  EXPECT_EQ(bytes, bytes_max);
  return image;
}

TEST(ImageTest, FieldsStandWhereTheFormatSays) {
  const std::vector<std::byte> image = EncodeSmall();
  const std::byte* base = image.data();
  EXPECT_EQ(std::memcmp(base, "CKVI", 4), 0);
  EXPECT_EQ(Load<uint16_t>(base + 4), 1);
  EXPECT_EQ(Load<uint16_t>(base + 6), 320);
  EXPECT_EQ(Load<uint32_t>(base + 8), 0U);
  // 12 tiles: K of 48 bytes, V of 32.
  EXPECT_EQ(Load<uint64_t>(base + 16), 320U + 12 * 16 + 6 * (48 + 32));
  EXPECT_EQ(Load<uint32_t>(base + 24), 12U);
  EXPECT_EQ(Load<uint16_t>(base + 28), 0x0102);
  EXPECT_EQ(Load<uint8_t>(base + 30), 1);
  EXPECT_EQ(Load<uint8_t>(base + 31), 3);
  EXPECT_EQ(Load<uint8_t>(base + 32), 0xAA);
  EXPECT_EQ(Load<uint8_t>(base + 95), 0xBB);
  EXPECT_EQ(Load<uint64_t>(base + 96), 0x1122334455667788U);
  EXPECT_EQ(Load<uint16_t>(base + 104), 4);
  EXPECT_EQ(Load<uint16_t>(base + 106), 7);
  EXPECT_EQ(Load<uint16_t>(base + 108), 2);
  EXPECT_EQ(Load<uint16_t>(base + 110), 5);
  EXPECT_EQ(Load<uint16_t>(base + 112), 3);
  EXPECT_EQ(Load<uint32_t>(base + 116), 3U);
  EXPECT_EQ(Load<uint32_t>(base + 120), 2U);
  EXPECT_EQ(Load<uint32_t>(base + 124), 0U);  // units of one tensor, no symbol mode
  EXPECT_EQ(Load<uint8_t>(base + 128), 1);
  EXPECT_EQ(Load<uint8_t>(base + 129), 16);
  // The second entry: offset / 16, bytes, …, form.
  EXPECT_EQ(Load<uint32_t>(base + 336), (320U + 12 * 16 + 48) / 16);
  EXPECT_EQ(Load<uint32_t>(base + 340), 32U);
  EXPECT_EQ(Load<uint32_t>(base + 348), 0U);
}

TEST(ImageTest, TilesAreFoundByLayerHeadAndPlane) {
  const std::vector<std::byte> image = EncodeSmall();
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  EXPECT_EQ(view.spec(), SmallSpec());
  ASSERT_EQ(view.tile_count(), 12U);
  for (uint32_t i = 0; i < view.tile_count(); ++i) EXPECT_EQ(view.IndexOf(view.IdOf(i)), i);
  EXPECT_EQ(view.IndexOf({8, 6, 1}), 9U);
  EXPECT_EQ(view.Tile(9).bytes, 32U);
  EXPECT_EQ(view.TileContent(9).data(), image.data() + view.Tile(9).offset);
}

TEST(ImageTest, APrefixSaysAllButTheTiles) {
  const std::vector<std::byte> image = EncodeSmall();
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  const size_t bytes = PrefixBytes(view.tile_count());
  const std::vector<std::byte> alone(image.begin(), image.begin() + static_cast<ptrdiff_t>(bytes));
  ImagePrefix prefix;
  ASSERT_EQ(ParseImagePrefix(alone, &prefix), Error::kOk);
  EXPECT_EQ(prefix.spec(), view.spec());
  EXPECT_EQ(prefix.image_bytes(), image.size());
  EXPECT_EQ(prefix.directory_crc(), view.directory_crc());
  EXPECT_EQ(prefix.Tile(9).offset, view.Tile(9).offset);
  for (const size_t cut : {size_t{0}, kHeaderBytes - 1, kHeaderBytes, bytes - 1}) {
    EXPECT_EQ(ParseImagePrefix(std::span(alone).first(cut), &prefix), Error::kTruncated) << cut;
  }
  ImageView whole;
  EXPECT_EQ(ParseImage(alone, &whole), Error::kTruncated);
}

TEST(ImageTest, ItsCrcIsJoinedFromThoseThatItStates) {
  std::vector<std::byte> image = EncodeSmall();
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  EXPECT_EQ(JoinCrc32c(view), Crc32c(image));
  image[view.Tile(view.tile_count() - 1).offset] ^= std::byte{1};
  EXPECT_NE(JoinCrc32c(view), Crc32c(image)) << "a tile is not what the image says";
}

TEST(ImageTest, SpecsOutOfLimitsAreRefused) {
  uint64_t bytes = 0;
  const auto with = [&](auto change) {
    ImageSpec spec = SmallSpec();
    change(spec);
    return Validate(spec);
  };
  EXPECT_EQ(with([](ImageSpec&) {}), Error::kOk);
  EXPECT_EQ(with([](ImageSpec& s) { s.tokens = 0; }), Error::kInvalidShape);
  EXPECT_EQ(with([](ImageSpec& s) { s.tokens = 1025; }), Error::kInvalidShape);
  EXPECT_EQ(with([](ImageSpec& s) { s.slice.head_count = 0; }), Error::kInvalidSlice);
  EXPECT_EQ(with([](ImageSpec& s) { s.slice.layer_first = 65534; }), Error::kInvalidSlice);
  EXPECT_EQ(with([](ImageSpec& s) { s.recipe.bits = 3; }), Error::kUnknownRecipe);
  EXPECT_EQ(with([](ImageSpec& s) { s.domain = Domain{1}; }), Error::kInvalidShape);
  EXPECT_EQ(with([](ImageSpec& s) { s.side_object_count = 1; }), Error::kInvalidShape);
  EXPECT_EQ(with([](ImageSpec& s) { s.unit.layers = 2; }), Error::kUnknownUnit);
  EXPECT_EQ(with([](ImageSpec& s) { s.unit.heads = 0; }), Error::kUnknownUnit);
  EXPECT_EQ(with([](ImageSpec& s) { s.unit.planes = 2; }), Error::kUnknownUnit);
  EXPECT_EQ(with([](ImageSpec& s) { s.symbol_mode = 1; }), Error::kUnknownUnit);
  EXPECT_EQ(with([](ImageSpec& s) { s.first_position = ~uint64_t{0}; }), Error::kInvalidShape);
  EXPECT_EQ(with([](ImageSpec& s) { s.slice = {0, 300, 0, 300}; }), Error::kTooLarge);
  EXPECT_EQ(with([](ImageSpec& s) {
              s.tile.k_dim = 4096;
              s.tokens = 1024;
              s.slice = {0, 4, 0, 1};
            }),
            Error::kTooLarge);
  ImageSpec spec = SmallSpec();
  spec.tile.dtype = DType{77};
  EXPECT_EQ(MaxImageBytes(spec, &bytes), Error::kInvalidShape);
}

TEST(ImageTest, WrongSizesAreRefused) {
  const std::vector<std::byte> image = EncodeSmall();
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  const Backend& backend = ReferenceBackend();
  std::vector<std::byte> source(6 * 4 * 5 * 4);
  EXPECT_EQ(Decode(backend, view, {7, 2, 5, 3}, std::span(source).first(479)),
            Error::kTargetTooSmall);
  EXPECT_EQ(Decode(backend, view, {6, 2, 5, 3}, source), Error::kInvalidSlice);
  EXPECT_EQ(Decode(backend, view, {7, 2, 5, 0}, source), Error::kInvalidSlice);
  EXPECT_EQ(VerifyTiles(view, {7, 3, 5, 3}), Error::kInvalidSlice);
  std::vector<std::byte> target(4096);
  size_t bytes = 99;
  EXPECT_EQ(Encode(backend, SmallSpec(), std::span(source).first(479), target, &bytes),
            Error::kSourceSize);
  source.push_back(std::byte{0});
  EXPECT_EQ(Encode(backend, SmallSpec(), source, target, &bytes), Error::kSourceSize);
  EXPECT_EQ(bytes, 99U);
}

TEST(ImageTest, PeekTellsHowMuchToRead) {
  const std::vector<std::byte> image = EncodeSmall();
  uint64_t bytes = 0;
  EXPECT_EQ(PeekImageBytes(std::span(image).first(kHeaderBytes), &bytes), Error::kOk);
  EXPECT_EQ(bytes, image.size());
  EXPECT_EQ(PeekImageBytes(std::span(image).first(kHeaderBytes - 1), &bytes), Error::kTruncated);
  std::vector<std::byte> changed = image;
  Store(changed.data() + 16, kImageBytesMax + 1);
  EXPECT_EQ(PeekImageBytes(changed, &bytes), Error::kBadHeader);
  Store(changed.data() + 4, uint16_t{2});
  EXPECT_EQ(PeekImageBytes(changed, &bytes), Error::kBadVersion);
  changed[0] = std::byte{0};
  EXPECT_EQ(PeekImageBytes(changed, &bytes), Error::kBadMagic);
}

TEST(ImageTest, ErrorsHaveNames) {
  EXPECT_EQ(Name(Error::kBadChecksum), "bad checksum");
  EXPECT_EQ(Name(Error{200}), "unknown error");
}

// An image of which header, directory and the tiles of one head were read: K and V in either layer,
// and 16 bytes before them.
class GatherPartsTest : public testing::Test {
 protected:
  GatherPartsTest() {
    EXPECT_EQ(ParseImage(image_, &whole_), Error::kOk);
    const uint64_t prefix_bytes = whole_.Tile(0).offset;
    EXPECT_EQ(ParseImagePrefix(std::span(image_).first(prefix_bytes), &prefix_), Error::kOk);
    for (const uint16_t layer : {uint16_t{7}, uint16_t{8}}) {
      const TileEntry k = whole_.Tile(whole_.IndexOf({layer, 6, 0}));
      const TileEntry v = whole_.Tile(whole_.IndexOf({layer, 6, 1}));
      const uint64_t begin = k.offset - 16, bytes = v.offset + v.bytes - begin;
      const uint64_t at = parts_.empty() ? PrefixBytes(4) : read_.size() + 7;
      parts_.push_back({.offset = begin, .bytes = bytes, .at = at});
      read_.resize(at + bytes, std::byte{0xEE});
      std::copy_n(image_.begin() + static_cast<ptrdiff_t>(begin), bytes,
                  read_.begin() + static_cast<ptrdiff_t>(at));
    }
  }
  // Of what was read, without its last bytes.
  Error Gather(const Slice& slice, std::span<const ImagePart> parts, size_t missing_bytes = 0) {
    gathered_.assign(read_.begin(), read_.end() - static_cast<ptrdiff_t>(missing_bytes));
    size_t bytes = 0;
    const Error error = GatherParts(prefix_, slice, parts, gathered_, &bytes);
    gathered_.resize(bytes);
    return error;
  }

  const std::vector<std::byte> image_ = EncodeSmall();
  const Slice slice_ = {7, 2, 6, 1};
  ImageView whole_;
  ImagePrefix prefix_;
  std::vector<ImagePart> parts_;
  std::vector<std::byte> read_, gathered_;
};

TEST_F(GatherPartsTest, IsWhatTheWholeImageGives) {
  std::vector<std::byte> expected(image_.size());
  size_t bytes = 0;
  ASSERT_EQ(codecs::Gather({&whole_, 1}, slice_, expected, &bytes), Error::kOk);
  expected.resize(bytes);
  ASSERT_EQ(Gather(slice_, parts_), Error::kOk);
  EXPECT_EQ(gathered_, expected);
}

TEST_F(GatherPartsTest, RefusesWhatIsNotThere) {
  EXPECT_EQ(Gather({7, 2, 4, 1}, parts_), Error::kInvalidSlice);
  EXPECT_EQ(Gather({7, 0, 6, 1}, parts_), Error::kInvalidSlice);
  EXPECT_EQ(Gather({7, 2, 7, 1}, parts_), Error::kIncomplete);
  EXPECT_EQ(Gather(slice_, std::span(parts_).first(1)), Error::kIncomplete);
  EXPECT_EQ(Gather(slice_, parts_, /*missing_bytes=*/1), Error::kTargetTooSmall);
  std::vector<ImagePart> wrong = parts_;
  --wrong[1].bytes;
  EXPECT_EQ(Gather(slice_, wrong), Error::kIncomplete);
  wrong = parts_;
  --wrong[0].at;  // where the directory comes
  EXPECT_EQ(Gather(slice_, wrong), Error::kTargetTooSmall);
}

}  // namespace
}  // namespace cairn::codecs
