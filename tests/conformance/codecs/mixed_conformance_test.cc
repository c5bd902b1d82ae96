// SPDX-License-Identifier: Apache-2.0
// decode_mixed of every backend against the reference, bit for bit: all tail lengths, alignments
// and shares of the classes, any codes.

#include <array>
#include <vector>

#include "codecs/backend/reference/reference.h"
#include "codecs/numbers/mixed.h"
#include "codecs/pack/dense.h"
#include "tests/conformance/codecs/each_backend.h"

namespace cairn::codecs {
namespace {

class MixedConformanceTest : public EachBackendTest {
 protected:
  void ExpectLikeReference(uint32_t tokens, uint32_t dim, bool is_finite) {
    constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3};
    const DType dtype = kDTypes[Below(kDTypes.size())];
    const uint32_t group = Below(2) == 0 ? 32 : 128;
    std::vector<ChannelClass> classes(dim);
    std::array<size_t, kChannelClasses> counts{};
    const std::array<uint32_t, 2> shares = {Below(5), Below(5)};
    for (ChannelClass& one : classes) {
      const uint32_t any = Below(4);
      const uint8_t value = any < shares[0] ? 0 : any < shares[1] ? 1 : 2;
      one = static_cast<ChannelClass>(value);
      ++counts[value];
    }
    const GuardedBytes source = AnyBytes(tokens * counts[2] * ElementBytes(dtype));
    const GuardedBytes four = AnyBytes(size_t{tokens} * CodeRowBytes(counts[1], 4));
    const GuardedBytes two = AnyBytes(size_t{tokens} * CodeRowBytes(counts[0], 2));
    GuardedBytes params =
        AnyBytes((tokens + group - 1) / group * (counts[0] + counts[1]) * size_t{4});
    for (size_t i = 1; i < params.size() && is_finite; i += 2) {
      if ((params.data()[i] & 0x7C) == 0x7C) params.data()[i] ^= 0x40;
    }
    const MixedTile tile{tokens,         dim,           group,       dtype,      Below(2) == 0,
                         classes.data(), source.data(), four.data(), two.data(), params.data()};
    const size_t bytes = size_t{tokens} * dim * ElementBytes(dtype);
    GuardedBytes wanted(bytes, 0, 1);
    GuardedBytes got(bytes, Below(2) == 0 ? 0 : maker_.Misalignment(), 2);
    ReferenceBackend().decode_mixed(tile, wanted.data());
    OperationOf<&Backend::decode_mixed> (*GetParam())(tile, got.data());
    EXPECT_TRUE(got.Equals(wanted)) << tokens << " x " << dim << ", group " << group << ", dtype "
                                    << int{static_cast<uint8_t>(dtype)} << ", classes " << counts[0]
                                    << ' ' << counts[1] << ' ' << counts[2];
    EXPECT_TRUE(got.IsIntact());
  }
};

TEST_P(MixedConformanceTest, DecodesLikeTheReference) {
  for (const bool is_finite : {true, false}) {
    for (uint32_t dim = 1; dim <= 140; ++dim) ExpectLikeReference(1 + Below(140), dim, is_finite);
    for (uint32_t tokens = 1; tokens <= 140; ++tokens) {
      ExpectLikeReference(tokens, 1 + Below(140), is_finite);
    }
    for (uint32_t i = 0; i < 60; ++i) ExpectLikeReference(128, 32 + i % 4 * 32, is_finite);
    ExpectLikeReference(40, 1024, is_finite);
    ExpectLikeReference(9, 4096, is_finite);
  }
}

CAIRN_EACH_BACKEND(MixedConformanceTest);

}  // namespace
}  // namespace cairn::codecs
