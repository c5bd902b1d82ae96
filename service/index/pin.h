// SPDX-License-Identifier: Apache-2.0
#pragma once
// Guards for published images.
//
// An ImagePin keeps the index's record of an image, and prevents the eviction of its last copy. The
// image's bytes may be recoded or moved meanwhile.
//
// A CopyPin pins one copy of an image. While it exists, the bytes of that copy neither move nor
// change, even if the image is evicted, deleted or recoded meanwhile.
//
// A CopyWriter is a copy that is being written to a tier. If it is destroyed before FinishCopy(),
// nothing is left in the tier.
//
// A PutReservation is a running put of a block. While it exists, the absence of the block does not
// break the chain for its followers, and the last copies of the previous block are not evicted.
//
// All four are move-only. They are empty when default-constructed or moved from.
//
// Thread-safety: Thread-compatible. They may move between threads. The BlockIndex must outlive
//                them.
// Cost:          destruction takes the index's lock for a short time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"
#include "base/handle.h"
#include "codecs/image/image.h"
#include "codecs/types/error.h"
#include "proto/block_key.h"
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
  void Reset() { handle_.Reset(); }

  bool is_empty() const { return handle_.is_empty(); }
  // REQUIRES: not empty.
  const ImageFacts& facts() const;

 private:
  friend class BlockIndex;
  ImagePin(BlockIndex& index, Image* image) : handle_(index, image) {}
  static void Release(BlockIndex& index, Image* image);
  Handle<BlockIndex, Image*, &ImagePin::Release> handle_;
};

class CopyPin {
 public:
  CopyPin() = default;
  void Reset() { handle_.Reset(); }

  bool is_empty() const { return handle_.is_empty(); }
  // REQUIRES for this function and those below: not empty.
  const ImageFacts& facts() const;
  const CopyFacts& copy() const;
  // The bytes of the whole image. Empty if only the tier can read them.
  std::span<const std::byte> bytes() const;
  // The side object of the copy; null: none.
  const SideObject* side_object() const;
  const TierExtent& extent() const;  // for CopyTier::Read()
  std::string place() const;         // for logs: "host+0x2000"

 private:
  friend class BlockIndex;
  CopyPin(BlockIndex& index, Copy* copy) : handle_(index, copy) {}
  static void Release(BlockIndex& index, Copy* copy);
  Handle<BlockIndex, Copy*, &CopyPin::Release> handle_;
};

class CopyWriter {
 public:
  CopyWriter() = default;
  void Reset() { handle_.Reset(); }

  bool is_empty() const { return handle_.is_empty(); }
  // REQUIRES for this function and those below: not empty.
  TierId tier() const { return handle_.value().tier; }
  const ImageFacts& facts() const;

 private:
  friend class BlockIndex;
  struct Target {
    Image* image = nullptr;
    TierId tier = TierId::kHost;
  };
  CopyWriter(BlockIndex& index, Image* image, TierId tier) : handle_(index, {image, tier}) {}
  static void Release(BlockIndex& index, Target target);
  Handle<BlockIndex, Target, &CopyWriter::Release> handle_;
};

class PutReservation {
 public:
  PutReservation() = default;
  void Reset() { handle_.Reset(); }

 private:
  friend class BlockIndex;
  PutReservation(BlockIndex& index, Block* block) : handle_(index, block) {}
  static void Release(BlockIndex& index, Block* block);
  Handle<BlockIndex, Block*, &PutReservation::Release> handle_;
};

using ImagePins = absl::InlinedVector<ImagePin, 4>;
using CopyPins = absl::InlinedVector<CopyPin, 4>;

// --- The bytes of a pinned image
//
// The functions below parse the header of a pinned image and compare it with the index's record. A
// checksum only shows that bytes are unchanged since they were written. If a tier reads the wrong
// place, it may find a valid image of another block.

// Checks that header and directory belong to the pinned copy. Errors: those of ParsePinned().
codecs::Error CheckPinned(const CopyPin& pin, const codecs::ImagePrefix& prefix,
                          const proto::Fingerprint& space);

// Parses the image without verifying its tiles. `bytes` were read from the pinned copy; if the copy
// is addressable, they are pin.bytes(). `space` is the fingerprint of the pin's space. Errors are
// those of codecs::ParseImage(), and:
//   kMismatch   the header's space, key, group, slice, token count or position differs from the
//               pin's facts, or header and directory are not those of the copy
//   kNoProfile  the header names a side object that the copy did not have when it was published
codecs::Error ParsePinned(const CopyPin& pin, std::span<const std::byte> bytes,
                          const proto::Fingerprint& space, codecs::ImageView* view);

}  // namespace cairn
