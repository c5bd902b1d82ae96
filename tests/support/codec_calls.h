// SPDX-License-Identifier: Apache-2.0
#pragma once
// Codec calls that many tests make. If a call fails, the test fails.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "codecs/image/decode.h"
#include "codecs/image/encode.h"

namespace cairn::codecs {

using Bytes = std::vector<std::byte>;

inline Recipe RecipeNamed(std::string_view name) {
  Recipe recipe;
  if (ParsePlannedRecipe(name, &recipe) == Error::kOk) return recipe;
  EXPECT_EQ(ParseRecipe(name, &recipe), Error::kOk) << name;
  return recipe;
}

inline Bytes EncodeOrFail(const Backend& backend, const ImageSpec& spec,
                          std::span<const std::byte> source, const EncodeInputs& inputs = {}) {
  uint64_t bytes_max = 0;
  EXPECT_EQ(MaxImageBytes(spec, &bytes_max), Error::kOk);
  Bytes image(bytes_max, std::byte{0xCC});
  size_t bytes = 0;
  EXPECT_EQ(Encode(backend, spec, source, image, &bytes, inputs), Error::kOk);
  EXPECT_LE(bytes, bytes_max);
  image.resize(bytes);
  return image;
}

inline Bytes DecodeOrFail(const Backend& backend, const ImageView& view, const Slice& slice,
                          const DecodeInputs& inputs = {}) {
  uint64_t bytes = 0;
  EXPECT_EQ(SourceBytes(view.spec().tile, slice, view.spec().tokens, &bytes), Error::kOk);
  Bytes target(bytes);
  EXPECT_EQ(Decode(backend, view, slice, target, inputs), Error::kOk);
  return target;
}

}  // namespace cairn::codecs
