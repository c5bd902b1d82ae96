// SPDX-License-Identifier: Apache-2.0
#include "service/codec/device_batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "service/codec/batch_layout.h"

namespace cairn {

using kernels::LaunchResult;

void FallBack(CodecFigures& figures, CodecJob& job, CodecFallback reason) {
  if (job.done != nullptr) {
    figures.NoteFallback(job.op, reason);
    std::exchange(job.done, nullptr)(absl::UnavailableError("the device does not code it"));
  }
}

uint64_t RoomForImages(uint64_t batch_bytes) {
  return batch_bytes - std::min(batch_bytes, BatchLayout::Bytes());
}

DeviceBatch::DeviceBatch(std::shared_ptr<GpuDevice> device, uint64_t bytes, CodecFigures& figures)
    : device_(std::move(device)),
      runtime_(device_->runtime()),
      bytes_(bytes),
      figures_(figures),
      side_begin_(bytes) {}

absl::StatusOr<std::unique_ptr<DeviceBatch>> DeviceBatch::Make(std::shared_ptr<GpuDevice> device,
                                                               uint64_t bytes,
                                                               CodecFigures& figures) {
  std::unique_ptr<DeviceBatch> batch(new DeviceBatch(std::move(device), bytes, figures));
  CAIRN_RETURN_IF_ERROR(batch->Prepare());
  return batch;
}

absl::Status DeviceBatch::Prepare() {
  const auto refused = [this](std::string_view what) {
    return absl::ResourceExhaustedError(
        absl::StrCat(device_->path(), " (", ToAbsl(runtime_.name()), ") ", ToAbsl(what)));
  };
  memory_ = runtime_.AllocateDevice(bytes_);
  if (memory_ == nullptr) {
    return refused(absl::StrCat("has no room for ", FormatBytes(bytes_), " of work"));
  }
  host_ = runtime_.AllocateHost(BatchLayout::Bytes());
  if (host_ == nullptr) {
    return refused(absl::StrCat("has no room for ", FormatBytes(BatchLayout::Bytes()),
                                " of the host's memory"));
  }
  stream_ = runtime_.OpenStream();
  return stream_ == nullptr ? refused("has no stream left") : absl::OkStatus();
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

std::byte* DeviceBatch::PlaceSide(const SideObject* side, uint64_t below) {
  if (side == nullptr) {
    return nullptr;
  }
  const auto known = std::ranges::find(sides_, side->id(), &SideObjectThere::id);
  if (known != sides_.end()) {
    return known->at;
  }
  const uint64_t bytes = BatchLayout::Rounded(side->bytes().size());
  CAIRN_CHECK(below + bytes <= side_begin_);
  side_begin_ -= bytes;
  std::byte* const at = memory_ + side_begin_;
  sides_.push_back({.id = side->id(), .at = at});
  CopyIn(at, side->bytes().data(), side->bytes().size());
  return at;
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

std::deque<CodecJob> DeviceBatch::Begin(std::deque<CodecJob> jobs) {
  CAIRN_CHECK(is_idle() && !jobs.empty());
  phase_ = Phase::kCoding;
  began_ = MonotonicNow();
  used_bytes_ = BatchLayout::Bytes();
  uint64_t below = used_bytes_;  // what the jobs take
  uint64_t sides = 0;
  for (const CodecJob& job : jobs) {
    below += job.device_bytes;
    sides += IsThere(job.work.side_object) ? 0 : SideBytesOf(job.work);
  }
  if (below + sides > side_begin_) {
    sides_.clear();
    side_begin_ = bytes_;
  }
  for (CodecJob& job : jobs) {
    kernels::EncodeJob made;
    if (Place(job, below, &made)) {
      made.spec = &jobs_.emplace_back(std::move(job)).work.spec;
      made_.push_back(made);
    } else {
      FallBack(figures_, job, CodecFallback::kUnsupported);
    }
  }
  const size_t planned = MakePlan(made_);
  std::deque<CodecJob> left;
  if (planned == 0 && !jobs_.empty()) {
    FallBack(figures_, jobs_.front(), CodecFallback::kLarge);
  }
  const size_t taken = std::max<size_t>(planned, jobs_.empty() ? 0 : 1);
  std::move(jobs_.begin() + static_cast<std::ptrdiff_t>(taken), jobs_.end(),
            std::back_inserter(left));
  jobs_.resize(taken);
  made_.resize(taken);
  if (planned == 0) {
    phase_ = Phase::kLeaving;  // with what was copied
    return left;
  }
  figures_.NoteBatch(CodecOp::kEncode, planned);
  Launch(made_);
  if (phase_ == Phase::kLeaving) {
    FallBackAll(device_->is_out() ? CodecFallback::kLost : CodecFallback::kUnsupported);
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
    std::vector<codecs::RecipeId> recipes;
    for (CodecJob& job : jobs_) {
      recipes.push_back(job.work.spec.recipe.id);
      if (job.done != nullptr) {
        figures_.NoteMade(job.op, job.work.source.size(), job.made.size_bytes());
        job.work.keeps = nullptr;  // before its owner answers
        std::exchange(job.done, nullptr)(std::move(job.made));
      }
    }
    figures_.NoteSeconds(CodecOp::kEncode, recipes, MonotonicNow() - began_);
  }
  FallBackAll(CodecFallback::kLost);
  End();
  return true;
}

void DeviceBatch::End() {
  jobs_.clear();
  made_.clear();
  layers_.clear();
  parents_.clear();
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
