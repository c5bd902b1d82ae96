// SPDX-License-Identifier: Apache-2.0
// What encoding puts on a stream, and what it takes back.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "kernels/encode_jobs.h"
#include "service/codec/batch_layout.h"
#include "service/codec/device_batch.h"

namespace cairn {
namespace {

// Small inputs of an image: a float an element.
uint64_t InputBytes(const EncodeWork& work) {
  return BatchLayout::Rounded(work.query_magnitudes.size_bytes()) +
         BatchLayout::Rounded(work.token_scores.size_bytes());
}

}  // namespace

uint64_t DeviceBytesOf(const EncodeWork& work) {
  uint64_t image_bytes = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(work.spec, &image_bytes) == codecs::Error::kOk);
  uint64_t bytes = BatchLayout::Rounded(work.source.size()) +
                   BatchLayout::Rounded(kernels::SlotBytes(work.spec)) +
                   BatchLayout::Rounded(image_bytes) + InputBytes(work);
  for (const codecs::ImageView& parent : work.parents) {
    bytes += BatchLayout::Rounded(parent.image_bytes());
  }
  return bytes;
}

uint64_t SideBytesOf(const SideObject* side) {
  return side == nullptr ? 0 : BatchLayout::Rounded(side->bytes().size());
}

bool DeviceBatch::PlaceEncode(CodecJob& job, uint64_t below) {
  EncodeWork& work = job.encode;
  uint64_t image_bytes = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(work.spec, &image_bytes) == codecs::Error::kOk);
  kernels::EncodeJob made;
  made.spec = &work.spec;
  std::byte* const source = Take(work.source.size());
  made.source = ViewOfSource(work.spec, source);
  made.slots = Take(kernels::SlotBytes(work.spec));
  made.image = Take(image_bytes);
  std::vector<kernels::StoredImage>& parents = parents_.emplace_back();
  for (const codecs::ImageView& parent : work.parents) {
    std::byte* const at = Take(parent.image_bytes());
    parents.push_back({.prefix = &parent, .image = at});
    Note(at, parent.bytes().data(), parent.image_bytes());
  }
  made.parents = parents;
  const auto copy_floats = [this](std::span<const float> values, const float** placed) {
    if (values.empty()) {
      return true;
    }
    std::byte* const at = Take(values.size_bytes());
    *placed = reinterpret_cast<const float*>(at);
    return NoteStaged(at, std::as_bytes(values));
  };
  if (!copy_floats(work.query_magnitudes, &made.query_magnitudes) ||
      !copy_floats(work.token_scores, &made.token_scores) ||
      !PlaceSide(work.side_object, below, &made.side_object)) {
    FallBack(figures_, job, CodecFallback::kNoRoom);
    return false;
  }
  if (work.side_object != nullptr) {
    made.side = work.side_object->content().inputs();
  }
  Note(source, work.source.data(), work.source.size());
  encodes_.push_back(made);
  return kernels::CheckJob(made) == codecs::Error::kOk;
}

void DeviceBatch::LaunchEncode() {
  std::byte* const status = memory_ + BatchLayout::kStatus;
  std::byte* const results = memory_ + BatchLayout::kResults;
  std::byte* const plan = memory_ + BatchLayout::kPlan;
  const uint64_t status_bytes = encodes_.size() * sizeof(uint32_t);
  static_cast<void>(
      phase_ != Phase::kLeaving && Took(runtime_.Clear(status, status_bytes, stream_)) &&
      CopyIn(plan, host_ + BatchLayout::kPlan, encode_plan_.bytes) &&
      Took(runtime_.Encode(encode_plan_, plan, reinterpret_cast<kernels::TileResult*>(results),
                           reinterpret_cast<uint32_t*>(status), stream_)) &&
      Took(runtime_.CopyOut(host_ + BatchLayout::kStatus, status, status_bytes, stream_)) &&
      Took(runtime_.CopyOut(host_ + BatchLayout::kResults, results,
                            encode_plan_.tile_count * sizeof(kernels::TileResult), stream_)));
}

bool DeviceBatch::CopyImage(CodecJob& job, const kernels::EncodeJob& made, uint32_t status,
                            std::span<const kernels::TileResult> tiles) {
  const uint64_t prefix = codecs::PrefixBytes(tiles.size());
  uint64_t bytes = prefix, bytes_max = 0;
  for (const kernels::TileResult& tile : tiles) {
    bytes += tile.bytes;
  }
  CAIRN_CHECK(codecs::MaxImageBytes(job.encode.spec, &bytes_max) == codecs::Error::kOk);
  if (status != 0 || bytes > bytes_max) {
    FallBack(figures_, job, CodecFallback::kRefused);
    return true;
  }
  absl::StatusOr<Extent> image = job.encode.room(bytes);
  if (!image.ok()) {
    FallBack(figures_, job, CodecFallback::kNoRoom);
    return true;
  }
  job.made = *std::move(image);
  uint64_t written = 0;
  const codecs::Error error = kernels::WritePrefix(kernels::RecordedSpec(made), tiles,
                                                   job.made.bytes().first(prefix), &written);
  if (error != codecs::Error::kOk || written != bytes) {
    FallBack(figures_, job, CodecFallback::kRefused);
    return true;
  }
  return Took(runtime_.CopyOut(job.made.bytes().data() + prefix, made.image + prefix,
                               bytes - prefix, stream_));
}

void DeviceBatch::CopyImages() {
  phase_ = Phase::kCopying;
  const auto* results = reinterpret_cast<const kernels::TileResult*>(host_ + BatchLayout::kResults);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const uint32_t tiles = static_cast<uint32_t>(codecs::TilingOf(jobs_[i].encode.spec).count());
    const std::span<const kernels::TileResult> of_image(results, tiles);
    results += tiles;
    if (jobs_[i].done != nullptr && !CopyImage(jobs_[i], encodes_[i], statuses()[i], of_image)) {
      return FallBackAll(CodecFallback::kLost);
    }
  }
  waits_since_ = MonotonicNow();
}

}  // namespace cairn
