// SPDX-License-Identifier: Apache-2.0
#include "service/codec/device_codec.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace cairn {
namespace {

constexpr absl::Duration kPollPause = absl::Microseconds(20);
constexpr absl::Duration kLatePause = absl::Milliseconds(1);
static_assert(limits::kGpuCodecJobsMax ==
              limits::kGpuCodecQueueMax + 2 * size_t{kernels::kPlanImagesMax});

}  // namespace

DeviceCodec::DeviceCodec(std::shared_ptr<GpuDevice> device, const Options& options)
    : device_(std::move(device)), options_(options) {}

absl::StatusOr<std::unique_ptr<DeviceCodec>> DeviceCodec::Make(std::shared_ptr<GpuDevice> device,
                                                               const Options& options) {
  std::unique_ptr<DeviceCodec> codec(new DeviceCodec(std::move(device), options));
  CAIRN_RETURN_IF_ERROR(codec->Prepare());
  codec->thread_ = std::thread([raw = codec.get()] { raw->Run(); });
  return codec;
}

absl::Status DeviceCodec::Prepare() {
  CAIRN_RETURN_IF_ERROR(device_->RegisterHost(options_.host->arena().mapping()));
  is_registered_ = true;
  for (std::unique_ptr<DeviceBatch>& batch : batches_) {
    CAIRN_ASSIGN_OR_RETURN(batch, DeviceBatch::Make(device_, *options_.host,
                                                    options_.bytes / batches_.size(), figures_));
  }
  return absl::OkStatus();
}

DeviceCodec::~DeviceCodec() {
  Stop();
  batches_ = {};
  if (is_registered_) {
    device_->UnregisterHost();
  }
}

bool DeviceCodec::HasRoomFor(CodecOp op, uint64_t source_bytes, uint64_t device_bytes) {
  const auto refuse = [&](CodecFallback reason) {
    figures_.NoteFallback(op, reason);
    return false;
  };
  figures_.NoteAsked(op);
  if (source_bytes < options_.source_bytes_min) {
    return refuse(CodecFallback::kSmall);
  }
  if (device_->is_out()) {
    return refuse(CodecFallback::kLost);
  }
  return device_bytes <= RoomForImages(options_.bytes / batches_.size()) ||
         refuse(CodecFallback::kLarge);
}

void DeviceCodec::Encode(EncodeWork work, absl::Duration left, CodecDone done) {
  CodecJob job;
  job.encode = std::move(work);
  job.done = std::move(done);
  job.device_bytes = DeviceBytesOf(job.encode);
  const uint64_t source_bytes = job.encode.source.size();
  SubmitJob(std::move(job), source_bytes, left);
}

void DeviceCodec::Decode(DecodeWork work, absl::Duration left, CodecDone done) {
  CodecJob job;
  job.op = CodecOp::kDecode;
  job.decode = std::move(work);
  job.done = std::move(done);
  job.device_bytes = DeviceBytesOf(job.decode);
  const uint64_t source_bytes = job.decode.source_bytes;
  SubmitJob(std::move(job), source_bytes, left);
}

void DeviceCodec::SubmitJob(CodecJob job, uint64_t source_bytes, absl::Duration left) {
  const uint64_t device_bytes = job.device_bytes + SideBytesOf(job.side_object());
  if (HasRoomFor(job.op, source_bytes, device_bytes) && TrySubmitJob(job, left)) {
    return;
  }
  CodecDone done = std::move(job.done);
  job = CodecJob();  // free its memory before the owner does the work
  done({.result = absl::UnavailableError("the device does not take it"), .is_refused = true});
}

bool DeviceCodec::TrySubmitJob(CodecJob& job, absl::Duration left) {
  const CodecOp op = job.op;
  job.asked = MonotonicNow();
  job.give_up = job.asked + std::min(options_.patience, left / 2);
  const MutexLock lock(mutex_);
  if (is_stopping_ || WaitingCount() >= options_.queue_max) {
    figures_.NoteFallback(op, is_stopping_ ? CodecFallback::kStopping : CodecFallback::kFull);
    return false;
  }
  waiting_[static_cast<size_t>(op)].push_back(std::move(job));
  work_due_.NotifyOne();
  return true;
}

size_t DeviceCodec::WaitingCount() const {
  size_t count = 0;
  for (const std::deque<CodecJob>& waiting : waiting_) {
    count += waiting.size();
  }
  return count;
}

void DeviceCodec::Stop() {
  std::array<std::deque<CodecJob>, kCodecOpCount> stopped;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    stopped.swap(waiting_);
    work_due_.NotifyAll();
  }
  for (std::deque<CodecJob>& waiting : stopped) {
    for (CodecJob& job : waiting) {
      FallBack(figures_, job, CodecFallback::kStopping);
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

// --- The thread ----------------------------------------------------------------------------------

void DeviceCodec::Run() {
  pthread_setname_np(pthread_self(), "gpu-codec");
  while (Take()) {  // until Stop()
    HandBackLate();
    bool has_moved = false;
    for (size_t i = 0; i < batches_.size(); ++i) {
      if (!next_[i].empty()) {
        Begin(*batches_[i], std::exchange(next_[i], {}));
        has_moved = true;
      } else if (!batches_[i]->is_idle()) {
        has_moved = Watch(*batches_[i]) || has_moved;
      }
    }
    if (!has_moved) {
      absl::SleepFor(device_->is_out() ? kLatePause : kPollPause);
    }
  }
}

void DeviceCodec::Begin(DeviceBatch& batch, std::deque<CodecJob> jobs) {
  if (device_->is_out()) {
    for (CodecJob& job : jobs) {
      FallBack(figures_, job, CodecFallback::kLost);
    }
    return;
  }
  std::deque<CodecJob> left = batch.Begin(std::move(jobs));
  if (!left.empty()) {
    const MutexLock lock(mutex_);
    std::move(left.rbegin(), left.rend(),
              std::front_inserter(waiting_[static_cast<size_t>(left.front().op)]));
  }
}

bool DeviceCodec::Watch(DeviceBatch& batch) {
  if (batch.Advance()) {  // a batch that has completed is not late, even if this is seen late
    return true;
  }
  const absl::Time now = MonotonicNow();
  if (device_->is_out()) {
    batch.FallBackAll(CodecFallback::kLost);
  }
  batch.FallBackLate(now);
  if (now - batch.waits_since() > options_.late_after) {
    device_->Lose(absl::StrCat("it has not coded ", batch.image_count(), " images within ",
                               absl::FormatDuration(options_.late_after)));
  }
  return false;
}

bool DeviceCodec::AreIdle() const {
  return std::ranges::all_of(batches_, [](const auto& batch) { return batch->is_idle(); });
}

bool DeviceCodec::Take() {
  const MutexLock lock(mutex_);
  while (WaitingCount() == 0 && AreIdle()) {
    if (is_stopping_) {
      return false;
    }
    work_due_.WaitUntil(mutex_, MonotonicNow() + absl::Seconds(1));
  }
  on_device_ = 0;
  for (size_t i = 0; i < batches_.size(); ++i) {
    if (batches_[i]->is_idle() && !device_->is_out()) {
      next_[i] = NextJobs();
    }
    on_device_ += batches_[i]->image_count() + next_[i].size();
  }
  return true;
}

std::deque<CodecJob> DeviceCodec::NextJobs() {
  const uint64_t room = RoomForImages(options_.bytes / batches_.size());
  const auto& longest = std::ranges::min_element(waiting_, {}, [](const auto& waiting) {
    return waiting.empty() ? absl::InfiniteFuture() : waiting.front().asked;
  });
  std::deque<CodecJob> jobs;
  std::vector<const SideObject*> sides;
  uint64_t bytes = 0;
  while (!longest->empty() && jobs.size() < kernels::kPlanImagesMax) {
    CodecJob& job = longest->front();
    const SideObject* side = job.side_object();
    const bool is_new = side != nullptr && std::ranges::find(sides, side) == sides.end();
    bytes += job.device_bytes + (is_new ? SideBytesOf(side) : 0);
    if (bytes > room) {
      break;
    }
    if (is_new) {
      sides.push_back(side);
    }
    jobs.push_back(std::move(job));
    longest->pop_front();
  }
  return jobs;
}

void DeviceCodec::HandBackLate() {
  const absl::Time now = MonotonicNow();
  const bool is_out = device_->is_out();
  std::vector<CodecJob> late;
  {
    const MutexLock lock(mutex_);
    for (std::deque<CodecJob>& waiting : waiting_) {
      const auto is_in_time = [&](const CodecJob& job) { return !is_out && now < job.give_up; };
      const auto first_late = std::stable_partition(waiting.begin(), waiting.end(), is_in_time);
      std::move(first_late, waiting.end(), std::back_inserter(late));
      waiting.erase(first_late, waiting.end());
    }
  }
  for (CodecJob& job : late) {
    FallBack(figures_, job, is_out ? CodecFallback::kLost : CodecFallback::kLate);
  }
}

DeviceReport DeviceCodec::Device() const {
  DeviceReport report;
  report.path = device_->path();
  report.engine = device_->runtime().name();
  report.state = device_->is_out() ? DeviceState::kOut : DeviceState::kOk;
  report.reason = device_->reason();
  const MutexLock lock(mutex_);
  report.transfer_count = WaitingCount() + on_device_;
  return report;
}

void DeviceCodec::Report(MetricSink& sink) const { figures_.Report(sink); }

}  // namespace cairn
