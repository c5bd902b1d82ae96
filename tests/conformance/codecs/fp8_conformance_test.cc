// SPDX-License-Identifier: Apache-2.0
// encode_fp8 and decode_fp8 of every backend against the reference, bit for bit: all tail lengths,
// alignments and contents, all codes under all scales.

#include <array>
#include <cstring>

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/fp8.h"
#include "tests/conformance/codecs/each_backend.h"

namespace cairn::codecs {
namespace {

using Rows = std::array<uint64_t, kRowWords>;

class Fp8ConformanceTest : public EachBackendTest {
 protected:
  // Calls check(tile) for every tail length of either side and each dtype.
  template <typename Check>
  void ForEachTile(Check check) {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3}) {
      for (uint32_t dim = 1; dim <= 140; ++dim) {
        const AffineTile tile{1 + Below(40), dim, 0, dtype, 8, false, Below(2) == 0};
        SCOPED_TRACE(testing::Message() << tile.tokens << " x " << dim << ", dtype "
                                        << int{static_cast<uint8_t>(dtype)});
        if (!HasFailure()) check(tile);
      }
      check(AffineTile{128, 1024, 0, dtype, 8, false, true});
    }
  }
  static size_t SourceBytesOf(const AffineTile& tile) {
    return size_t{tile.tokens} * tile.dim * ElementBytes(tile.dtype);
  }
  void ExpectLikeReference(const AffineTile& tile, const GuardedBytes& codes,
                           const GuardedBytes& scales) {
    GuardedBytes wanted(SourceBytesOf(tile), 0, 1);
    GuardedBytes got(SourceBytesOf(tile), Below(2) == 0 ? 0 : maker_.Misalignment(), 2);
    ReferenceBackend().decode_fp8(tile, codes.data(), scales.data(), wanted.data());
    OperationOf<&Backend::decode_fp8> (*GetParam())(tile, codes.data(), scales.data(), got.data());
    EXPECT_TRUE(got.Equals(wanted));
    EXPECT_TRUE(got.IsIntact());
  }
};

TEST_P(Fp8ConformanceTest, EncodesLikeTheReference) {
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    ForEachTile([&](const AffineTile& tile) {
      GuardedBytes source(SourceBytesOf(tile), maker_.Misalignment());
      maker_.Fill(tile, static_cast<Content>(content), source.data());
      Rows rows{};
      reference::SelectRows(tile, source.data(), rows.data());
      const size_t count = size_t{tile.tokens} * tile.dim;
      GuardedBytes wanted(count, 0, 1), wanted_scales(size_t{2} * tile.tokens, 0, 1);
      GuardedBytes got(count, maker_.Misalignment(), 2);
      GuardedBytes got_scales(size_t{2} * tile.tokens, maker_.Misalignment(), 2);
      ReferenceBackend().encode_fp8(tile, source.data(), rows.data(), wanted.data(),
                                    wanted_scales.data());
      OperationOf<&Backend::encode_fp8> (*GetParam())(tile, source.data(), rows.data(), got.data(),
                                                      got_scales.data());
      EXPECT_TRUE(got.Equals(wanted) && got_scales.Equals(wanted_scales)) << content;
      EXPECT_TRUE(got.IsIntact() && got_scales.IsIntact());
      ExpectLikeReference(tile, got, got_scales);
    });
  }
}

// Values on and next to every bound between codes, and past the last.
TEST_P(Fp8ConformanceTest, RoundsLikeTheReference) {
  constexpr uint32_t kDim = 128;
  for (uint32_t code = 0; code < 0x7E; ++code) {
    const float low = E4m3ToFloat(static_cast<uint8_t>(code));
    const float high = E4m3ToFloat(static_cast<uint8_t>(code + 1));
    const uint32_t middle = FloatBits((low + high) / 2);
    const AffineTile tile{1, kDim, 0, DType::kFp32, 8, false};
    GuardedBytes source(SourceBytesOf(tile), 0);
    for (uint32_t i = 0; i < kDim; ++i) {
      const uint32_t bits = (middle + i / 2 - kDim / 4) | (i % 2) << 31;
      std::memcpy(source.data() + size_t{4} * i, &bits, 4);
    }
    std::memcpy(source.data(), &kE4m3Max, 4);  // the scale is 1
    const Rows rows{};
    GuardedBytes wanted(kDim, 0, 1), got(kDim, 0, 2), scales(2, 0);
    ReferenceBackend().encode_fp8(tile, source.data(), rows.data(), wanted.data(), scales.data());
    OperationOf<&Backend::encode_fp8> (*GetParam())(tile, source.data(), rows.data(), got.data(),
                                                    scales.data());
    EXPECT_TRUE(got.Equals(wanted)) << code;
  }
}

// Any codes under any scales, NaN and infinities among them or not.
TEST_P(Fp8ConformanceTest, DecodesLikeTheReference) {
  for (const bool is_any : {false, true}) {
    ForEachTile([&](const AffineTile& tile) {
      GuardedBytes codes = AnyBytes(size_t{tile.tokens} * tile.dim);
      GuardedBytes scales = AnyBytes(size_t{2} * tile.tokens);
      for (size_t i = 0; i < codes.size() && !is_any; ++i) {
        if (IsE4m3Nan(codes.data()[i])) codes.data()[i] = 0x7E;
      }
      for (size_t i = 1; i < scales.size() && !is_any; i += 2) {
        if ((scales.data()[i] & 0x7C) == 0x7C) scales.data()[i] ^= 0x40;
      }
      ExpectLikeReference(tile, codes, scales);
    });
  }
}

TEST_P(Fp8ConformanceTest, DecodesAllCodesUnderAllScales) {
  const AffineTile tile{1024, 256, 0, DType::kFp16, 8, false, true};
  GuardedBytes codes(size_t{tile.tokens} * tile.dim, 0);
  GuardedBytes scales(size_t{2} * tile.tokens, 0);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<uint8_t>(i);
    codes.data()[i] = IsE4m3Nan(code) ? uint8_t{0x7E} : code;
  }
  for (uint32_t first = 0; first < 0x7C00; first += tile.tokens) {
    for (uint32_t token = 0; token < tile.tokens; ++token) {
      const auto scale = static_cast<uint16_t>(first + token);
      std::memcpy(scales.data() + size_t{2} * token, &scale, 2);
    }
    ExpectLikeReference(tile, codes, scales);
  }
}

CAIRN_EACH_BACKEND(Fp8ConformanceTest);

}  // namespace
}  // namespace cairn::codecs
