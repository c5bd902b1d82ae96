// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of an emulated device, and engines' paged caches in it, as kernel tests use them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "codecs/image/image.h"
#include "codecs/types/shape.h"
#include "kernels/target.h"
#include "tests/kernels/executor/executor.h"

namespace cairn::kernels {

// So many bytes, of which kernels may touch none before and none behind.
class DeviceBytes {
 public:
  DeviceBytes(size_t bytes, bool is_writable, size_t misalignment = 0)
      : bytes_(bytes),
        misalignment_(misalignment),
        room_(static_cast<std::byte*>(
            ::operator new (kAlignment + misalignment + bytes, std::align_val_t{kAlignment}))),
        region_(data(), bytes, is_writable) {}
  DeviceBytes(std::span<const std::byte> content, bool is_writable)
      : DeviceBytes(content.size(), is_writable) {
    std::memcpy(data(), content.data(), content.size());
  }

  [[nodiscard]] std::byte* data() { return room_.get() + kAlignment + misalignment_; }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() { return {data(), bytes_}; }

 private:
  static constexpr size_t kAlignment = 256;
  struct Delete {
    void operator()(std::byte* room) const {
      ::operator delete (room, std::align_val_t{kAlignment});
    }
  };
  size_t bytes_;
  size_t misalignment_;
  std::unique_ptr<std::byte, Delete> room_;
  emulated::Region region_;
};

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
  // Where a row of the slice is to lie; null in a hole.
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
  std::vector<std::byte*> layers_[2];
  std::unique_ptr<DeviceBytes> table_;
};

}  // namespace cairn::kernels
