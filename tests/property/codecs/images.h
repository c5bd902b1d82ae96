// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random specs and sources of images, and images changed so that their CRCs fit.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/numbers/math.h"
#include "codecs/types/bytes.h"
#include "tests/support/codec_calls.h"
#include "tests/support/elements.h"

namespace cairn::codecs {

inline constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3,
                                       DType::kFp8E5m2};

inline const Backend& BestBackend() { return *CpuBackends().front(); }

inline ImageSpec MakeSpec(DType dtype, const Slice& slice, uint16_t tokens, uint32_t k_dim,
                          uint32_t v_dim, const Recipe& recipe) {
  ImageSpec spec;
  spec.tile = {GroupKind::kKv, dtype, k_dim, v_dim};
  spec.slice = slice;
  spec.tokens = tokens;
  spec.recipe = recipe;
  spec.group = 1;
  for (size_t i = 0; i < spec.space.size(); ++i) {
    spec.space[i] = static_cast<uint8_t>(i);
    spec.key[i] = static_cast<uint8_t>(i * 3);
  }
  return spec;
}

inline float LoadValue(DType dtype, const std::byte* source, size_t index) {
  return LoadElement(dtype, U8(source), index);
}

inline void StoreValue(DType dtype, std::byte* target, size_t index, float value) {
  const uint32_t bits = BitsOfValue(dtype, value);
  const size_t bytes = ElementBytes(dtype);
  std::memcpy(target + index * bytes, &bits, bytes);
}

inline size_t SourceBytesOf(const ImageSpec& spec) {
  uint64_t bytes = 0;
  EXPECT_EQ(SourceBytes(spec.tile, spec.slice, spec.tokens, &bytes), Error::kOk);
  return bytes;
}

inline Bytes RandomBits(size_t bytes, std::mt19937_64& random) {
  Bytes out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

// Channels of different spread and offset, as K and V have them.
inline Bytes RandomValues(const ImageSpec& spec, std::mt19937_64& random) {
  Bytes source(SourceBytesOf(spec));
  std::normal_distribution<float> bell(0.0F, 1.0F);
  const size_t elements = source.size() / ElementBytes(spec.tile.dtype);
  for (size_t i = 0; i < elements; ++i) {
    const auto channel = static_cast<float>(i % 13);
    StoreValue(spec.tile.dtype, source.data(), i, bell(random) * channel + 5.0F * (channel - 6.0F));
  }
  return source;
}

inline ImageView ParseOrFail(const Bytes& image) {
  ImageView view;
  EXPECT_EQ(ParseImage(image, &view), Error::kOk);
  EXPECT_EQ(VerifyTiles(view), Error::kOk);
  return view;
}

// Of an image whose bytes before the tiles were changed.
inline void FixPrefixCrc(Bytes& image, uint32_t tile_count) {
  const size_t prefix = std::min<size_t>(PrefixBytes(tile_count), image.size());
  Store(image.data() + header::kCrc, PrefixCrc(std::span(image).first(prefix)));
}

// Of an image whose tile `index` was changed.
inline void FixTileCrc(Bytes& image, uint32_t index) {
  ImageView view;
  ASSERT_EQ(ParseImage(image, &view), Error::kOk);
  const uint32_t crc = Crc32c(view.TileContent(index));
  Store(image.data() + PrefixBytes(index) + directory::kCrc, crc);
  FixPrefixCrc(image, view.tile_count());
}

}  // namespace cairn::codecs
