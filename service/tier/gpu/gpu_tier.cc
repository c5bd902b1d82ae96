// SPDX-License-Identifier: Apache-2.0
#include "service/tier/gpu/gpu_tier.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "service/memory/arena.h"

namespace cairn {
namespace {

using kernels::LaunchResult;

constexpr uint64_t kPageBytes = RangeMap::kPageBytes;
// Limits for the evictions of one Reserve(). If the free bytes are not contiguous, an eviction by
// age may free a range that is long enough.
constexpr int kEvictionsMax = 100'000;
constexpr int kEvictionsForPieceMax = 64;
constexpr absl::Duration kPollPause = absl::Microseconds(20);
constexpr absl::Duration kLatePause = absl::Milliseconds(1);

constexpr MetricLabel kGpuLabel[] = {{"tier", "gpu"}};

}  // namespace

GpuTier::GpuTier(std::shared_ptr<GpuDevice> device, const Options& options)
    : device_(std::move(device)),
      capacity_bytes_(options.capacity_bytes / kPageBytes * kPageBytes),
      host_memory_(options.host_memory),
      late_after_(options.late_after),
      ranges_(static_cast<uint32_t>(capacity_bytes_ / kPageBytes)),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds())} {}

absl::StatusOr<std::unique_ptr<GpuTier>> GpuTier::Make(std::shared_ptr<GpuDevice> device,
                                                       const Options& options) {
  std::unique_ptr<GpuTier> tier(new GpuTier(std::move(device), options));
  CAIRN_RETURN_IF_ERROR(tier->Prepare());
  tier->thread_ = std::thread([raw = tier.get()] { raw->Run(); });
  return tier;
}

absl::Status GpuTier::Prepare() {
  arena_ = device_->runtime().AllocateDevice(capacity_bytes_);
  if (arena_ == nullptr) {
    return device_->Refused(absl::StrCat("has no room for ", FormatBytes(capacity_bytes_)));
  }
  CAIRN_RETURN_IF_ERROR(device_->RegisterHost(host_memory_));
  is_registered_ = true;
  for (kernels::Stream& stream : streams_) {
    stream = device_->runtime().OpenStream();
    if (stream == nullptr) {
      return device_->Refused("has no stream left");
    }
  }
  return absl::OkStatus();
}

GpuTier::~GpuTier() {
  Stop();
  for (const kernels::Stream stream : streams_) {
    if (stream != nullptr) {
      device_->runtime().CloseStream(stream);
    }
  }
  if (is_registered_) {
    device_->UnregisterHost();
  }
  if (arena_ != nullptr) {
    device_->runtime().FreeDevice(arena_);
  }
}

const TierTraits& GpuTier::traits() const {
  static constexpr TierTraits kTraits = {.id = TierId::kGpu, .is_leaf_first = true};
  return kTraits;
}

void GpuTier::SetEvictor(Evictor* evictor) {
  const MutexLock lock(mutex_);
  evictor_ = evictor;
}

// --- Room ----------------------------------------------------------------------------------------

absl::StatusOr<std::optional<TierExtent>> GpuTier::TryReserve(uint64_t bytes) {
  const uint64_t rounded = RoundedExtentBytes(bytes);
  const MutexLock lock(mutex_);
  if (device_->is_out() || is_retired_ || is_stopping_) {
    return absl::UnavailableError(
        absl::StrCat(device_->path(), device_->is_out() ? " is out" : " accepts no copies"));
  }
  const std::optional<uint32_t> page =
      ranges_.Take(static_cast<uint32_t>(rounded / kPageBytes), Use::kPlaced);
  if (!page.has_value()) {
    return std::optional<TierExtent>();
  }
  used_bytes_ += rounded;
  ++image_count_;
  return std::optional<TierExtent>(std::in_place, *this, uint64_t{*page} * kPageBytes, bytes,
                                   rounded);
}

absl::StatusOr<TierExtent> GpuTier::Reserve(uint64_t bytes, const Placement&) {
  Evictor* evictor = nullptr;
  {
    const MutexLock lock(mutex_);
    evictor = evictor_;
  }
  const uint64_t rounded = RoundedExtentBytes(bytes);
  int in_pieces = 0;
  for (int evictions = 0; rounded <= capacity_bytes_ && evictions < kEvictionsMax; ++evictions) {
    CAIRN_ASSIGN_OR_RETURN(std::optional<TierExtent> place, TryReserve(bytes));
    if (place.has_value()) {
      return *std::move(place);
    }
    in_pieces += used_bytes() + rounded <= capacity_bytes_ ? 1 : 0;
    if (in_pieces > kEvictionsForPieceMax || evictor == nullptr ||
        evictor->EvictOldest(TierId::kGpu, EvictionReason::kCapacity) == 0) {
      break;
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat("gpu tier: no room for ", bytes,
                                                   " bytes in its ", capacity_bytes_,
                                                   ": all copies are being read"));
}

void GpuTier::Free(uint64_t offset, uint64_t rounded_bytes) {
  const MutexLock lock(mutex_);
  ranges_.Return(static_cast<uint32_t>(offset / kPageBytes));
  used_bytes_ -= rounded_bytes;
  --image_count_;
}

uint64_t GpuTier::image_bytes_max() const {
  return std::min(capacity_bytes_, CopyTier::image_bytes_max());
}

uint64_t GpuTier::used_bytes() const {
  const MutexLock lock(mutex_);
  return used_bytes_;
}

// --- Transfers -----------------------------------------------------------------------------------

TransferId GpuTier::Read(const TierRead& read, TierDone done) {
  return Submit(kRead, {.offset = read.place->offset() + read.offset,
                        .host = read.target.data(),
                        .bytes = read.target.size(),
                        .deadline = read.deadline,
                        .is_background = read.is_background,
                        .done = std::move(done)});
}

TransferId GpuTier::Write(const TierWrite& write, TierDone done) {
  return Submit(kWrite, {.offset = write.place->offset(),
                         .host = const_cast<std::byte*>(write.source.data()),  // read only
                         .bytes = write.source.size(),
                         .deadline = write.deadline,
                         .done = std::move(done)});
}

TransferId GpuTier::Submit(Direction direction, Transfer transfer) {
  absl::Status refused;
  {
    const MutexLock lock(mutex_);
    std::deque<Transfer>& waiting = waiting_[direction];
    if (device_->is_out()) {
      refused = absl::UnavailableError(absl::StrCat(device_->path(), " is out"));
    } else if (is_stopping_) {
      refused = absl::UnavailableError("the gpu tier is stopping");
    } else if (waiting.size() >= limits::kGpuQueueMax) {
      refused = absl::ResourceExhaustedError("too many transfers wait for the device");
    } else {
      transfer.id = ++last_id_;
      // Background transfers stay behind all others.
      const auto behind = std::find_if(
          waiting.rbegin(), waiting.rend(),
          [&](const Transfer& other) { return transfer.is_background || !other.is_background; });
      waiting.insert(behind.base(), std::move(transfer));
      work_due_.NotifyOne();
      return last_id_;
    }
  }
  std::move(transfer.done)(refused);
  return 0;
}

void GpuTier::Cancel(TransferId id) {
  Transfers cancelled;
  {
    const MutexLock lock(mutex_);
    for (std::deque<Transfer>& waiting : waiting_) {
      const auto found = std::find_if(waiting.begin(), waiting.end(),
                                      [id](const Transfer& other) { return other.id == id; });
      if (found != waiting.end()) {
        cancelled.push_back(std::move(*found));
        waiting.erase(found);
      }
    }
  }
  Complete(cancelled, absl::CancelledError("cancelled"));
}

void GpuTier::Complete(Transfers& transfers, const absl::Status& status) {
  for (Transfer& transfer : transfers) {
    std::move(transfer.done)(status);
  }
  transfers.clear();
}

void GpuTier::Stop() {
  Transfers waiting;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (std::deque<Transfer>& queue : waiting_) {
      std::move(queue.begin(), queue.end(), std::back_inserter(waiting));
      queue.clear();
    }
    work_due_.NotifyAll();
  }
  Complete(waiting, absl::UnavailableError("the gpu tier is stopping"));
  if (thread_.joinable()) {
    thread_.join();
  }
}

// --- The thread ----------------------------------------------------------------------------------

void GpuTier::Run() {
  pthread_setname_np(pthread_self(), "gpu");
  std::array<bool, kDirectionCount> is_new{};
  while (Take(&is_new)) {  // until Stop()
    LetGoIfOut();
    bool has_ended = false;
    bool is_late = false;
    for (const Direction direction : {kRead, kWrite}) {
      if (is_new[direction]) {
        Begin(direction);
      }
      if (!batches_[direction].transfers.empty()) {
        has_ended = Poll(direction) || has_ended;
        is_late = is_late || batches_[direction].is_failed;
      }
    }
    if (!has_ended) {
      absl::SleepFor(is_late ? kLatePause : kPollPause);
    }
  }
}

bool GpuTier::Take(std::array<bool, kDirectionCount>* is_new) {
  const MutexLock lock(mutex_);
  const auto is_idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::all_of(waiting_.begin(), waiting_.end(), [](const auto& q) { return q.empty(); }) &&
           std::all_of(on_stream_.begin(), on_stream_.end(), [](size_t n) { return n == 0; });
  };
  while (is_idle()) {
    if (is_stopping_) {
      return false;
    }
    if (device_->is_out() && !has_let_go_) {
      break;
    }
    work_due_.WaitUntil(mutex_, MonotonicNow() + absl::Seconds(1));
  }
  for (const Direction direction : {kRead, kWrite}) {
    Transfers& batch = batches_[direction].transfers;
    (*is_new)[direction] = batch.empty() && !waiting_[direction].empty() && !device_->is_out();
    while ((*is_new)[direction] && !waiting_[direction].empty() &&
           batch.size() < limits::kGpuBatchMax) {
      batch.push_back(std::move(waiting_[direction].front()));
      waiting_[direction].pop_front();
    }
    on_stream_[direction] = batch.size();
  }
  return true;
}

void GpuTier::Begin(Direction direction) {
  Batch& batch = batches_[direction];
  batch.began = MonotonicNow();
  batch.is_failed = false;
  Transfers late;
  const auto is_in_time = [&](const Transfer& transfer) { return batch.began < transfer.deadline; };
  const auto first_late =
      std::stable_partition(batch.transfers.begin(), batch.transfers.end(), is_in_time);
  std::move(first_late, batch.transfers.end(), std::back_inserter(late));
  batch.transfers.erase(first_late, batch.transfers.end());
  Complete(late, absl::DeadlineExceededError("the device was busy until the deadline"));
  for (const Transfer& transfer : batch.transfers) {
    std::byte* const at = arena_ + transfer.offset;
    const LaunchResult result =
        direction == kRead
            ? device_->runtime().CopyOut(transfer.host, at, transfer.bytes, streams_[direction])
            : device_->runtime().CopyIn(at, transfer.host, transfer.bytes, streams_[direction]);
    if (result != LaunchResult::kOk) {
      batch.is_failed = true;  // work that is on the stream already continues
      device_->Lose(kernels::LastDeviceError());
      return LetGoIfOut();
    }
  }
  if (batch.transfers.empty()) {
    End(direction, absl::OkStatus());
  }
}

bool GpuTier::Poll(Direction direction) {
  Batch& batch = batches_[direction];
  bool is_over = false;
  if (device_->runtime().Poll(streams_[direction], &is_over) != LaunchResult::kOk) {
    device_->Lose(kernels::LastDeviceError());
    LetGoIfOut();
    End(direction, absl::UnavailableError(absl::StrCat(device_->path(), " failed")));
    return true;
  }
  if (is_over) {
    // Publish nothing on a failed device: its copies are already dropped.
    const bool is_failed = batch.is_failed || (direction == kWrite && device_->is_out());
    End(direction, is_failed ? absl::UnavailableError(absl::StrCat(device_->path(), " failed"))
                             : absl::OkStatus());
    return true;
  }
  if (!batch.is_failed && MonotonicNow() - batch.began > late_after_) {
    batch.is_failed = true;
    device_->Lose(absl::StrCat("it has not moved ", batch.transfers.size(), " copies within ",
                               absl::FormatDuration(late_after_)));
    LetGoIfOut();
  }
  return false;
}

void GpuTier::End(Direction direction, const absl::Status& status) {
  Transfers ended = std::exchange(batches_[direction].transfers, {});
  const absl::Duration took = MonotonicNow() - batches_[direction].began;
  for (const Transfer& transfer : ended) {
    if (status.ok()) {
      bytes_[direction].Add(transfer.bytes);
      seconds_[direction].Observe(took);
    }
  }
  faults_.Add(status.ok() ? 0 : ended.size());
  Complete(ended, status);
  const MutexLock lock(mutex_);
  on_stream_[direction] = 0;
}

void GpuTier::LetGoIfOut() {
  if (has_let_go_ || !device_->is_out()) {
    return;
  }
  has_let_go_ = true;
  Transfers waiting;
  Evictor* evictor = nullptr;
  {
    const MutexLock lock(mutex_);
    evictor = evictor_;
    for (std::deque<Transfer>& queue : waiting_) {
      std::move(queue.begin(), queue.end(), std::back_inserter(waiting));
      queue.clear();
    }
  }
  // Call it before any reader gets the error, so that a new search finds another copy.
  if (evictor != nullptr) {
    evictor->LoseCopies(TierId::kGpu, 0, UINT64_MAX);
  }
  faults_.Add(waiting.size());
  Complete(waiting, absl::UnavailableError(absl::StrCat(device_->path(), " is out")));
}

// --- Figures -------------------------------------------------------------------------------------
// Reports for operators, and retirement.

std::vector<DeviceReport> GpuTier::Devices() const {
  DeviceReport report;
  report.path = device_->path();
  report.capacity_bytes = capacity_bytes_;
  report.written_bytes = bytes_[kWrite].Value();
  report.read_bytes = bytes_[kRead].Value();
  report.fault_count = faults_.Value();
  report.engine = device_->runtime().name();
  const MutexLock lock(mutex_);
  const bool is_out = device_->is_out();
  report.state = is_out        ? DeviceState::kOut
                 : is_retired_ ? DeviceState::kReadOnly
                               : DeviceState::kOk;
  report.reason = is_out ? device_->reason() : is_retired_ ? "retired" : "";
  report.is_retired = is_retired_;
  report.used_bytes = used_bytes_;
  report.image_count = image_count_;
  for (size_t direction = 0; direction < kDirectionCount; ++direction) {
    report.transfer_count += waiting_[direction].size() + on_stream_[direction];
  }
  return {report};
}

absl::Status GpuTier::SetRetired(std::string_view path, bool is_retired) {
  if (path != device_->path()) {
    return CopyTier::SetRetired(path, is_retired);
  }
  if (device_->is_out()) {
    return absl::FailedPreconditionError(
        absl::StrCat(device_->path(), " is out until the daemon restarts: ", device_->reason()));
  }
  const MutexLock lock(mutex_);
  is_retired_ = is_retired;
  return absl::OkStatus();
}

void GpuTier::Report(MetricSink& sink) const {
  const DeviceReport device = Devices().front();
  sink.AddGauge("cairn_tier_capacity_bytes", "Capacity of a tier in bytes.", kGpuLabel,
                static_cast<double>(capacity_bytes_));
  sink.AddGauge("cairn_tier_used_bytes",
                "Bytes of images in a tier, as allocated (rounded), including unlinked ones that "
                "are still being read.",
                kGpuLabel, static_cast<double>(device.used_bytes));
  ReportGpuState(device.state, sink);
  sink.AddCounter("cairn_gpu_faults_total", "Copies to and from the device that failed.", {},
                  device.fault_count);
  constexpr std::string_view kDirections[kDirectionCount] = {"read", "write"};
  for (size_t direction = 0; direction < kDirectionCount; ++direction) {
    const MetricLabel label[] = {{"op", kDirections[direction]}};
    sink.AddCounter("cairn_gpu_bytes_total", "Bytes of images copied from and to the device.",
                    label, bytes_[direction].Value());
    sink.AddHistogram("cairn_gpu_copy_seconds",
                      "Time from the launch of a copy until its completion is seen.", label,
                      seconds_[direction].Snapshot());
  }
  sink.AddGauge("cairn_gpu_transfers", "Unfinished copies to and from the device.", {},
                static_cast<double>(device.transfer_count));
}

}  // namespace cairn
