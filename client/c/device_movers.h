// SPDX-License-Identifier: Apache-2.0
#pragma once
// What moves blocks of one space to and from caches on devices, and mines what lies in them: made
// when it is first asked for, and kept. Private to client/c.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/cpp/device.h"
#include "client/cpp/mine.h"
#include "kernels/runtime.h"

namespace cairn::c {

enum class Work { kGet, kPut, kMine };

// Thread-safety: Thread-safe. Gets of one slice run one after the other, and so do puts, calls that
// mine, and calls that name one stream: a slow put delays no get on another stream.
class DeviceMovers {
 public:
  // Whom a call is for.
  struct Call {
    int32_t device = 0;
    Work work = Work::kGet;
    GroupSlice slice{};
    kernels::Stream stream = nullptr;
    absl::Time deadline = absl::InfinitePast();  // of MonotonicNow(): until its turn comes
  };

  // Whether there are caches of that CUDA device: errors as of With().
  static absl::Status Check(int32_t device);
  // The CUDA device of that number, which stays until this goes. Errors as of With().
  absl::StatusOr<kernels::Runtime*> Open(int32_t device);
  // Runs `body` with the mover of a slice and a CUDA device. Unimplemented: there are
  // no kernels; Unavailable: no such device, or it was lost in an earlier call; DeadlineExceeded:
  // others had their turn until then. As DeviceMover::Make().
  absl::Status With(Space& space, const Call& call,
                    absl::FunctionRef<absl::Status(DeviceMover& mover)> body);
  // The same with the miner of a device, for a call without a slice.
  absl::Status WithMiner(Space& space, const Call& call,
                         absl::FunctionRef<absl::Status(DeviceMiner& miner)> body);

 private:
  using Key = std::tuple<int32_t, Work, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  struct Slot {
    std::unique_ptr<DeviceMover> mover;  // whoever has set is_busy uses them without the lock
    std::unique_ptr<DeviceMiner> miner;
    bool is_busy = false;
  };

  absl::StatusOr<kernels::Runtime*> OpenLocked(int32_t device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for its turn.
  absl::Status Begin(const Call& call, Slot** slot, kernels::Runtime** runtime);
  void End(const Call& call, Slot& slot);

  Mutex mutex_;
  CondVar ended_;
  std::map<int32_t, std::unique_ptr<kernels::Runtime>> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::set<kernels::Stream> busy_streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::c
