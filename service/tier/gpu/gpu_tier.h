// SPDX-License-Identifier: Apache-2.0
#pragma once
// The GPU tier: copies of images that are read often, in the memory of a device. None of them is an
// image's only one, so that the device may fail at any time.
//
// The arena is taken at start. A thread, `gpu`, is the only one that talks to the device: it puts
// the copies that wait on a stream, one stream each way and a batch at a time, and asks until they
// are over.
//
// A device that fails is out until the process ends, and so is one that needs longer than
// `late_after` for a batch: nothing more is put on a stream, its copies are lost to the index, and
// what waits ends with Unavailable. So it is where others who work on the device find it out; the
// thread looks once a second at least. What is on a stream keeps its memory until the stream is
// over or the device has failed.
//
// Thread-safety: Thread-safe, but for Make() and Stop(): one thread.
// Locks:         none held while the device, the evictor or a completion is called.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "kernels/runtime.h"
#include "service/limits.h"
#include "service/memory/gpu_device.h"
#include "service/memory/range_map.h"
#include "service/tier/tier.h"

namespace cairn {

class GpuTier final : public CopyTier {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    // Registered with the device, for what is read and written lies there. Outlives the tier.
    std::span<std::byte> host_memory = {};
    absl::Duration late_after = absl::Milliseconds(limits::kGpuLateMs);
  };
  // ResourceExhausted: the device has no room for the arena, or its driver does not take the memory
  // of the host. REQUIRES: `device` is not null.
  static absl::StatusOr<std::unique_ptr<GpuTier>> Make(std::shared_ptr<GpuDevice> device,
                                                       const Options& options);
  ~GpuTier() override;

  const TierTraits& traits() const override;
  void SetEvictor(Evictor* evictor) override;
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override;
  uint64_t capacity_bytes() const override { return capacity_bytes_; }
  uint64_t image_bytes_max() const override;
  uint64_t used_bytes() const override;
  TransferId Read(const TierRead& read, TierDone done) override;
  TransferId Write(const TierWrite& write, TierDone done) override;
  void Cancel(TransferId id) override;
  // Ends what waits, and waits for what is on a stream. Idempotent.
  void Stop() override;

  void Report(MetricSink& sink) const override;
  std::vector<DeviceReport> Devices() const override;
  absl::Status SetRetired(std::string_view path, bool is_retired) override;

 private:
  enum Way : size_t { kRead = 0, kWrite = 1 };
  static constexpr size_t kWayCount = 2;

  struct Transfer {
    TransferId id = 0;
    uint64_t offset = 0;  // in the arena
    std::byte* host = nullptr;
    size_t bytes = 0;
    absl::Time deadline = absl::InfiniteFuture();
    bool is_background = false;
    TierDone done;
  };
  using Transfers = std::vector<Transfer>;
  // What is on a stream. Owned by the thread.
  struct Batch {
    Transfers transfers;
    absl::Time began = absl::InfinitePast();
    bool is_failed = false;  // not all of it got there
  };

  GpuTier(std::shared_ptr<GpuDevice> device, const Options& options);
  absl::Status Prepare();
  void Free(uint64_t offset, uint64_t rounded_bytes) override;
  // Nothing: there is no room in one piece. Unavailable: the device takes nothing new.
  absl::StatusOr<std::optional<TierExtent>> TryReserve(uint64_t bytes);
  TransferId Submit(Way way, Transfer transfer);
  static void Complete(Transfers& transfers, const absl::Status& status);

  // Of the thread.
  void Run();
  // Waits for work, and moves it from the queues to streams without any. False: the tier stops, and
  // nothing is left.
  bool Take(std::array<bool, kWayCount>* is_new);
  void Begin(Way way);
  // False: it is not over yet.
  bool Poll(Way way);
  void End(Way way, const absl::Status& status);
  // Drops its copies and ends what waits, once, if the device is out.
  void LetGoIfOut();

  const std::shared_ptr<GpuDevice> device_;
  const uint64_t capacity_bytes_;
  const std::span<std::byte> host_memory_;
  const absl::Duration late_after_;
  std::byte* arena_ = nullptr;
  bool is_registered_ = false;
  std::array<kernels::Stream, kWayCount> streams_{};
  std::array<Batch, kWayCount> batches_;  // of the thread
  bool has_let_go_ = false;               // of the thread

  mutable Mutex mutex_;
  CondVar work_due_;
  Evictor* evictor_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  RangeMap ranges_ ABSL_GUARDED_BY(mutex_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t image_count_ ABSL_GUARDED_BY(mutex_) = 0;
  TransferId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<std::deque<Transfer>, kWayCount> waiting_ ABSL_GUARDED_BY(mutex_);
  std::array<size_t, kWayCount> on_stream_ ABSL_GUARDED_BY(mutex_){};
  Counter faults_;
  std::array<Counter, kWayCount> bytes_;
  std::array<Histogram, kWayCount> seconds_;
  std::thread thread_;
};

}  // namespace cairn
