// SPDX-License-Identifier: Apache-2.0
#pragma once
// Guards on what is published.
//
// A Pin keeps what the index knows of an image, and keeps its last copy from being evicted. Its
// bytes may be encoded anew or moved meanwhile.
//
// A ResidentPin names one copy of an image: while it lives, the bytes of that copy stay where they
// are and do not change, even if the image is evicted, deleted or encoded anew meanwhile.
//
// A CopyWriter is one copy on its way into a tier. Destroyed unfinished, it leaves nothing there.
//
// An ExpectedBlock is a put of a block on its way. While it lives, what follows the block is not of
// a broken chain for want of it, and the last copies of the block before it are not evicted.
//
// All are move-only, and empty when default-made or moved from.
//
// Thread-safety: Thread-compatible. Moving between threads is fine. The BlockIndex must outlive
//                them.
// Cost:          destruction takes the index's lock, shortly.

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
  // REQUIRES: not empty.
  const ImageFacts& facts() const;

 private:
  friend class BlockIndex;
  Pin(BlockIndex* index, Image* image) : index_(index), image_(image) {}
  BlockIndex* index_ = nullptr;
  Image* image_ = nullptr;
};

class ResidentPin {
 public:
  ResidentPin() = default;
  ResidentPin(ResidentPin&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        copy_(std::exchange(source.copy_, nullptr)) {}
  ResidentPin& operator=(ResidentPin&& source) noexcept;
  ~ResidentPin() { Reset(); }
  void Reset();

  bool is_empty() const { return copy_ == nullptr; }
  // REQUIRES of the rest: not empty.
  const ImageFacts& facts() const;
  const CopyFacts& copy() const;
  // The whole image; empty where it has to be read through its tier.
  std::span<const std::byte> bytes() const;
  // What the copy is coded with; null where it needs nothing.
  const SideObject* side_object() const;
  const TierExtent& extent() const;  // for CopyTier::Read()
  std::string place() const;         // for logs: "host+0x2000"

 private:
  friend class BlockIndex;
  ResidentPin(BlockIndex* index, Copy* copy) : index_(index), copy_(copy) {}
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
  // REQUIRES of the rest: not empty.
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

class ExpectedBlock {
 public:
  ExpectedBlock() = default;
  ExpectedBlock(ExpectedBlock&& source) noexcept
      : index_(std::exchange(source.index_, nullptr)),
        block_(std::exchange(source.block_, nullptr)) {}
  ExpectedBlock& operator=(ExpectedBlock&& source) noexcept;
  ~ExpectedBlock() { Reset(); }
  void Reset();

 private:
  friend class BlockIndex;
  ExpectedBlock(BlockIndex* index, Block* block) : index_(index), block_(block) {}
  BlockIndex* index_ = nullptr;
  Block* block_ = nullptr;
};

using Pins = absl::InlinedVector<Pin, 4>;
using ResidentPins = absl::InlinedVector<ResidentPin, 4>;

}  // namespace cairn
