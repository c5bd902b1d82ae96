// SPDX-License-Identifier: Apache-2.0
#pragma once
// Codes images on a device for those who would do it on a thread of their own: the same bytes, many
// images at a time. What it does not do, because it is not worth a launch, has no room, is late or
// has failed, it hands back, and its owner does it: nobody's answer depends on the device.
//
// A thread, `gpu-codec`, puts what waits on the device as soon as that has room for it: one image
// that comes alone goes alone, and what comes while the device is busy goes together. There are two
// batches, so that one is copied while the other is coded. Work that is not over when its time is
// is handed back, also off the device, which keeps its memory until it has let go of it. A device
// that needs longer than `late_after` for a step of a batch is out, as one that fails.
//
// Thread-safety: Thread-safe, but for Make() and Stop(): one thread.
// Locks:         none held while the device or a completion is called.

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
#include "service/tier/device_report.h"
#include "service/tier/host_tier.h"

namespace cairn {

class DeviceCodec {
 public:
  struct Options {
    uint64_t bytes = 0;  // of the device's memory
    // Where sources and images lie: its arena is registered with the device. Outlives the codec.
    HostTier* host = nullptr;
    uint64_t source_bytes_min = limits::kGpuCodedBytesMin;
    size_t queue_max = limits::kGpuCodecQueueMax;
    absl::Duration patience = absl::Milliseconds(limits::kGpuCodecPatienceMs);
    absl::Duration late_after = absl::Milliseconds(limits::kGpuLateMs);
  };
  // ResourceExhausted: the device has no room, or its driver does not take the memory of the host.
  // REQUIRES: `device` and `host` are not null.
  static absl::StatusOr<std::unique_ptr<DeviceCodec>> Make(std::shared_ptr<GpuDevice> device,
                                                           const Options& options);
  ~DeviceCodec();

  // Takes the work, and tells `done` in time; false: it does not, and both are untouched.
  //   left  until the owner's own deadline, of which it keeps half for doing it itself
  bool Encode(EncodeWork& work, absl::Duration left, CodecDone& done);
  bool Decode(DecodeWork& work, absl::Duration left, CodecDone& done);

  // Hands back what waits, and waits for what is on the device. Idempotent.
  void Stop();

  // What the device is, for operators, where no tier says it.
  DeviceReport Device() const;
  void Report(MetricSink& sink) const;

 private:
  DeviceCodec(std::shared_ptr<GpuDevice> device, const Options& options);
  absl::Status Prepare();
  // Whether it is worth asking the device, and there is room to.
  bool HasRoomFor(CodecOp op, uint64_t source_bytes, uint64_t device_bytes);
  // False: too many wait, or it is stopping; *job is untouched.
  bool Submit(CodecJob& job, absl::Duration left);

  // Of the thread.
  void Run();
  // Waits for work while nothing is on the device, and gives each idle batch its jobs. False: it is
  // stopping, and nothing is left.
  bool Take();
  // Those of one kind, of which one has waited longest.
  std::deque<CodecJob> NextJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t WaitingCount() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(DeviceBatch& batch, std::deque<CodecJob> jobs);
  // What waits for longer than its owner does, or for a device that is out.
  void HandBackLate();
  // Looks at what is on the device; true: it has got on. Hands back what is late of it, and loses a
  // device that does not get on.
  bool Watch(DeviceBatch& batch);
  bool AreIdle() const;

  const std::shared_ptr<GpuDevice> device_;
  const Options options_;
  bool is_registered_ = false;
  CodecFigures figures_;
  std::array<std::unique_ptr<DeviceBatch>, 2> batches_;  // of the thread
  std::array<std::deque<CodecJob>, 2> next_;             // likewise: to be begun
  mutable Mutex mutex_;
  CondVar work_due_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<std::deque<CodecJob>, kCodecOpCount> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t on_device_ ABSL_GUARDED_BY(mutex_) = 0;  // images of batches, whoever has been told
  std::thread thread_;
};

}  // namespace cairn
