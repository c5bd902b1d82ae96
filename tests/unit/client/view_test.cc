// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/random.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr uint16_t kLayers = 3, kHeads = 2, kTokens = 16;

ViewShape Shape(codecs::DType dtype, uint32_t k_dim = 8, uint32_t v_dim = 12) {
  return {{codecs::GroupKind::kKv, dtype, k_dim, v_dim}, kLayers, kHeads, kTokens};
}

std::vector<std::byte> RandomBytes(size_t count) {
  std::mt19937_64 random = SeededRandom();
  std::vector<std::byte> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

size_t PayloadBytes(const ViewShape& shape) {
  return HeadBytes(shape) * shape.layers * shape.heads;
}

// An engine's tensor [layer, token, head, dim] with `step` bytes from one element of a row to the
// next, written the plain way.
struct Engine {
  Engine(const ViewShape& shape, uint32_t dim, int64_t step)
      : element(codecs::ElementBytes(shape.tile.dtype)) {
    view.stride_bytes = {static_cast<int64_t>(kTokens) * kHeads * dim * step, dim * step,
                         static_cast<int64_t>(kHeads) * dim * step, step};
    memory = RandomBytes(static_cast<size_t>(kLayers) * kTokens * kHeads * dim * step);
    view.data = memory.data();
  }
  const std::byte* At(int layer, int head, int token, int dim) const {
    return view.data + layer * view.stride_bytes[0] + head * view.stride_bytes[1] +
           token * view.stride_bytes[2] + dim * view.stride_bytes[3];
  }
  size_t element;
  std::vector<std::byte> memory;
  PlaneView view;
};

// Source payload of K and V by five loops.
std::vector<std::byte> PlainGather(const ViewShape& shape, const Engine& k, const Engine& v) {
  std::vector<std::byte> payload;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      for (int plane = 0; plane < 2; ++plane) {
        const Engine& engine = plane == 0 ? k : v;
        const uint32_t dims = plane == 0 ? shape.tile.k_dim : shape.tile.v_dim;
        for (int token = 0; token < kTokens; ++token) {
          for (uint32_t dim = 0; dim < dims; ++dim) {
            const std::byte* at = engine.At(layer, head, token, static_cast<int>(dim));
            payload.insert(payload.end(), at, at + engine.element);
          }
        }
      }
    }
  }
  return payload;
}

class ViewTest : public testing::TestWithParam<std::tuple<codecs::DType, int>> {};

TEST_P(ViewTest, GathersAndScattersAsThePlainLoops) {
  const auto [dtype, gap] = GetParam();
  const ViewShape shape = Shape(dtype);
  const int64_t step = codecs::ElementBytes(dtype) * gap;
  Engine k(shape, shape.tile.k_dim, step);
  Engine v(shape, shape.tile.v_dim, step);
  const PlaneViews views{k.view, v.view};
  ASSERT_TRUE(Validate(shape, views).ok());

  std::vector<std::byte> payload(PayloadBytes(shape));
  Gather(shape, views, payload);
  EXPECT_EQ(payload, PlainGather(shape, k, v));

  Engine k2(shape, shape.tile.k_dim, step);
  Engine v2(shape, shape.tile.v_dim, step);
  std::fill(k2.memory.begin(), k2.memory.end(), std::byte{0xEE});
  std::fill(v2.memory.begin(), v2.memory.end(), std::byte{0xEE});
  Scatter(shape, {k2.view, v2.view}, payload);
  EXPECT_EQ(PlainGather(shape, k2, v2), payload);
  if (gap > 1) {  // what lies between the elements is left alone
    EXPECT_EQ(k2.memory[k2.element], std::byte{0xEE});
  }
}

INSTANTIATE_TEST_SUITE_P(DTypesAndGaps, ViewTest,
                         testing::Combine(testing::Values(codecs::DType::kBf16,
                                                          codecs::DType::kFp16,
                                                          codecs::DType::kFp32),
                                          testing::Values(1, 3)));

TEST(ViewTest, ContiguousViewsAreThePayloadItself) {
  const ViewShape shape = Shape(codecs::DType::kFp16);
  std::vector<std::byte> source = RandomBytes(PayloadBytes(shape));
  std::vector<std::byte> payload(source.size());
  Gather(shape, ContiguousViews(shape, source.data()), payload);
  EXPECT_EQ(payload, source);
}

TEST(ViewTest, LayerPointersAndTokenOffsetsReadAPagedCache) {
  // Each layer is a tensor of its own, made of pages of 4 tokens in no order.
  const ViewShape shape = Shape(codecs::DType::kBf16, 8, 8);
  constexpr int kPageTokens = 4;
  const int64_t token_bytes = kHeads * 8 * 2;
  const std::vector<int> pages = {5, 0, 7, 2};
  std::vector<int64_t> offsets;
  for (int token = 0; token < kTokens; ++token) {
    offsets.push_back((pages[token / kPageTokens] * kPageTokens + token % kPageTokens) *
                      token_bytes);
  }
  std::vector<std::vector<std::byte>> tensors;
  std::vector<std::byte*> layers;
  for (int layer = 0; layer < kLayers; ++layer) {
    tensors.push_back(RandomBytes(8 * kPageTokens * token_bytes));
    tensors.back()[0] = static_cast<std::byte>(layer);
  }
  for (auto& tensor : tensors) layers.push_back(tensor.data());
  const PlaneView view{.data = nullptr,
                       .layers = layers,
                       .token_offsets = offsets,
                       .stride_bytes = {0, 8 * 2, 0, 2}};
  ASSERT_TRUE(Validate(shape, {view, view}).ok());
  std::vector<std::byte> payload(PayloadBytes(shape));
  Gather(shape, {view, view}, payload);
  // Layer 2, head 1, V, token 9: page 7, row 1.
  const size_t head_bytes = HeadBytes(shape);
  const std::byte* found = payload.data() + (2 * kHeads + 1) * head_bytes + head_bytes / 2 + 9 * 16;
  EXPECT_EQ(std::memcmp(found, tensors[2].data() + offsets[9] + 16, 16), 0);

  const std::vector<std::vector<std::byte>> before = tensors;
  Scatter(shape, {view, view}, payload);
  EXPECT_EQ(tensors, before);
}

TEST(ViewTest, NegativeStridesReadBackwards) {
  const ViewShape shape = Shape(codecs::DType::kFp32, 4, 4);
  std::vector<std::byte> source = RandomBytes(PayloadBytes(shape));
  PlaneViews views = ContiguousViews(shape, source.data());
  for (PlaneView* view : {&views.k, &views.v}) {
    view->data += (kTokens - 1) * view->stride_bytes[2];
    view->stride_bytes[2] = -view->stride_bytes[2];
  }
  std::vector<std::byte> payload(source.size());
  Gather(shape, views, payload);
  EXPECT_EQ(std::memcmp(payload.data(), source.data() + 15 * 16, 16), 0);
  EXPECT_EQ(std::memcmp(payload.data() + 15 * 16, source.data(), 16), 0);
}

TEST(ViewTest, WhatCannotBeOfTheShapeIsRefusedByItsField) {
  const ViewShape shape = Shape(codecs::DType::kFp16);
  std::vector<std::byte> source(PayloadBytes(shape));
  const PlaneViews valid = ContiguousViews(shape, source.data());
  const auto message = [&](const PlaneViews& views) {
    return std::string(Validate(shape, views).message());
  };
  EXPECT_EQ(message(valid), "");
  PlaneViews views = valid;
  views.k.data = nullptr;
  EXPECT_THAT(message(views), HasSubstr("k.data"));
  views = valid;
  views.v.stride_bytes[3] = 0;
  EXPECT_THAT(message(views), HasSubstr("v.stride_bytes[3]"));
  views = valid;
  const std::vector<int64_t> offsets(3);
  views.v.token_offsets = offsets;
  EXPECT_THAT(message(views), HasSubstr("v.token_offsets"));
  views = valid;
  std::vector<std::byte*> layers(kLayers, nullptr);
  views.k.layers = layers;
  EXPECT_THAT(message(views), HasSubstr("k.layers[0]"));
  views.k.layers = std::span(layers).first(1);
  EXPECT_THAT(message(views), HasSubstr("k.layers has 1"));
}

}  // namespace
}  // namespace cairn
