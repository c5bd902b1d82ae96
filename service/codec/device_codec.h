// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes and decodes images on a device instead of on the caller's thread. The bytes are the same,
// and many images are processed at a time. Work falls back if it is not worth a launch, if there is
// no room, or if the device is late or has failed. Its owner then does it on the CPU. So every
// request is answered in time, with or without the device.
//
// The thread `gpu-codec` starts waiting work as soon as the device has room. Images that arrive
// while the device is busy form one batch. There are two batches, so that one is copied while the
// device works on the other. Work that misses its deadline falls back, even if it is on the device.
// Its memory stays in use until the device has finished. A device that needs longer than
// `late_after` for one phase of a batch counts as failed.
//
// Thread-safety: Thread-safe, except Make() and Stop(), which one thread calls.
// Locks:         no lock is held while it calls the device or a completion.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/codec/codec_figures.h"
#include "service/codec/codec_work.h"
#include "service/codec/device_batch.h"
#include "service/limits.h"
#include "service/memory/gpu_device.h"
#include "service/tier/host_tier.h"
#include "service/tier/tier.h"

namespace cairn {

class DeviceCodec {
 public:
  struct Options {
    uint64_t bytes = 0;  // device memory that the codec may use
    // Has the sources and images. Its arena is registered with the device. Must outlive the codec.
    HostTier* host = nullptr;
    uint64_t source_bytes_min = limits::kGpuCodedBytesMin;
    size_t queue_max = limits::kGpuCodecQueueMax;
    absl::Duration patience = absl::Milliseconds(limits::kGpuCodecPatienceMs);
    absl::Duration late_after = absl::Milliseconds(limits::kGpuLateMs);
  };
  // Errors: ResourceExhausted if the device has no room, or its driver refuses the host memory.
  static absl::StatusOr<std::unique_ptr<DeviceCodec>> Make(std::shared_ptr<GpuDevice> device,
                                                           const Options& options);
  ~DeviceCodec();

  // Takes the work and calls `done` in time, or refuses the work at once. `left` is the time until
  // the owner's deadline. The codec uses at most half of it, so that the owner has the rest for a
  // fallback.
  void Encode(EncodeWork work, absl::Duration left, CodecDone done);
  void Decode(DecodeWork work, absl::Duration left, CodecDone done);

  // Makes waiting work fall back, then waits for the work on the device. Idempotent.
  void Stop();

  // Describes the device for operators. Used if no tier has the device.
  DeviceReport Device() const;
  void Report(MetricSink& sink) const;

 private:
  DeviceCodec(std::shared_ptr<GpuDevice> device, const Options& options);
  absl::Status Prepare();
  // Returns whether the work is worth a launch, and whether there is room for it.
  bool HasRoomFor(CodecOp op, uint64_t source_bytes, uint64_t device_bytes);
  // Queues the job or refuses it.
  void SubmitJob(CodecJob job, uint64_t source_bytes, absl::Duration left);
  // Returns false, and leaves the job unchanged, if too many jobs wait or the codec is stopping.
  bool TrySubmitJob(CodecJob& job, absl::Duration left) ABSL_LOCKS_EXCLUDED(mutex_);

  // Only the codec's thread calls the functions below.
  void Run();
  // Waits for work while the device is idle, and gives jobs to idle batches. Returns false if the
  // codec is stopping and no work is left.
  bool Take();
  // Returns jobs of one kind: encodes or decodes, whichever has the job that has waited longest.
  std::deque<CodecJob> NextJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t WaitingCount() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(DeviceBatch& batch, std::deque<CodecJob> jobs);
  // Makes waiting jobs fall back: those past their deadline, or all of them if the device has
  // failed.
  void HandBackLate();
  // Polls a batch. Returns true on progress. Makes late jobs fall back. Marks a device without
  // progress as failed.
  bool Watch(DeviceBatch& batch);
  bool AreIdle() const;

  const std::shared_ptr<GpuDevice> device_;
  const Options options_;
  bool is_registered_ = false;
  CodecFigures figures_;
  std::array<std::unique_ptr<DeviceBatch>, 2> batches_;  // used by the thread only
  std::array<std::deque<CodecJob>, 2> next_;             // used by the thread only: jobs to begin
  mutable Mutex mutex_;
  CondVar work_due_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<std::deque<CodecJob>, kCodecOpCount> waiting_ ABSL_GUARDED_BY(mutex_);
  // The number of images in batches. Includes images whose owners have been answered.
  size_t on_device_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace cairn
