// SPDX-License-Identifier: Apache-2.0
// What decoding puts on a stream.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "service/codec/batch_layout.h"
#include "service/codec/device_batch.h"

namespace cairn {
namespace {

// The bytes of an image that have the tiles of a slice.
struct TileRange {
  uint64_t begin = UINT64_MAX, end = 0;

  uint64_t bytes() const { return end - begin; }
};

TileRange RangeOf(const DecodeWork& work) {
  TileRange range;
  const codecs::Error error = work.view.tiling().ForEach(work.slice, [&](uint32_t index) {
    const codecs::TileEntry tile = work.view.Tile(index);
    range.begin = std::min<uint64_t>(range.begin, tile.offset);
    range.end = std::max<uint64_t>(range.end, tile.offset + tile.bytes);
    return codecs::Error::kOk;
  });
  CAIRN_CHECK(error == codecs::Error::kOk && range.begin < range.end);
  range.begin = range.begin / BatchLayout::kAlignment * BatchLayout::kAlignment;
  return range;
}

}  // namespace

uint64_t DeviceBytesOf(const DecodeWork& work) {
  return BatchLayout::Rounded(RangeOf(work).bytes()) + BatchLayout::Rounded(work.source_bytes);
}

bool DeviceBatch::PlaceDecode(CodecJob& job, uint64_t below) {
  DecodeWork& work = job.decode;
  kernels::DecodeJob made;
  absl::StatusOr<Extent> target = work.room(work.source_bytes);
  if (!target.ok() || !PlaceSide(work.side_object, below, &made.side_object)) {
    FallBack(figures_, job, CodecFallback::kNoRoom);
    return false;
  }
  job.made = *std::move(target);
  const TileRange range = RangeOf(work);
  std::byte* const tiles = Take(range.bytes());
  codecs::ImageSpec spec = work.view.spec();
  spec.slice = work.slice;
  made.prefix = &work.view;
  made.image = tiles - range.begin;  // of which kernels read tiles alone
  made.slice = work.slice;
  made.target = ViewOfSource(spec, Take(work.source_bytes));
  if (work.side_object != nullptr) {
    made.side = work.side_object->content().inputs();
  }
  Note(tiles, work.view.bytes().data() + range.begin, range.bytes());
  decodes_.push_back(made);
  return true;
}

void DeviceBatch::LaunchDecode() {
  std::byte* const status = memory_ + BatchLayout::kStatus;
  std::byte* const plan = memory_ + BatchLayout::kPlan;
  const uint64_t status_bytes = decodes_.size() * sizeof(uint32_t);
  bool is_there =
      phase_ != Phase::kLeaving && Took(runtime_.Clear(status, status_bytes, stream_)) &&
      CopyIn(plan, host_ + BatchLayout::kPlan, decode_plan_.bytes) &&
      Took(runtime_.Decode(decode_plan_, plan, reinterpret_cast<uint32_t*>(status), stream_)) &&
      Took(runtime_.CopyOut(host_ + BatchLayout::kStatus, status, status_bytes, stream_));
  for (size_t i = 0; is_there && i < decodes_.size(); ++i) {
    is_there =
        Took(runtime_.CopyOut(jobs_[i].made.bytes().data(), decodes_[i].target.k.layers.front(),
                              jobs_[i].decode.source_bytes, stream_));
  }
  if (is_there) {
    phase_ = Phase::kCopying;
  }
}

void DeviceBatch::CheckDecoded() {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (statuses()[i] != 0) {
      FallBack(figures_, jobs_[i], CodecFallback::kRefused);
    }
  }
}

}  // namespace cairn
