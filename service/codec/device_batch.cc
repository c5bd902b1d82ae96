// SPDX-License-Identifier: Apache-2.0
#include "service/codec/device_batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/format/tile_layout.h"
#include "service/codec/batch_layout.h"

namespace cairn {

using kernels::LaunchResult;

void FallBack(CodecFigures& figures, CodecJob& job, CodecFallback reason) {
  if (job.done != nullptr) {
    figures.NoteFallback(job.op, reason);
    std::exchange(job.done,
                  nullptr)(absl::UnavailableError("the device does not encode or decode it"));
  }
}

uint64_t RoomForImages(uint64_t batch_bytes) {
  return batch_bytes - std::min(batch_bytes, BatchLayout::Bytes());
}

DeviceBatch::DeviceBatch(std::shared_ptr<GpuDevice> device, HostTier& host, uint64_t bytes,
                         CodecFigures& figures)
    : device_(std::move(device)),
      runtime_(device_->runtime()),
      host_tier_(host),
      bytes_(bytes),
      figures_(figures),
      side_begin_(bytes) {}

absl::StatusOr<std::unique_ptr<DeviceBatch>> DeviceBatch::Make(std::shared_ptr<GpuDevice> device,
                                                               HostTier& host, uint64_t bytes,
                                                               CodecFigures& figures) {
  std::unique_ptr<DeviceBatch> batch(new DeviceBatch(std::move(device), host, bytes, figures));
  CAIRN_RETURN_IF_ERROR(batch->Prepare());
  return batch;
}

absl::Status DeviceBatch::Prepare() {
  memory_ = runtime_.AllocateDevice(bytes_);
  if (memory_ == nullptr) {
    return device_->Refused(absl::StrCat("has no room for ", FormatBytes(bytes_), " of work"));
  }
  host_ = runtime_.AllocateHost(BatchLayout::Bytes());
  if (host_ == nullptr) {
    return device_->Refused(absl::StrCat("has no room for ", FormatBytes(BatchLayout::Bytes()),
                                         " of the host's memory"));
  }
  stream_ = runtime_.OpenStream();
  return stream_ == nullptr ? device_->Refused("has no stream left") : absl::OkStatus();
}

DeviceBatch::~DeviceBatch() {
  CAIRN_CHECK(is_idle(), "work is on the device");
  if (stream_ != nullptr) {
    runtime_.CloseStream(stream_);
  }
  if (host_ != nullptr) {
    runtime_.FreeHost(host_);
  }
  if (memory_ != nullptr) {
    runtime_.FreeDevice(memory_);
  }
}

std::byte* DeviceBatch::Take(uint64_t bytes) {
  std::byte* const at = memory_ + used_bytes_;
  used_bytes_ += BatchLayout::Rounded(bytes);
  CAIRN_CHECK(used_bytes_ <= side_begin_);
  return at;
}

bool DeviceBatch::IsThere(const SideObject* side) const {
  return side != nullptr &&
         std::ranges::find(sides_, side->id(), &SideObjectThere::id) != sides_.end();
}

bool DeviceBatch::PlaceSide(const SideObject* side, uint64_t below, const std::byte** placed) {
  *placed = nullptr;
  if (side == nullptr) {
    return true;
  }
  const auto known = std::ranges::find(sides_, side->id(), &SideObjectThere::id);
  if (known != sides_.end()) {
    *placed = known->at;
    return true;
  }
  const uint64_t bytes = BatchLayout::Rounded(side->bytes().size());
  CAIRN_CHECK(below + bytes <= side_begin_);
  std::byte* const at = memory_ + side_begin_ - bytes;
  if (!NoteStaged(at, side->bytes(), /*is_side=*/true)) {
    return false;
  }
  side_begin_ -= bytes;
  sides_.push_back({.id = side->id(), .at = at});
  *placed = at;
  return true;
}

bool DeviceBatch::Took(LaunchResult result) {
  if (result == LaunchResult::kOk) {
    return true;
  }
  phase_ = Phase::kLeaving;  // what is on the stream already goes on
  if (result == LaunchResult::kDeviceError) {
    device_->Lose(kernels::LastDeviceError());
  }
  return false;
}

bool DeviceBatch::CopyIn(std::byte* to, const void* from, size_t bytes) {
  return phase_ != Phase::kLeaving &&
         Took(runtime_.CopyIn(to, static_cast<const std::byte*>(from), bytes, stream_));
}

void DeviceBatch::Note(std::byte* to, const void* from, size_t bytes, bool is_side) {
  noted_.push_back({.to = to,
                    .from = static_cast<const std::byte*>(from),
                    .bytes = bytes,
                    .job = jobs_.size() - 1,
                    .is_side = is_side});
}

bool DeviceBatch::NoteStaged(std::byte* to, std::span<const std::byte> from, bool is_side) {
  absl::StatusOr<Extent> staged = host_tier_.AllocateStaging(from.size());
  if (!staged.ok()) {
    return false;
  }
  std::ranges::copy(from, staged->bytes().begin());
  Note(to, staged->bytes().data(), from.size(), is_side);
  staged_.push_back(*std::move(staged));
  return true;
}

void DeviceBatch::Forget(size_t first_job) {
  while (!noted_.empty() && noted_.back().job >= first_job) {
    if (const NextCopy& copy = noted_.back(); copy.is_side) {
      CAIRN_CHECK(copy.to == memory_ + side_begin_ && sides_.back().at == copy.to);
      sides_.pop_back();
      side_begin_ += BatchLayout::Rounded(copy.bytes);
    }
    noted_.pop_back();
  }
  encodes_.resize(std::min(encodes_.size(), first_job));
  decodes_.resize(std::min(decodes_.size(), first_job));
}

void DeviceBatch::CopyNoted() {
  for (const NextCopy& copy : noted_) {
    CopyIn(copy.to, copy.from, copy.bytes);
  }
  noted_.clear();
}

// By layer, head and plane, one token behind another.
kernels::PagedView DeviceBatch::ViewOfSource(const codecs::ImageSpec& spec, std::byte* base) {
  std::vector<std::byte*>& layers = layers_.emplace_back();
  const uint32_t planes = codecs::PlaneCount(spec.tile.kind);
  uint64_t head_bytes = 0;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    head_bytes += codecs::GeometryOf(spec, plane).SourceBytes();
  }
  const uint64_t layer_bytes = head_bytes * spec.slice.head_count;
  layers.reserve(size_t{planes} * spec.slice.layer_count);  // spans of it are taken
  kernels::PagedView view;
  view.page_count = 1;
  view.page_tokens = codecs::TileRows(spec.tile.kind, spec.tokens);
  uint64_t before = 0;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    const codecs::TileGeometry geometry = codecs::GeometryOf(spec, plane);
    const size_t first = layers.size();
    for (uint32_t layer = 0; layer < spec.slice.layer_count; ++layer) {
      layers.push_back(base + layer * layer_bytes + before);
    }
    kernels::PagedPlane& placed = plane == 0 ? view.k : view.v;
    placed.layers = std::span(layers).subspan(first, spec.slice.layer_count);
    placed.layer_bytes = layer_bytes - before;
    placed.token_stride = geometry.RowBytes();
    placed.head_stride = head_bytes;
    before += geometry.SourceBytes();
  }
  return view;
}

const uint32_t* DeviceBatch::statuses() const {
  return reinterpret_cast<const uint32_t*>(host_ + BatchLayout::kStatus);
}

void DeviceBatch::PlaceAll(std::deque<CodecJob> jobs) {
  uint64_t below = used_bytes_;  // what the jobs take
  uint64_t sides = 0;
  for (const CodecJob& job : jobs) {
    below += job.device_bytes;
    sides += IsThere(job.side_object()) ? 0 : SideBytesOf(job.side_object());
  }
  if (below + sides > side_begin_) {
    sides_.clear();
    side_begin_ = bytes_;
  }
  for (CodecJob& waiting : jobs) {
    CodecJob& job = jobs_.emplace_back(std::move(waiting));
    const bool is_placed =
        op_ == CodecOp::kEncode ? PlaceEncode(job, below) : PlaceDecode(job, below);
    if (!is_placed) {
      FallBack(figures_, job, CodecFallback::kUnsupported);
      Forget(jobs_.size() - 1);
      jobs_.pop_back();
    }
  }
}

size_t DeviceBatch::MakePlan(codecs::Error* error) {
  const std::span<std::byte> room(host_ + BatchLayout::kPlan, BatchLayout::PlanBytes());
  const auto make = [&](size_t count) {
    return op_ == CodecOp::kEncode
               ? kernels::MakeEncodePlan(std::span(encodes_).first(count), room, &encode_plan_)
               : kernels::MakeDecodePlan(std::span(decodes_).first(count), kernels::Verify::kYes,
                                         room, &decode_plan_);
  };
  size_t count = jobs_.size();
  *error = codecs::Error::kOk;
  while (count > 0 && (*error = make(count)) != codecs::Error::kOk) {
    count /= 2;
  }
  return count;
}

std::deque<CodecJob> DeviceBatch::Begin(std::deque<CodecJob> jobs) {
  CAIRN_CHECK(is_idle() && !jobs.empty());
  phase_ = Phase::kCoding;
  op_ = jobs.front().op;
  used_bytes_ = BatchLayout::Bytes();
  PlaceAll(std::move(jobs));
  codecs::Error error = codecs::Error::kOk;
  const size_t planned = MakePlan(&error);
  size_t taken = planned;
  if (planned == 0 && !jobs_.empty()) {
    FallBack(
        figures_, jobs_.front(),
        error == codecs::Error::kTooLarge ? CodecFallback::kLarge : CodecFallback::kUnsupported);
    taken = 1;
  }
  std::deque<CodecJob> left;
  std::move(jobs_.begin() + static_cast<std::ptrdiff_t>(taken), jobs_.end(),
            std::back_inserter(left));
  for (CodecJob& job : left) {
    job.made.Reset();  // others may need the room meanwhile
  }
  jobs_.resize(taken);
  Forget(planned);
  began_ = MonotonicNow();
  CopyNoted();
  if (planned == 0) {
    End();  // nothing is on the stream
    return left;
  }
  figures_.NoteBatch(op_, planned);
  op_ == CodecOp::kEncode ? LaunchEncode() : LaunchDecode();
  waits_since_ = MonotonicNow();
  if (phase_ == Phase::kLeaving) {
    FallBackAll(device_->is_out() ? CodecFallback::kLost : CodecFallback::kUnsupported);
    sides_.clear();  // they may not have got there
  }
  return left;
}

bool DeviceBatch::Advance() {
  bool is_over = false;
  if (runtime_.Poll(stream_, &is_over) != LaunchResult::kOk) {
    device_->Lose(kernels::LastDeviceError());
    FallBackAll(CodecFallback::kLost);
    End();
    return true;
  }
  if (!is_over) {
    return false;
  }
  if (phase_ == Phase::kCoding && !device_->is_out()) {
    CopyImages();
    return true;
  }
  if (phase_ == Phase::kCopying) {
    Finish();
  }
  FallBackAll(CodecFallback::kLost);
  End();
  return true;
}

void DeviceBatch::Finish() {
  if (op_ == CodecOp::kDecode) {
    CheckDecoded();
  }
  const absl::Duration seconds = MonotonicNow() - began_;
  std::vector<codecs::RecipeId> recipes;
  for (CodecJob& job : jobs_) {
    const bool is_encode = op_ == CodecOp::kEncode;
    recipes.push_back(is_encode ? job.encode.spec.recipe.id : job.decode.view.spec().recipe.id);
    if (job.done == nullptr) {
      continue;
    }
    const uint64_t made_bytes = job.made.size_bytes();
    figures_.NoteMade(op_, is_encode ? job.encode.source.size() : made_bytes,
                      is_encode ? made_bytes : job.decode.view.image_bytes());
    job.encode.keeps = job.decode.keeps = nullptr;  // before its owner answers
    std::exchange(job.done, nullptr)(std::move(job.made));
  }
  figures_.NoteSeconds(op_, recipes, seconds);
}

void DeviceBatch::End() {
  jobs_.clear();
  encodes_.clear();
  decodes_.clear();
  layers_.clear();
  parents_.clear();
  staged_.clear();
  phase_ = Phase::kIdle;
}

void DeviceBatch::FallBackLate(absl::Time now) {
  for (CodecJob& job : jobs_) {
    if (now >= job.give_up) {
      FallBack(figures_, job, CodecFallback::kLate);
    }
  }
}

void DeviceBatch::FallBackAll(CodecFallback reason) {
  for (CodecJob& job : jobs_) {
    FallBack(figures_, job, reason);
  }
}

}  // namespace cairn
