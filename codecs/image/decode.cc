// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/decode.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codecs/backend/backend_operation.h"
#include "codecs/backend/step_scratch.h"
#include "codecs/checksum/checksum.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/strips.h"
#include "codecs/image/settle.h"
#include "codecs/image/tiles.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// Targets of at least this size exceed a core's own caches and are written past all caches, which
// avoids reading them first. On a Zen 3 this halves the time for raw and kivi:2.
constexpr uint64_t kStreamedBytesMin = uint64_t{1} << 20;
// Limit for tiles on the scratch at once, so that they stay in a core's cache.
constexpr uint64_t kScratchBytesMax = uint64_t{256} << 10;
// The same for copies of tiles in shared memory. A smaller limit only makes batches smaller.
constexpr uint64_t kContentBytesMax = uint64_t{512} << 10;
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
  // contents: room for copies of tiles in shared memory
  Decoder(const Backend& backend, bool is_streamed, bool is_verified, std::span<std::byte> contents,
          std::span<std::byte> scratch)
      : backend_(backend),
        is_streamed_(is_streamed),
        is_verified_(is_verified),
        contents_(contents),
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
    contents_used_ = 0;
    return Error::kOk;
  }

 private:
  // A tile that is decoded on the scratch, and copied once the decoders are flushed.
  struct Waiting {
    const DecodeJob* job;
    uint32_t plane, layer, head;
    std::byte* bytes;
  };

  Error AddTile(const ViewShape& shape, uint32_t index, Waiting tile) {
    const ImageView& view = *tile.job->view;
    StoredTile stored = StoredTileOf(view, index);
    std::byte* target =
        DenseTile(shape, tile.plane, tile.job->target.At(tile.plane), tile.layer, tile.head);
    if ((view.is_shared() || is_verified_) && stored.entry.form == kRawForm && target != nullptr) {
      return AddRaw(stored, target);
    }
    if (view.is_shared()) {
      uint32_t crc = 0;
      if (const Error error = TakeContent(&stored, &crc); error != Error::kOk) return error;
      if (const Error error = VerifyDecoded(stored, crc); error != Error::kOk) return error;
    } else if (is_verified_) {
      const uint32_t crc = Crc32c(stored.content);
      if (const Error error = VerifyDecoded(stored, crc); error != Error::kOk) return error;
    }
    if (target == nullptr) {
      const uint64_t bytes = PlaneBytes(shape, tile.plane);
      if (waiting_count_ == kWaitingMax || scratch_.size() - scratch_used_ < bytes) {
        // Flush() does not know the copy of this tile yet: keeps it.
        const uint64_t contents_used = contents_used_;
        if (const Error error = Flush(); error != Error::kOk) return error;
        contents_used_ = contents_used;
      }
      target = tile.bytes = scratch_.data() + scratch_used_;
      scratch_used_ = std::min<uint64_t>(scratch_used_ + AlignScratch(bytes), scratch_.size());
      waiting_[waiting_count_++] = tile;
    }
    const DecodeWork work{backend_,       tile.job->inputs, is_streamed_,
                          &step_scratch_, &strips_,         &steps_};
    return FormOf(stored.entry.form)->decode(work, stored, U8(target)) ? Error::kOk
                                                                       : Error::kBadTile;
  }

  // Copies the tile's content to private memory and computes its CRC in the same pass.
  Error TakeContent(StoredTile* tile, uint32_t* crc) {
    const uint64_t bytes = tile->content.size();
    // Reuses the room as soon as no copy in it is needed, so that it stays in the cache.
    if (strips_.IsEmpty() && steps_.IsEmpty()) contents_used_ = 0;
    if (contents_.size() - contents_used_ < bytes) {
      if (const Error error = Flush(); error != Error::kOk) return error;
    }
    const std::span<std::byte> copy = contents_.subspan(contents_used_, bytes);
    *crc = CopyCrc32c(0, copy.data(), tile->content);
    contents_used_ = std::min<uint64_t>(contents_used_ + AlignScratch(bytes), contents_.size());
    tile->content = copy;
    return Error::kOk;
  }

  // Copies and verifies a raw tile in one pass: each byte is read once, so the CRC is that of the
  // bytes in the target even if those of the tile change meanwhile.
  Error AddRaw(const StoredTile& tile, std::byte* target) {
    const uint64_t bytes = tile.geometry.SourceBytes();
    std::array<std::byte, kSectionAlignment> padding{};
    if (tile.content.size() < bytes || tile.content.size() - bytes > padding.size()) {
      return Error::kBadTile;
    }
    const std::span<const std::byte> source = tile.content.first(bytes);
    const std::span<const std::byte> rest = tile.content.subspan(bytes);
    uint32_t crc = is_streamed_ ? StreamCrc32c(0, target, source) : CopyCrc32c(0, target, source);
    crc = CopyCrc32c(crc, padding.data(), rest);
    if (crc != tile.entry.crc) return Error::kBadChecksum;
    return IsZero(padding.data(), padding.size()) ? Error::kOk : Error::kBadPadding;
  }

  const Backend& backend_;
  const bool is_streamed_;
  const bool is_verified_;
  const std::span<std::byte> contents_;
  const std::span<std::byte> scratch_;
  StepScratch step_scratch_;
  StripDecoder strips_;
  StepStripDecoder steps_;
  uint32_t waiting_count_ = 0;
  uint64_t scratch_used_ = 0;
  uint64_t contents_used_ = 0;
  Waiting waiting_[kWaitingMax];
};

// Bytes of scratch: for tiles that must be scattered, the largest and the sum; the same for other
// tiles; and the copies of shared tiles.
struct Amounts {
  uint64_t largest = 0;
  uint64_t scattered = 0;
  uint64_t dense = 0;
  uint64_t content_largest = 0;
  uint64_t contents = 0;

  uint64_t ContentBytes() const {
    return std::max(content_largest, std::min(contents, kContentBytesMax));
  }
  uint64_t TileBytes() const { return std::max(largest, std::min(scattered, kScratchBytesMax)); }

  void Add(const DecodeJob& job) {
    if (job.view->is_shared()) AddContents(job);
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

  void AddContents(const DecodeJob& job) {
    if (job.slice.IsEmpty() || !job.view->spec().slice.Contains(job.slice))
      return;  // refused later
    // ForEach() fails only if the function does.
    static_cast<void>(job.view->tiling().ForEach(job.slice, [&](uint32_t index) {
      const uint64_t bytes = AlignScratch(job.view->Tile(index).bytes);
      content_largest = std::max(content_largest, bytes);
      contents += bytes;
      return Error::kOk;
    }));
  }
};

Amounts AmountsOf(std::span<const DecodeJob> jobs) {
  Amounts amounts;
  for (const DecodeJob& job : jobs) amounts.Add(job);
  return amounts;
}

uint64_t ScratchBytesOf(const Amounts& amounts) {
  return amounts.ContentBytes() + amounts.TileBytes();
}

}  // namespace

Error Decode(const Backend& backend, const ImageView& view, const Slice& slice,
             std::span<std::byte> target, const DecodeInputs& inputs) {
  const FloatGuard guard;
  if (view.is_shared()) return Error::kMismatch;
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
  Decoder decoder(backend, target_bytes >= kStreamedBytesMin, false, {}, {});
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
  const uint64_t content_bytes = amounts.ContentBytes();
  Decoder decoder(backend, is_streamed, true, scratch.first(content_bytes),
                  scratch.subspan(content_bytes));
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (const Error error = decoder.Add(jobs[i]); error != Error::kOk) return fail(i, error);
  }
  const Error error = decoder.Flush();
  // A strip that was decoded at the end may belong to any job.
  return error == Error::kOk ? error : fail(jobs.size() - 1, error);
}

}  // namespace cairn::codecs
