// SPDX-License-Identifier: Apache-2.0
// The kernels that encode tiles without rows write the images that the CPU writes, and leave others
// to the kernel for any shape.
#include "kernels/body/affine_encode_fast.h"
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

class EncodeFastTest : public EncodeFixture {
 protected:
  // Of a cache whose rows lie at multiples of 16.
  CacheShape AlignedShape() {
    CacheShape shape = AnyWholeShape();
    shape.misalignment = 0;
    return shape;
  }
  // The elements of one token become `value`.
  void SetToken(uint32_t plane, uint32_t token, float value, ImageOf* image) {
    SetPlane(
        plane,
        [&](uint32_t t, uint32_t c, float was) { return t == token && c == 3 ? value : was; },
        image);
  }
};

TEST_F(EncodeFastTest, TailsOfEveryWidth) {
  constexpr uint16_t kTokens[] = {1, 3, 8, 9, 31, 33, 64, 100, 127, 128, 129, 200};
  constexpr uint32_t kDims[][2] = {{64, 128}, {128, 64}, {256, 64}, {128, 128}, {64, 256}};
  uint32_t trial = 0;
  for (const char* recipe : {"kivi:2", "kivi:4", "kivi:8"}) {
    for (const uint16_t tokens : kTokens) {
      const DType dtype = trial % 2 == 0 ? DType::kBf16 : DType::kFp16;
      const auto& dims = kDims[trial++ % std::size(kDims)];
      SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dims " << dims[0]
                                      << ", " << dims[1] << ", dtype " << static_cast<int>(dtype));
      CheckImage(MakeImage(recipe, Kv(dtype, dims[0], dims[1]), tokens, Content::kBell),
                 AlignedShape());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(coded_, 100U);
}

TEST_F(EncodeFastTest, EveryContent) {
  uint32_t trial = 0;
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      constexpr const char* kRecipes[] = {"kivi:2", "kivi:4", "kivi:8"};
      const char* recipe = kRecipes[trial++ % std::size(kRecipes)];
      SCOPED_TRACE(testing::Message()
                   << recipe << ", content " << content << ", dtype " << static_cast<int>(dtype));
      CheckImage(MakeImage(recipe, Kv(dtype, 64, 64), 70, static_cast<Content>(content)),
                 AlignedShape());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(with_rows_, 5U);
  EXPECT_GT(raw_, 5U);
}

// One value that has no code in a tile, or one group that no code brings back, wherever it is; and
// those that have one by a hair.
TEST_F(EncodeFastTest, LeavesOtherTiles) {
  const float kNone[] = {codecs::BitsFloat(0x7FC00000), codecs::BitsFloat(0xFF800000), 32768.0F,
                         -32768.0F};
  for (uint32_t round = 0; round < 8; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBf16 : DType::kFp16;
    ImageOf image = MakeImage("kivi:2", Kv(dtype, 128, 64), 130, Content::kBell);
    SetToken(round / 4, 7 + 15 * round, kNone[round / 2], &image);
    CheckImage(image, AlignedShape());
  }
  EXPECT_EQ(with_rows_, 8U * 4);
  ImageOf large = MakeImage("kivi:2", Kv(DType::kFp16, 64, 64), 20, Content::kBell);
  SetToken(0, 3, 32752.0F, &large);
  SetToken(1, 3, -32752.0F, &large);
  CheckImage(large, AlignedShape());
  EXPECT_EQ(with_rows_, 8U * 4);
  ImageOf constant = MakeImage("kivi:2", Kv(DType::kBf16, 64, 64), 130, Content::kBell);
  SetPlane(
      0,
      [](uint32_t token, uint32_t channel, float was) {
        return channel == 60 && token >= 128 ? 1.0000000e-10F : was;
      },
      &constant);
  SetPlane(
      1, [](uint32_t token, uint32_t, float was) { return token == 129 ? -1e-10F : was; },
      &constant);
  CheckImage(constant, AlignedShape());
  EXPECT_EQ(with_rows_, 8U * 4 + 4);
  EXPECT_EQ(raw_, 4U);
}

// Zeros below zero, and groups without a range.
TEST_F(EncodeFastTest, GroupsOfZeros) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    ImageOf image = MakeImage("kivi:4", Kv(dtype, 64, 64), 40, Content::kBell);
    for (const uint32_t plane : {0U, 1U}) {
      SetPlane(
          plane,
          [](uint32_t token, uint32_t channel, float was) {
            if (channel == 5 || token == 6) return -0.0F;
            return channel == 9 || token == 10 ? 0.5F : was;
          },
          &image);
    }
    CheckImage(image, AlignedShape());
  }
  EXPECT_EQ(raw_, 0U);
}

// Tiles of both ways beside each other, and images whose source is not there.
TEST_F(EncodeFastTest, BatchesOfBoth) {
  std::vector<ImageOf> images;
  for (const char* recipe : {"kivi:2", "kivi:8", "kivi:2+", "kivi:2", "exact"}) {
    const Content content = images.size() == 3 ? Content::kFewRows : Content::kBell;
    images.push_back(MakeImage(recipe, Kv(DType::kBf16, 64, 64), 40, content));
  }
  CheckBatch(images, 1);
}

template <uint32_t kBits>
void CheckCodes() {
  for (uint32_t code = 0; code < 256; ++code) {
    UnitCodes<kBits> codes;
    codes.Add(0, static_cast<float>(code), {0.0F, 1.0F});
    ASSERT_EQ(codes.of[0], codecs::Narrow(static_cast<uint8_t>(code), kBits)) << code;
  }
}

TEST_F(EncodeFastTest, CodesWithoutDivision) {
  CheckCodes<2>();
  CheckCodes<4>();
  CheckCodes<8>();
}

}  // namespace
}  // namespace cairn::kernels
