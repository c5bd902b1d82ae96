// SPDX-License-Identifier: Apache-2.0
#include "service/get/slice_reads.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "codecs/format/image_header.h"

namespace cairn {
namespace {

uint64_t PageBegin(uint64_t offset) {
  return offset / limits::kSlicePageBytes * limits::kSlicePageBytes;
}
uint64_t PageEnd(uint64_t offset) { return PageBegin(offset + limits::kSlicePageBytes - 1); }

uint64_t HeadsOf(const codecs::Slice& slice) {
  return uint64_t{slice.layer_count} * slice.head_count;
}

// About what PartsOf() will come to, as if all tiles were of one size.
uint64_t EstimateBytes(const codecs::Slice& image, uint64_t image_bytes,
                       const codecs::Slice& slice) {
  const uint64_t layer_bytes = image_bytes / image.layer_count;
  const uint64_t run_bytes = layer_bytes * slice.head_count / image.head_count;
  const bool is_one_part = layer_bytes - run_bytes <= limits::kSliceGapBytesMax;
  return is_one_part ? slice.layer_count * layer_bytes
                     : slice.layer_count * (run_bytes + limits::kSlicePageBytes);
}

}  // namespace

uint64_t PrefixReadBytes(codecs::GroupKind kind, const CopyPin& pin) {
  const codecs::Tiling tiling(kind, pin.facts().slice, {});
  return std::min(PageEnd(codecs::PrefixBytes(tiling.count())), pin.copy().image_bytes);
}

SliceParts PartsOf(const codecs::ImagePrefix& image, const codecs::Slice& slice) {
  SliceParts result;
  uint64_t end = 0;
  static_cast<void>(image.tiling().ForEach(slice, [&](uint32_t index) {
    const codecs::TileEntry tile = image.Tile(index);
    if (result.parts.empty() || tile.offset > end + limits::kSliceGapBytesMax) {
      result.parts.push_back({.offset = PageBegin(tile.offset)});
    }
    end = std::min(PageEnd(tile.offset + tile.bytes), image.image_bytes());
    result.parts.back().bytes = end - result.parts.back().offset;
    return codecs::Error::kOk;
  }));
  const codecs::Tiling tiling(image.spec().tile.kind, slice, image.spec().unit);
  result.bytes = PageEnd(codecs::PrefixBytes(tiling.count()));
  for (codecs::ImagePart& part : result.parts) {
    part.at = result.bytes;
    result.bytes += PageEnd(part.bytes);
  }
  return result;
}

bool SliceReads::Take(codecs::GroupKind kind, const CopyPin& pin, const codecs::Slice& slice) {
  const codecs::Slice& image = pin.facts().slice;
  const uint64_t image_bytes = pin.copy().image_bytes;
  if (image_bytes < limits::kSlicedImageBytesMin ||
      PrefixReadBytes(kind, pin) + EstimateBytes(image, image_bytes, slice) > image_bytes / 2) {
    return false;
  }
  const uint64_t place = pin.extent().offset() * kTierCount + IndexOf(pin.copy().tier);
  Seen& seen = seen_[absl::HashOf(place) % seen_.size()];
  if (seen.place != place) {
    seen = {.place = place};
  }
  seen.heads += HeadsOf(slice);
  if (seen.heads <= HeadsOf(image)) {
    return true;
  }
  seen = {};
  return false;
}

}  // namespace cairn
