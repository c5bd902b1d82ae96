// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one thread of chores: leases that ran out, waiters whose deadline passed, eviction down to
// the watermark, encoding of blocks that puts kept raw, mining of profiles. Sleeps until the next
// of them is due.
//
// Thread-safety: Thread-safe. The thread is named "upkeep".

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "service/index/block_index.h"
#include "service/spaces.h"
#include "service/tier/host_tier.h"
#include "service/upkeep/mining.h"

namespace cairn {

class Upkeep {
 public:
  Upkeep(Spaces& spaces, BlockIndex& index, HostTier& host, const Clock& clock);
  ~Upkeep() { Stop(); }

  void Start();
  // Ends the thread within one chore. Idempotent.
  void Stop();
  // Something may be due sooner than thought.
  void Wake();

  // One round of all chores, in the calling thread; returns when the next is due. What the thread
  // runs; tests call it instead of Start().
  absl::Time RunOnce();

  struct VerifyProgress {
    uint64_t images_checked = 0, images_total = 0, bytes_checked = 0, corrupt_images = 0;
  };
  // Checks every published tile against its CRC, in the calling thread; what is wrong is dropped,
  // counted and logged. `progress` runs at least once a second and at the end; false stops the walk
  // (Cancelled).
  absl::Status Verify(uint64_t space_id,
                      const std::function<bool(const VerifyProgress&)>& progress);

  void Report(MetricSink& sink) const;

 private:
  void Run();
  // Encodes up to a few pending images; true if there may be more at once.
  bool EncodePending();
  // ResourceExhausted: no room now, the image is to be pending again.
  absl::Status EncodeOne(const Pin& pin);
  // The image in a recipe that needs no side object, or in that of `spec`, in staging.
  // ResourceExhausted: no room now.
  absl::StatusOr<Extent> Demoted(const codecs::ImageView& view, const codecs::Recipe& recipe);
  absl::StatusOr<Extent> Recoded(const codecs::ImageView& view, const codecs::ImageSpec& spec,
                                 const codecs::DecodeInputs& side);
  // Checks the whole image; false if it was damaged, and has been dropped.
  bool VerifyOne(const Pin& pin);

  Spaces& spaces_;
  BlockIndex& index_;
  HostTier& host_;
  const Clock& clock_;
  const codecs::Backend& backend_;
  Mining mining_;

  mutable Mutex mutex_;
  CondVar woken_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;

  Counter rounds_, encoded_, corrupt_images_, verified_images_;
  Histogram encode_seconds_;
};

}  // namespace cairn
