// SPDX-License-Identifier: Apache-2.0
#pragma once
// The GPU tier: copies of frequently read images in the memory of a device. No copy is the only one
// of its image, so the device may fail at any time.
//
// The arena is allocated at start. Only one thread, `gpu`, uses the device. It puts waiting copies
// on a stream and polls for their completion. There is one stream per direction, with one batch at
// a time.
//
// A device counts as failed if it reports an error or needs longer than `late_after` for a batch.
// It then stays failed until the process ends. No more work is put on a stream, the index drops the
// device's copies, and waiting transfers end with Unavailable. The same happens if another user of
// the device reports the failure, for which the thread checks at least once a second. Memory that a
// stream uses is kept until the stream completes or the device fails.
//
// Thread-safety: Thread-safe, except Make() and Stop(), which one thread calls.
// Locks:         no lock is held while it calls the device, the evictor or a completion.

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
    // The memory that transfers read and write. It is registered with the device. Must outlive the
    // tier.
    std::span<std::byte> host_memory = {};
    absl::Duration late_after = absl::Milliseconds(limits::kGpuLateMs);
  };
  // Errors: ResourceExhausted if the device has no room for the arena, or its driver refuses the
  // host memory. REQUIRES: `device` is not null.
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
  // Ends waiting transfers, and waits for those on a stream. Idempotent.
  void Stop() override;

  void Report(MetricSink& sink) const override;
  std::vector<DeviceReport> Devices() const override;
  absl::Status SetRetired(std::string_view path, bool is_retired) override;

 private:
  enum Direction : size_t { kRead = 0, kWrite = 1 };
  static constexpr size_t kDirectionCount = 2;

  struct Transfer {
    TransferId id = 0;
    uint64_t offset = 0;  // offset in the arena
    std::byte* host = nullptr;
    size_t bytes = 0;
    absl::Time deadline = absl::InfiniteFuture();
    bool is_background = false;
    TierDone done;
  };
  using Transfers = std::vector<Transfer>;
  // Transfers on a stream. Owned by the thread.
  struct Batch {
    Transfers transfers;
    absl::Time began = absl::InfinitePast();
    bool is_failed = false;  // the device has failed or exceeded `late_after`
  };

  GpuTier(std::shared_ptr<GpuDevice> device, const Options& options);
  absl::Status Prepare();
  void Free(uint64_t offset, uint64_t rounded_bytes) override;
  // Returns nullopt if there is no contiguous room. Errors: Unavailable if the device does not
  // accept new copies.
  absl::StatusOr<std::optional<TierExtent>> TryReserve(uint64_t bytes);
  TransferId Submit(Direction direction, Transfer transfer);
  static void Complete(Transfers& transfers, const absl::Status& status);

  // Used by the thread only.
  void Run();
  // Waits for work and moves it from the queues to idle streams. Returns false if the tier is
  // stopping and no work is left.
  bool Take(std::array<bool, kDirectionCount>* is_new);
  void Begin(Direction direction);
  // Returns false while the batch is running.
  bool Poll(Direction direction);
  void End(Direction direction, const absl::Status& status);
  // If the device has failed, drops its copies and ends waiting transfers. Does so once.
  void LetGoIfOut();

  const std::shared_ptr<GpuDevice> device_;
  const uint64_t capacity_bytes_;
  const std::span<std::byte> host_memory_;
  const absl::Duration late_after_;
  std::byte* arena_ = nullptr;
  bool is_registered_ = false;
  std::array<kernels::Stream, kDirectionCount> streams_{};
  std::array<Batch, kDirectionCount> batches_;  // used by the thread only
  bool has_let_go_ = false;                     // used by the thread only

  mutable Mutex mutex_;
  CondVar work_due_;
  Evictor* evictor_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_retired_ ABSL_GUARDED_BY(mutex_) = false;
  RangeMap ranges_ ABSL_GUARDED_BY(mutex_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t image_count_ ABSL_GUARDED_BY(mutex_) = 0;
  TransferId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<std::deque<Transfer>, kDirectionCount> waiting_ ABSL_GUARDED_BY(mutex_);
  std::array<size_t, kDirectionCount> on_stream_ ABSL_GUARDED_BY(mutex_){};
  Counter faults_;
  std::array<Counter, kDirectionCount> bytes_;
  std::array<Histogram, kDirectionCount> seconds_;
  std::thread thread_;
};

}  // namespace cairn
