// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmark has on the device: memory, and a paged cache as an engine lays it out.
//
// Thread-safety: Owned by the main thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/target.h"
#include "tests/kernels/device/device.h"

namespace cairn::kernels {

struct FreeRoom {
  void operator()(std::byte* bytes) const { device::Free(bytes); }
};
using Room = std::unique_ptr<std::byte, FreeRoom>;

// Ends the program where the device has no room.
Room MakeRoom(size_t bytes);
Room MakeRoom(std::span<const std::byte> content);

// How much the benchmark codes, and how often.
struct Scale {
  uint16_t layers, heads, tokens;  // of an image
  uint32_t dim;                    // of K and of V
  uint32_t images;                 // one after another, so that nothing is in caches when it is due
  std::vector<uint32_t> batches;   // images a plan; more than a plan takes are as many as it takes
  size_t copy_bytes;
  uint32_t rounds;  // 0: everything once, and nothing is timed
};

// A tensor a layer for K and one for V, of bf16 in [page, token, head, dim], with the pages of all
// images in any order.
class EngineCache {
 public:
  explicit EngineCache(const Scale& scale);

  [[nodiscard]] PagedView ViewOf(uint32_t image) const;
  // Gives every image this payload.
  void Fill(std::span<const std::byte> payload);
  void Clear();
  [[nodiscard]] std::vector<std::byte> PayloadOf(uint32_t image) const;

 private:
  [[nodiscard]] uint64_t RowBytes() const { return 2 * uint64_t{scale_.dim}; }
  // Of a row in its layer's tensor, and in a payload.
  [[nodiscard]] uint64_t PlaceOf(uint32_t image, uint32_t head, uint32_t token) const;
  [[nodiscard]] uint64_t SourceOf(uint32_t layer, uint32_t head, uint32_t plane,
                                  uint32_t token) const;

  Scale scale_;
  uint32_t pages_of_image_;
  uint64_t layer_bytes_;
  std::vector<int32_t> pages_;  // of all images
  Room table_;
  std::vector<Room> tensors_;
  std::vector<std::byte*> layers_[2];
};

}  // namespace cairn::kernels
