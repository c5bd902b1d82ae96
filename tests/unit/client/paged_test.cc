// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/paged.h"

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

// An engine with blocks of 32 tokens, the store with blocks of 64.
constexpr uint32_t kDim = 32, kEngineTokens = 32, kTokens = 64, kElement = 2;
constexpr uint16_t kLayers = 2, kHeads = 2;
constexpr int64_t kBlocks = 5;
constexpr int64_t kPlane = kEngineTokens * kDim;  // elements of one head of one block

ViewShape Shape() {
  return {{codecs::GroupKind::kKv, codecs::DType::kBf16, kDim, kDim}, kLayers, kHeads, kTokens};
}

// [layer, block, head, plane, kPlane]: as vLLM packs K and V on a processor with a matrix unit.
struct Tiled {
  std::vector<uint16_t> memory =
      std::vector<uint16_t>(static_cast<size_t>(kLayers) * kBlocks * kHeads * 2 * kPlane);

  Tiled() { std::iota(memory.begin(), memory.end(), uint16_t{1}); }

  PagedPlane Plane(bool is_k) {
    PagedPlane plane;
    plane.data = reinterpret_cast<std::byte*>(memory.data() + (is_k ? 0 : kPlane));
    plane.head_stride = 2 * kPlane * kElement;
    plane.block_stride = kHeads * plane.head_stride;
    plane.layer_stride = kBlocks * plane.block_stride;
    if (is_k) {  // tiles [token / 16, dim / 2, 16, 2]
      plane.tokens_per_run = 16;
      plane.token_run_stride = 16 * kDim * kElement;
      plane.token_stride = 2 * kElement;
      plane.dims_per_run = 2;
      plane.dim_run_stride = 32 * kElement;
      plane.dim_stride = kElement;
    } else {  // tiles [dim / 16, token / 2, 16, 2]
      plane.tokens_per_run = 2;
      plane.token_run_stride = 32 * kElement;
      plane.token_stride = kElement;
      plane.dims_per_run = 16;
      plane.dim_run_stride = 16 * kEngineTokens * kElement;
      plane.dim_stride = 2 * kElement;
    }
    plane.first_byte = is_k ? 0 : -kPlane * kElement;
    plane.end_byte = plane.first_byte + static_cast<int64_t>(memory.size() * kElement);
    return plane;
  }
  PagedCache Cache() { return {kEngineTokens, kBlocks, Plane(true), Plane(false)}; }

  // The plain way, from the drawing of the tiles.
  uint16_t At(int layer, int64_t block, int head, bool is_k, int token, int dim) const {
    const int64_t begin =
        ((layer * kBlocks + block) * kHeads + head) * 2 * kPlane + (is_k ? 0 : kPlane);
    const int64_t in_tile =
        is_k ? ((token / 16 * (kDim / 2) + dim / 2) * 16 + token % 16) * 2 + dim % 2
             : ((dim / 16 * (kEngineTokens / 2) + token / 2) * 16 + dim % 16) * 2 + token % 2;
    return memory[begin + in_tile];
  }
};

size_t PayloadBytes() { return HeadBytes(Shape()) * kLayers * kHeads; }

std::vector<uint16_t> PlainGather(const Tiled& engine, std::vector<int64_t> table) {
  std::vector<uint16_t> payload;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      for (const bool is_k : {true, false}) {
        for (int token = 0; token < static_cast<int>(kTokens); ++token) {
          for (int dim = 0; dim < static_cast<int>(kDim); ++dim) {
            payload.push_back(engine.At(layer, table[token / kEngineTokens], head, is_k,
                                        token % static_cast<int>(kEngineTokens), dim));
          }
        }
      }
    }
  }
  return payload;
}

TEST(PagedTest, GathersTilesOfAMatrixUnit) {
  Tiled engine;
  const std::vector<int64_t> table = {3, 1, 0, 4};
  const auto views = PagedViews::Make(engine.Cache(), Shape(), table, ViewUse::kSource);
  ASSERT_TRUE(views.ok()) << views.status();
  ASSERT_EQ(views->count(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    std::vector<uint16_t> payload(PayloadBytes() / kElement);
    Gather(Shape(), views->At(i), std::as_writable_bytes(std::span(payload)));
    EXPECT_EQ(payload, PlainGather(engine, {table[2 * i], table[2 * i + 1]}));
  }
}

TEST(PagedTest, ScattersBackAndLeavesSkippedBlocks) {
  Tiled source;
  const std::vector<int64_t> from = {2, 3};
  const auto read = PagedViews::Make(source.Cache(), Shape(), from, ViewUse::kSource);
  std::vector<uint16_t> payload(PayloadBytes() / kElement);
  Gather(Shape(), read->At(0), std::as_writable_bytes(std::span(payload)));
  Tiled target;
  std::fill(target.memory.begin(), target.memory.end(), uint16_t{7});
  const std::vector<int64_t> to = {kBlockSkipped, 1};
  const auto written = PagedViews::Make(target.Cache(), Shape(), to, ViewUse::kTarget);
  ASSERT_TRUE(written.ok()) << written.status();
  Scatter(Shape(), written->At(0), std::as_bytes(std::span(payload)));
  size_t changed = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      for (const bool is_k : {true, false}) {
        for (int token = 0; token < 32; ++token) {
          for (int dim = 0; dim < 32; ++dim, ++changed) {
            EXPECT_EQ(target.At(layer, 1, head, is_k, token, dim),
                      source.At(layer, 3, head, is_k, token, dim));
          }
        }
      }
    }
  }
  // Nothing else was written to.
  const auto kept = std::count(target.memory.begin(), target.memory.end(), 7);
  EXPECT_GE(static_cast<size_t>(kept), target.memory.size() - changed);
}

// A field of the cache, or of the table, that a view must not come of.
struct Refused {
  const char* says;
  void (*change)(PagedCache& cache, std::vector<int64_t>& table);
};

class PagedRefusedTest : public testing::TestWithParam<Refused> {};

TEST_P(PagedRefusedTest, NamesWhatIsWrong) {
  Tiled engine;
  PagedCache cache = engine.Cache();
  std::vector<int64_t> table = {3, 1};
  GetParam().change(cache, table);
  const auto views = PagedViews::Make(cache, Shape(), table, ViewUse::kSource);
  EXPECT_EQ(views.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(views.status().message()), HasSubstr(GetParam().says));
}

using Table = std::vector<int64_t>;
INSTANTIATE_TEST_SUITE_P(
    All, PagedRefusedTest,
    testing::Values(
        Refused{"cache.tokens_per_block is 48",
                [](PagedCache& c, Table&) { c.tokens_per_block = 48; }},
        Refused{"cache.tokens_per_block is 0",
                [](PagedCache& c, Table&) { c.tokens_per_block = 0; }},
        Refused{"the table has 3 blocks", [](PagedCache&, Table& t) { t.push_back(0); }},
        Refused{"the table has 0 blocks", [](PagedCache&, Table& t) { t.clear(); }},
        Refused{"blocks[1] is 5", [](PagedCache&, Table& t) { t[1] = kBlocks; }},
        Refused{"blocks[0] is -1", [](PagedCache&, Table& t) { t[0] = kBlockSkipped; }},
        Refused{"dims_per_run is 5", [](PagedCache& c, Table&) { c.k.dims_per_run = 5; }},
        Refused{"outside its memory",
                [](PagedCache& c, Table& t) {
                  c.v.end_byte -= 2;
                  t[0] = kBlocks - 1;
                }},
        Refused{"outside its memory", [](PagedCache& c, Table&) { c.k.dim_run_stride *= 99; }},
        Refused{"address space", [](PagedCache& c, Table&) { c.k.block_stride = INT64_MAX; }}));

}  // namespace
}  // namespace cairn
