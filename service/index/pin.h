// SPDX-License-Identifier: Apache-2.0
#pragma once
// A guard on one published image: while it lives, the bytes stay where they are and do not change,
// even if the block is evicted, deleted or replaced meanwhile. Move-only; empty when default-made
// or moved from.
//
// Thread-safety: Thread-compatible. Moving between threads is fine. The BlockIndex must outlive it.
// Cost:          destruction takes the index's lock, shortly.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/frame.h"

namespace cairn {

class BlockIndex;
class SideObject;
struct Image;

// Where an image lives; the values are those of cairn.v1.Tier.
enum class TierId : uint8_t { kGpu = 1, kHost = 2, kSsd = 3 };

// What the index knows of an image. Immutable while it is pinned.
struct ImageFacts {
  uint64_t space_id = 0;
  proto::BlockKey key{};
  uint64_t first_position = 0;
  uint16_t tokens = 0;
  uint16_t group = 0;
  codecs::Slice slice;
  codecs::Recipe recipe;
  TierId tier = TierId::kHost;
  uint64_t image_bytes = 0;
  uint64_t source_bytes = 0;
};

class Pin {
 public:
  Pin() = default;
  Pin(Pin&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        image_(std::exchange(source.image_, nullptr)) {}
  Pin& operator=(Pin&& source) noexcept;
  ~Pin() { Reset(); }
  void Reset();

  bool is_empty() const { return image_ == nullptr; }
  // REQUIRES of the rest: not empty.
  const ImageFacts& facts() const;
  std::span<const std::byte> bytes() const;  // the whole image
  // What the image is coded with; null where it needs nothing.
  const SideObject* side_object() const;
  uint64_t place() const;  // offset in the tier, for logs

 private:
  friend class BlockIndex;
  Pin(BlockIndex* index, Image* image) : index_(index), image_(image) {}
  BlockIndex* index_ = nullptr;
  Image* image_ = nullptr;
};

}  // namespace cairn
