// SPDX-License-Identifier: Apache-2.0
#pragma once
// The thread for periodic tasks: expired leases, late waiters, eviction down to the watermark,
// encoding of blocks that puts stored raw, mining of profiles, write-back to the SSD tier, and
// copies to the GPU tier. It sleeps until the next task is due.
//
// Thread-safety: Thread-safe. The thread is named "upkeep".

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/index/block_index.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/device_copies.h"
#include "service/upkeep/image_check.h"
#include "service/upkeep/mining.h"
#include "service/upkeep/pending_encodes.h"
#include "service/upkeep/recode.h"
#include "service/upkeep/scrub.h"
#include "service/upkeep/write_down.h"

namespace cairn {

class Upkeep {
 public:
  struct Options {
    std::optional<uint64_t> scrub_rate_bytes = 0;  // as in Scrub
    uint64_t write_budget_bytes = 0;               // as in WriteDown
    DeviceCodec* device = nullptr;                 // as in PendingEncodes
  };
  Upkeep(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
         const Options& options);
  Upkeep(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock)
      : Upkeep(spaces, index, tiers, clock, Options()) {}
  ~Upkeep() { Stop(); }

  // Says which profiles this daemon mines, in a cluster. REQUIRES: Start() was not called yet.
  // `turns` must outlive the thread.
  void SetTurns(MiningTurns* turns) { mining_.SetTurns(turns); }

  void Start();
  // Ends the thread after its current task, and waits for running writes. Idempotent.
  void Stop();
  // Makes the thread check at once whether a task is due.
  void Wake();

  // Runs one round of all tasks on the calling thread. Returns when the next round is due. The
  // thread calls it in a loop. Tests call it instead of Start().
  absl::Time RunOnce();

  // Returns DurablePuts::AwaitDurable(), for puts that ask to be durable.
  std::function<void(const BlockName&, const WantedGroup&, absl::Time, DurablePuts::Done)>
  await_durable() {
    return std::bind_front(&DurablePuts::AwaitDurable, &write_down_.durable_puts());
  }
  // Returns DeviceCopies::NoteRead(), for gets. Null: there is no GPU tier.
  std::function<void(const BlockName&, TierId)> note_read() {
    if (!device_copies_.has_tier()) return nullptr;
    return std::bind_front(&DeviceCopies::NoteRead, &device_copies_);
  }
  // The number of images that a restart would lose and that upkeep is going to write.
  uint64_t unwritten_count() const { return write_down_.left(); }
  ScrubReport scrub() const { return scrub_.Describe(); }
  WriteReport writes() const { return write_down_.Describe(); }

  struct VerifyProgress {
    uint64_t images_checked = 0, images_total = 0, bytes_checked = 0, corrupt_images = 0;
  };
  // Verifies every published tile of the copies in all tiers, on the calling thread and at full
  // speed. Damaged copies are dropped, counted and logged. `progress` is called at least once a
  // second and at the end. If it returns false, the walk stops (Cancelled). VerifyProgress counts
  // each copy of an image separately.
  absl::Status Verify(uint64_t space_id,
                      const std::function<bool(const VerifyProgress&)>& progress);

  void Report(MetricSink& sink) const;

 private:
  void Run();
  // Continues to collect expired blocks. Returns true if more may be left to collect at once.
  bool CollectExpired(absl::Time now);
  // Has the tiers store the hints for the next process, if hints have changed. Returns false if no
  // hint has changed.
  bool SaveHints();
  // Logs a warning if a full index evicts blocks although a tier has room. Logs once for each tier.
  void SayWhatIndexLimits();
  absl::Status VerifyTier(CopyTier& tier, uint64_t space_id, VerifyProgress& done,
                          const std::function<bool()>& goes_on);

  Spaces& spaces_;
  BlockIndex& index_;
  Tiers& tiers_;
  const Clock& clock_;
  const Recoder recoder_;
  ImageCheck check_;
  PendingEncodes pending_encodes_;
  Mining mining_;
  WriteDown write_down_;
  DeviceCopies device_copies_;
  Scrub scrub_;
  absl::Time next_retirement_ = absl::InfinitePast();  // next retirement of idle spaces
  absl::Time next_collection_ = absl::InfinitePast();  // of expired blocks
  uint64_t collected_ = 0;                             // slots visited in the current collection
  absl::Time next_hints_save_ = absl::InfinitePast();
  uint64_t saved_hints_ = 0;  // the version of the last save
  std::set<TierId> limited_;  // tiers for which SayWhatIndexLimits() has logged

  mutable Mutex mutex_;
  CondVar woken_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;

  Counter rounds_;
};

}  // namespace cairn
