// SPDX-License-Identifier: Apache-2.0
#pragma once
// The entries of the index. All fields are guarded by the index's lock, but for those of a pinned
// image that say so.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "service/index/block_name.h"
#include "service/index/pin.h"
#include "service/index/side_objects.h"
#include "service/memory/arena.h"

namespace cairn {

struct Block;

struct Image {
  uint32_t slot = 0;
  ImageFacts facts;           // immutable while pinned
  Extent extent;              // immutable while pinned
  SideObjectRef side_object;  // immutable while pinned; what it is coded with, if anything
  Block* block = nullptr;     // null once unlinked: freed at the last unpin
  uint32_t pins = 0;          // leases included
  uint32_t lease_pins = 0;
  bool is_encode_pending = false;
};

// What is looked at when slices are compared, kept in the block so that images are not touched.
struct ImageRef {
  uint16_t group = 0;
  codecs::Slice slice;
  Image* image = nullptr;
};

struct Block {
  static constexpr uint32_t kNotQueued = UINT32_MAX;

  uint32_t slot = 0;
  bool is_linked = false;
  BlockName name;
  proto::BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  uint16_t tokens = 0;
  uint32_t child_count = 0;  // resident children
  uint32_t pinned_images = 0;
  uint64_t last_use = 0;  // a count of uses, index-wide
  absl::Time used_at = absl::InfinitePast();
  uint32_t queue_index = kNotQueued;        // in Recency
  absl::InlinedVector<ImageRef, 2> images;  // in the order published
};

using ImageList = absl::InlinedVector<Image*, 4>;

}  // namespace cairn
