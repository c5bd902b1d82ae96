// SPDX-License-Identifier: Apache-2.0
#include "service/index/cover.h"

#include <algorithm>

namespace cairn {
namespace {

using codecs::Slice;
using Slices = absl::InlinedVector<Slice, 16>;

Slice MakeSlice(uint32_t layer_first, uint32_t layer_end, uint32_t head_first, uint32_t head_end) {
  return {.layer_first = static_cast<uint16_t>(layer_first),
          .layer_count = static_cast<uint16_t>(layer_end - layer_first),
          .head_first = static_cast<uint16_t>(head_first),
          .head_count = static_cast<uint16_t>(head_end - head_first)};
}

// Appends what of `from` lies outside `hole`. REQUIRES: they overlap.
void Subtract(const Slice& from, const Slice& hole, Slices& rest) {
  const uint32_t layer_end = from.layer_first + from.layer_count;
  const uint32_t head_end = from.head_first + from.head_count;
  const uint32_t middle_first = std::max(from.layer_first, hole.layer_first);
  const uint32_t middle_end = std::min<uint32_t>(layer_end, hole.layer_first + hole.layer_count);
  const uint32_t inner_first = std::max(from.head_first, hole.head_first);
  const uint32_t inner_end = std::min<uint32_t>(head_end, hole.head_first + hole.head_count);
  if (from.layer_first < middle_first) {
    rest.push_back(MakeSlice(from.layer_first, middle_first, from.head_first, head_end));
  }
  if (middle_end < layer_end) {
    rest.push_back(MakeSlice(middle_end, layer_end, from.head_first, head_end));
  }
  if (from.head_first < inner_first) {
    rest.push_back(MakeSlice(middle_first, middle_end, from.head_first, inner_first));
  }
  if (inner_end < head_end) {
    rest.push_back(MakeSlice(middle_first, middle_end, inner_end, head_end));
  }
}

}  // namespace

bool FindCover(const Block& block, uint16_t group, const Slice& slice, ImageList* images) {
  if (images != nullptr) {
    images->clear();
  }
  for (const ImageRef& ref : block.images) {
    if (ref.group == group && ref.slice.Contains(slice)) {
      if (images != nullptr) {
        images->push_back(ref.image);
      }
      return true;
    }
  }
  if (block.images.size() < 2) {
    return false;
  }
  Slices missing = {slice};
  for (const ImageRef& ref : block.images) {
    if (ref.group != group || !ref.slice.Overlaps(slice)) {
      continue;
    }
    Slices rest;
    bool is_needed = false;
    for (const Slice& part : missing) {
      if (part.Overlaps(ref.slice)) {
        is_needed = true;
        Subtract(part, ref.slice, rest);
      } else {
        rest.push_back(part);
      }
    }
    if (is_needed && images != nullptr) {
      images->push_back(ref.image);
    }
    missing = std::move(rest);
    if (missing.empty()) {
      return true;
    }
  }
  return false;
}

}  // namespace cairn
