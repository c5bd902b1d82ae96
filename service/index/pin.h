// SPDX-License-Identifier: Apache-2.0
#pragma once
// Guards for published images.
//
// An ImagePin keeps the index's record of an image, and prevents the eviction of its last copy. The
// image's bytes may be recoded or moved meanwhile.
//
// A CopyPin pins one copy of an image: while it exists, the bytes of that copy neither move nor
// change, even if the image is evicted, deleted or recoded meanwhile.
//
// A CopyWriter represents a copy that is being written to a tier. Destroyed unfinished, it leaves
// nothing there.
//
// A PutReservation represents a running put of a block. While it exists, the missing block does
// not break the chain for its followers, and the last copies of the previous block are not evicted.
//
// All are move-only, and empty when default-constructed or moved from.
//
// Thread-safety: Thread-compatible. They may move between threads. The BlockIndex must outlive
// them.
// Cost:          destruction takes the index's lock for a short time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "service/tier/image_facts.h"
#include "service/tier/tier_extent.h"

namespace cairn {

class BlockIndex;
class SideObject;
struct Block;
struct Copy;
struct Image;

class ImagePin {
 public:
  ImagePin() = default;
  ImagePin(ImagePin&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        image_(std::exchange(source.image_, nullptr)) {}
  ImagePin& operator=(ImagePin&& source) noexcept;
  ~ImagePin() { Reset(); }
  void Reset();

  bool is_empty() const { return image_ == nullptr; }
  // REQUIRES: not empty.
  const ImageFacts& facts() const;

 private:
  friend class BlockIndex;
  ImagePin(BlockIndex* index, Image* image) : index_(index), image_(image) {}
  BlockIndex* index_ = nullptr;
  Image* image_ = nullptr;
};

class CopyPin {
 public:
  CopyPin() = default;
  CopyPin(CopyPin&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        copy_(std::exchange(source.copy_, nullptr)) {}
  CopyPin& operator=(CopyPin&& source) noexcept;
  ~CopyPin() { Reset(); }
  void Reset();

  bool is_empty() const { return copy_ == nullptr; }
  // REQUIRES, like the functions below: not empty.
  const ImageFacts& facts() const;
  const CopyFacts& copy() const;
  // The whole image; empty if it must be read through its tier.
  std::span<const std::byte> bytes() const;
  // The side object of the copy; null: none.
  const SideObject* side_object() const;
  const TierExtent& extent() const;  // for CopyTier::Read()
  std::string place() const;         // for logs: "host+0x2000"

 private:
  friend class BlockIndex;
  CopyPin(BlockIndex* index, Copy* copy) : index_(index), copy_(copy) {}
  BlockIndex* index_ = nullptr;
  Copy* copy_ = nullptr;
};

class CopyWriter {
 public:
  CopyWriter() = default;
  CopyWriter(CopyWriter&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        image_(std::exchange(source.image_, nullptr)),
        tier_(source.tier_) {}
  CopyWriter& operator=(CopyWriter&& source) noexcept;
  ~CopyWriter() { Reset(); }
  void Reset();

  bool is_empty() const { return image_ == nullptr; }
  // REQUIRES, like the functions below: not empty.
  TierId tier() const { return tier_; }
  const ImageFacts& facts() const;

 private:
  friend class BlockIndex;
  CopyWriter(BlockIndex* index, Image* image, TierId tier)
      : index_(index), image_(image), tier_(tier) {}
  BlockIndex* index_ = nullptr;
  Image* image_ = nullptr;
  TierId tier_ = TierId::kHost;
};

class PutReservation {
 public:
  PutReservation() = default;
  PutReservation(PutReservation&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        block_(std::exchange(source.block_, nullptr)) {}
  PutReservation& operator=(PutReservation&& source) noexcept;
  ~PutReservation() { Reset(); }
  void Reset();

 private:
  friend class BlockIndex;
  PutReservation(BlockIndex* index, Block* block) : index_(index), block_(block) {}
  BlockIndex* index_ = nullptr;
  Block* block_ = nullptr;
};

using ImagePins = absl::InlinedVector<ImagePin, 4>;
using CopyPins = absl::InlinedVector<CopyPin, 4>;

}  // namespace cairn
