// SPDX-License-Identifier: Apache-2.0
#pragma once
// The movers and miners of one space for CUDA devices. Each is made at its first use and then kept.
// Private to client/c.

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

// Thread-safety: Thread-safe. On one device, gets of one slice run one after the other. So do puts
// of one slice, and mining calls. Calls on one stream also run one after the other. A slow put does
// not delay a get on another stream.
class DeviceMovers {
 public:
  // A call: its device, slice, stream and deadline.
  struct Call {
    int32_t device = 0;
    Work work = Work::kGet;
    GroupSlice slice{};
    kernels::Stream stream = nullptr;
    // How long to wait for its turn, on the clock of MonotonicNow().
    absl::Time deadline = absl::InfinitePast();
  };

  // Checks that caches on a CUDA device are supported. Errors: as for With().
  static absl::Status Check(int32_t device);
  // Opens a CUDA device, which lives as long as this object. Errors: as for With().
  absl::StatusOr<kernels::Runtime*> Open(int32_t device);
  // Runs `body` with the mover of a slice and a CUDA device. Errors: Unimplemented (there are no
  // kernels), Unavailable (there is no such device, or it failed in an earlier call),
  // DeadlineExceeded (the call had to wait for others beyond its deadline), and those of
  // DeviceMover::Make().
  absl::Status With(Space& space, const Call& call,
                    absl::FunctionRef<absl::Status(DeviceMover& mover)> body);
  // Like With(), with the device's miner, for a call without a slice.
  absl::Status WithMiner(Space& space, const Call& call,
                         absl::FunctionRef<absl::Status(DeviceMiner& miner)> body);

 private:
  using Key = std::tuple<int32_t, Work, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  struct Slot {
    std::unique_ptr<DeviceMover> mover;  // used without the lock by the thread that set is_busy
    std::unique_ptr<DeviceMiner> miner;
    bool is_busy = false;
  };

  absl::StatusOr<kernels::Runtime*> OpenLocked(int32_t device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the call's turn.
  absl::Status Begin(const Call& call, Slot** slot, kernels::Runtime** runtime);
  void End(const Call& call, Slot& slot);

  Mutex mutex_;
  CondVar ended_;
  std::map<int32_t, std::unique_ptr<kernels::Runtime>> devices_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::set<kernels::Stream> busy_streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::c
