// SPDX-License-Identifier: Apache-2.0
// No call of the codecs that moves payload takes memory from the heap.
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/transform/demote.h"
#include "gtest/gtest.h"
#include "tests/support/allocations.h"

namespace cairn::codecs {
namespace {

TEST(AllocationTest, CodecsDoNotAllocate) {
  ImageSpec spec;
  spec.tile = {GroupKind::kKv, DType::kBf16, 64, 64};
  spec.slice = {0, 2, 0, 2};
  spec.tokens = 128;
  uint64_t source_bytes = 0;
  uint64_t image_bytes_max = 0;
  ASSERT_EQ(SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes), Error::kOk);
  ASSERT_EQ(MaxImageBytes(spec, &image_bytes_max), Error::kOk);
  std::vector<std::byte> source(source_bytes);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * i % 61);
  std::vector<std::byte> image(image_bytes_max);
  std::vector<std::byte> other(image_bytes_max);
  int tried = 0;
  for (const Backend* backend : CpuBackends()) {
    for (const Recipe& recipe : AllRecipes()) {
      spec.recipe = recipe;
      size_t bytes = 0;
      ImageView view;
      bool is_ok = true;
      const int before = AllocationCount();
      is_ok &= Encode(*backend, spec, source, image, &bytes) == Error::kOk;
      is_ok &= ParseImage(std::span(image).first(bytes), &view) == Error::kOk;
      is_ok &= VerifyTiles(view) == Error::kOk;
      is_ok &= Gather({&view, 1}, {1, 1, 0, 2}, other, &bytes) == Error::kOk;
      is_ok &= Demote(*backend, view, recipe, other, &bytes) == Error::kOk;
      is_ok &= Decode(*backend, view, spec.slice, other) == Error::kOk;
      EXPECT_EQ(AllocationCount(), before) << backend->name;
      EXPECT_TRUE(is_ok) << backend->name;
      ++tried;
    }
  }
  EXPECT_GE(tried, 7);
}

}  // namespace
}  // namespace cairn::codecs
