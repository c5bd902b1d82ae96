// SPDX-License-Identifier: Apache-2.0
#pragma once
// Engines' paged caches, as kernel tests have them on a device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "kernels/target.h"
#include "tests/kernels/device/device_bytes.h"

namespace cairn::kernels {

enum class HeadOrder : uint8_t {
  kNhd,
  kHnd
};  // [page, token, head, dim] or [page, head, token, dim]
enum class Packing : uint8_t {
  kApart,    // a tensor for K and one for V
  kPlanes,   // [2, page, …]
  kInPages,  // [page, 2, …]
  kInRows,   // [page, token, head, 2, dim]: K and V of a head one behind the other
};

struct CacheShape {
  uint32_t page_tokens = 16;
  HeadOrder order = HeadOrder::kNhd;
  Packing packing = Packing::kApart;
  uint32_t first_slot = 0;
  size_t misalignment = 0;
  bool has_table = true;
  uint32_t hole_every = 0;  // pages between holes; 0: there are none
};

// A cache for the slice of an image, with a few pages more, and a table of its tokens' pages.
class PagedCache {
 public:
  PagedCache(const codecs::ImageSpec& spec, const codecs::Slice& slice, const CacheShape& shape,
             std::mt19937_64& random);

  [[nodiscard]] PagedView view() const;
  // Where a row of the slice is to lie, as the host has it; null in a hole.
  [[nodiscard]] std::byte* Row(uint32_t layer, uint32_t head, uint32_t plane, uint32_t token);
  [[nodiscard]] uint32_t row_bytes(uint32_t plane) const { return planes_[plane].row_bytes; }
  // Lays the payload out. REQUIRES: there are no holes.
  void Fill(std::span<const std::byte> payload);
  // What is wrong with the cache, whose tokens ought to be those of the payload; empty: nothing.
  [[nodiscard]] std::string Compare(std::span<const std::byte> payload);
  std::span<int32_t> pages() { return {reinterpret_cast<int32_t*>(table_->data()), entries_}; }

 private:
  struct PlaneShape {
    uint32_t row_bytes = 0;
    uint64_t offset = 0;  // in a layer's tensor
    PagedPlane strides;
  };
  void Stride(const CacheShape& shape);

  codecs::ImageSpec spec_;
  codecs::Slice slice_;
  CacheShape shape_;
  uint32_t plane_count_, tokens_, entries_, page_count_;
  uint64_t layer_bytes_ = 0;
  PlaneShape planes_[2];
  std::vector<std::unique_ptr<DeviceBytes>> tensors_;
  std::vector<std::byte*> layers_[2], addresses_[2];  // of the host, and of the device
  std::unique_ptr<DeviceBytes> table_;
};

}  // namespace cairn::kernels
