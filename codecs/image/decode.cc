// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/decode.h"

#include <algorithm>

#include "codecs/backend/step_scratch.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/strips.h"
#include "codecs/image/settle.h"
#include "codecs/image/tiles.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// A target of at least this is more than a core's own caches keep, so it is written past all of
// them: that spares reading it first. Half the time of raw and kivi:2 on a Zen 3.
constexpr uint64_t kStreamedBytesMin = uint64_t{1} << 20;
// Tiles on the scratch at once: as many as this has room for, so that they stay in a core's cache.
constexpr uint64_t kScratchBytesMax = uint64_t{256} << 10;
constexpr uint32_t kWaitingMax = 64;
constexpr uint64_t kScratchAlignment = 64;

uint64_t AlignScratch(uint64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

ViewShape ShapeOf(const DecodeJob& job) {
  const ImageSpec& spec = job.view->spec();
  return {spec.tile, job.slice.layer_count, job.slice.head_count, spec.tokens};
}

uint64_t PlaneBytes(const ViewShape& shape, uint32_t plane) {
  return TileBytes(shape.tile, PlaneAt(shape.tile.kind, plane), shape.tokens);
}

Error Check(const DecodeJob& job) {
  const ImageSpec& spec = job.view->spec();
  if (const Error error = CheckCodableWith(spec, job.inputs); error != Error::kOk) return error;
  if (job.slice.IsEmpty() || !spec.slice.Contains(job.slice)) return Error::kInvalidSlice;
  return CheckTarget(ShapeOf(job), job.target, false);
}

// Decodes the tiles of jobs one after another.
class Decoder {
 public:
  Decoder(const Backend& backend, bool is_streamed, bool is_verified, std::span<std::byte> scratch)
      : backend_(backend),
        is_streamed_(is_streamed),
        is_verified_(is_verified),
        scratch_(scratch),
        strips_(backend, is_streamed),
        steps_(backend, is_streamed, &step_scratch_) {}

  Error Add(const DecodeJob& job) {
    const ViewShape shape = ShapeOf(job);
    const Tiling tiling = job.view->tiling();
    return tiling.ForEach(job.slice, [&](uint32_t index) {
      const TileArea area = tiling.AreaOf(index);
      const auto layer = static_cast<uint32_t>(area.slice.layer_first - job.slice.layer_first);
      const auto head = static_cast<uint32_t>(area.slice.head_first - job.slice.head_first);
      return AddTile(shape, index, {&job, area.plane_first, layer, head, nullptr});
    });
  }

  Error Flush() {
    if (!strips_.Flush() || !steps_.Flush()) return Error::kBadTile;
    for (uint32_t i = 0; i < waiting_count_; ++i) {
      const Waiting& tile = waiting_[i];
      ScatterTile(ShapeOf(*tile.job), tile.plane, tile.job->target.At(tile.plane), tile.layer,
                  tile.head, tile.bytes);
    }
    waiting_count_ = 0;
    scratch_used_ = 0;
    return Error::kOk;
  }

 private:
  // A tile that is decoded on the scratch, once the decoders are flushed.
  struct Waiting {
    const DecodeJob* job;
    uint32_t plane, layer, head;
    std::byte* bytes;
  };

  Error AddTile(const ViewShape& shape, uint32_t index, Waiting tile) {
    const ImageView& view = *tile.job->view;
    if (is_verified_) {
      if (const Error error = VerifyTile(view, index); error != Error::kOk) return error;
    }
    std::byte* target =
        DenseTile(shape, tile.plane, tile.job->target.At(tile.plane), tile.layer, tile.head);
    if (target == nullptr) {
      const uint64_t bytes = PlaneBytes(shape, tile.plane);
      if (waiting_count_ == kWaitingMax || scratch_.size() - scratch_used_ < bytes) {
        if (const Error error = Flush(); error != Error::kOk) return error;
      }
      target = tile.bytes = scratch_.data() + scratch_used_;
      scratch_used_ = std::min<uint64_t>(scratch_used_ + AlignScratch(bytes), scratch_.size());
      waiting_[waiting_count_++] = tile;
    }
    const StoredTile stored = StoredTileOf(view, index);
    const DecodeWork work{backend_,       tile.job->inputs, is_streamed_,
                          &step_scratch_, &strips_,         &steps_};
    return FormOf(stored.entry.form)->decode(work, stored, U8(target)) ? Error::kOk
                                                                       : Error::kBadTile;
  }

  const Backend& backend_;
  const bool is_streamed_;
  const bool is_verified_;
  const std::span<std::byte> scratch_;
  StepScratch step_scratch_;
  StripDecoder strips_;
  StepStripDecoder steps_;
  uint32_t waiting_count_ = 0;
  uint64_t scratch_used_ = 0;
  Waiting waiting_[kWaitingMax];
};

// Of the tiles that have to be scattered: the largest, and all of them; and of the others.
struct Amounts {
  uint64_t largest = 0;
  uint64_t scattered = 0;
  uint64_t dense = 0;

  void Add(const DecodeJob& job) {
    const ViewShape shape = ShapeOf(job);
    for (uint32_t plane = 0; plane < PlaneCount(shape.tile.kind); ++plane) {
      const uint64_t bytes = AlignScratch(PlaneBytes(shape, plane));
      const uint64_t tiles = uint64_t{shape.layers} * shape.heads;
      if (DenseTile(shape, plane, job.target.At(plane), 0, 0) != nullptr) {
        dense += tiles * bytes;
      } else {
        largest = std::max(largest, bytes);
        scattered += tiles * bytes;
      }
    }
  }
};

Amounts AmountsOf(std::span<const DecodeJob> jobs) {
  Amounts amounts;
  for (const DecodeJob& job : jobs) amounts.Add(job);
  return amounts;
}

uint64_t ScratchBytesOf(const Amounts& amounts) {
  return std::max(amounts.largest, std::min(amounts.scattered, kScratchBytesMax));
}

}  // namespace

Error Decode(const Backend& backend, const ImageView& view, const Slice& slice,
             std::span<std::byte> target, const DecodeInputs& inputs) {
  const FloatGuard guard;
  DecodeJob job{&view, slice, {}, inputs};
  const ImageSpec& spec = view.spec();
  if (const Error error = CheckCodableWith(spec, inputs); error != Error::kOk) return error;
  if (slice.IsEmpty() || !spec.slice.Contains(slice)) return Error::kInvalidSlice;
  uint64_t target_bytes = 0;
  if (const Error error = SourceBytes(spec.tile, slice, spec.tokens, &target_bytes);
      error != Error::kOk) {
    return error;
  }
  if (target.size() < target_bytes) return Error::kTargetTooSmall;
  job.target = DenseView(ShapeOf(job), target.data());
  Decoder decoder(backend, target_bytes >= kStreamedBytesMin, false, {});
  const Error error = decoder.Add(job);
  return error == Error::kOk ? decoder.Flush() : error;
}

uint64_t ScratchBytes(std::span<const DecodeJob> jobs) { return ScratchBytesOf(AmountsOf(jobs)); }

Error DecodeAll(const Backend& backend, std::span<const DecodeJob> jobs,
                std::span<std::byte> scratch, size_t* failed) {
  const FloatGuard guard;
  const auto fail = [&](size_t job, Error error) {
    if (failed != nullptr) *failed = job;
    return error;
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (const Error error = Check(jobs[i]); error != Error::kOk) return fail(i, error);
  }
  const Amounts amounts = AmountsOf(jobs);
  if (scratch.size() < ScratchBytesOf(amounts)) return fail(0, Error::kTargetTooSmall);
  const bool is_streamed = amounts.scattered == 0 && amounts.dense >= kStreamedBytesMin;
  Decoder decoder(backend, is_streamed, true, scratch);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (const Error error = decoder.Add(jobs[i]); error != Error::kOk) return fail(i, error);
  }
  const Error error = decoder.Flush();
  // A strip that was left for the end may be of any job.
  return error == Error::kOk ? error : fail(jobs.size() - 1, error);
}

}  // namespace cairn::codecs
