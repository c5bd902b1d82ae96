// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks in an engine's paged cache on a device, which is emulated: kernels run on the CPU, in
// memory of their own.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "client/cpp/device.h"
#include "client/cpp/device_memory.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/kernels/device/device.h"
#include "tests/kernels/device/emulated_device.h"

namespace cairn {

using Bytes = std::vector<std::byte>;
inline constexpr auto kBf16 = codecs::DType::kBf16;
inline constexpr uint32_t kKeys = 11;  // more than a batch
inline constexpr uint32_t kPageTokens = 8, kPagesPerKey = kTokens / kPageTokens;
inline constexpr int64_t kPages = 64;
inline constexpr size_t kRow = kDim * 2;

// K and V of an engine, a tensor a layer each: [page, token, head, dim].
class EngineCache {
 public:
  static constexpr size_t kPageBytes = size_t{kPageTokens} * kHeads * kRow;
  static constexpr size_t kLayerBytes = kPages * kPageBytes;

  explicit EngineCache(EmulatedDevice& device)
      : device_(device), host_(2 * kLayers * kLayerBytes, std::byte{0xEE}) {
    memory_ = device.AllocateDevice(host_.size());
    for (size_t i = 0; i < 2 * kLayers; ++i) {
      layers_.push_back(memory_ + i * kLayerBytes);
    }
    Upload();
  }
  ~EngineCache() { device_.FreeDevice(memory_); }
  EngineCache(const EngineCache&) = delete;
  EngineCache& operator=(const EngineCache&) = delete;

  DeviceCache Describe() const {
    DeviceCache cache;
    cache.tokens_per_block = kPageTokens;
    cache.block_count = kPages;
    kernels::PagedPlane plane;
    plane.layer_bytes = kLayerBytes;
    plane.page_stride = kPageBytes;
    plane.token_stride = kHeads * kRow;
    plane.head_stride = kRow;
    cache.k = cache.v = plane;
    cache.k.layers = std::span(layers_).first(kLayers);
    cache.v.layers = std::span(layers_).last(kLayers);
    return cache;
  }
  // The bytes of a block in source form: [layer, head, plane, token, dim].
  void Set(const int64_t* pages, const Bytes& source) { Exchange(pages, source.data(), nullptr); }
  Bytes Take(const int64_t* pages) {
    Bytes source(size_t{kLayers} * kHeads * 2 * kTokens * kRow);
    Exchange(pages, nullptr, source.data());
    return source;
  }
  void Upload() { kernels::device::CopyIn(memory_, host_.data(), host_.size()); }
  void Download() { kernels::device::CopyOut(host_.data(), memory_, host_.size()); }

 private:
  void Exchange(const int64_t* pages, const std::byte* from, std::byte* to) {
    size_t at = 0;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t head = 0; head < kHeads; ++head) {
        for (size_t plane = 0; plane < 2; ++plane) {
          for (size_t token = 0; token < kTokens; ++token, at += kRow) {
            std::byte* const row = host_.data() + (plane * kLayers + layer) * kLayerBytes +
                                   static_cast<size_t>(pages[token / kPageTokens]) * kPageBytes +
                                   token % kPageTokens * kHeads * kRow + head * kRow;
            std::memcpy(from != nullptr ? row : to + at, from != nullptr ? from + at : row, kRow);
          }
        }
      }
    }
  }

  EmulatedDevice& device_;
  Bytes host_;
  std::byte* memory_;
  std::vector<std::byte*> layers_;
};

class DeviceTest : public ClientTest {
 protected:
  void Open(const std::string& recipe) { Open(recipe, Options()); }
  void Open(const std::string& recipe, const ConnectOptions& options) {
    client_ = Connect(options);
    space_ = cairn::ClientTest::Open(client_, ToyIdentity(kBf16, Model()), recipe);
    ASSERT_TRUE(client_ && space_);
    std::vector<uint32_t> tokens(kKeys * kTokens);
    std::iota(tokens.begin(), tokens.end(), 7U);
    keys_ = space_->DeriveChain(tokens);
    for (uint32_t i = 0; i < kKeys * kPagesPerKey; ++i) {
      table_.push_back((i * 5 + 3) % kPages);
    }
    auto mover = DeviceMover::Make(*space_, device_, {});
    ASSERT_TRUE(mover.ok()) << mover.status();
    mover_ = *std::move(mover);
  }
  Bytes SourceOf(uint32_t key) const { return ToyValues(kBf16, *space_->SourceBytes({}), key + 1); }
  DeviceRequest Request(const EngineCache& cache) {
    return {.keys = keys_,
            .cache = cache.Describe(),
            .table = table_,
            .stream = &stream_,
            .timeout = kPatience};
  }
  DeviceRequest RequestOfOne(const EngineCache& cache) {
    DeviceRequest request = Request(cache);
    request.keys = request.keys.first(1);
    request.table = request.table.first(kPagesPerKey);
    return request;
  }
  // Writes all blocks there.
  void Fill(EngineCache& cache) {
    for (uint32_t key = 0; key < kKeys; ++key) {
      cache.Set(&table_[key * kPagesPerKey], SourceOf(key));
    }
    cache.Upload();
  }
  // All blocks, from a cache on the device.
  void Put() {
    EngineCache cache(device_);
    Fill(cache);
    for (const auto& put : mover_->Put(Request(cache))) {
      ASSERT_TRUE(put.ok()) << put.status();
    }
  }
  // As a client without a device gets it.
  Bytes Values(uint32_t key) const {
    Bytes values(*space_->SourceBytes({}));
    EXPECT_TRUE(space_->Get({.key = keys_[key], .target = SourceTarget{values}}, kPatience).ok());
    return values;
  }

  EmulatedDevice device_;
  int stream_ = 0;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<BlockKey> keys_;
  std::vector<int64_t> table_;
  std::unique_ptr<DeviceMover> mover_;
};

}  // namespace cairn
