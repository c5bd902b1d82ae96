// SPDX-License-Identifier: Apache-2.0
#pragma once
// What waits for a device, and which piece of it goes to the kernel next: all of an engine but the
// calls that move bytes. An engine takes pieces and gives back the kernel's answer to each:
//
//   while (std::optional<IoPiece> piece = queue.Take()) { … }
//   queue.End(*piece, result);
//
// What a call ends, it completes before it returns, with the lock released.
//
// Thread-safety: Thread-safe.

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/tier/ssd/io_engine.h"

namespace cairn {

// What the kernel is asked for at once.
struct IoPiece {
  IoId id = 0;  // of its transfer
  IoKind kind = IoKind::kRead;
  bool is_background = false;
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // of its parts
  std::array<iovec, 2> parts{};
  int parts_count = 0;
  int interruptions = 0;  // by signals
  absl::Time begun;

  // `count` bytes of `whole` after the first `skip`.
  void SetParts(const std::array<iovec, 2>& whole, uint64_t skip, uint64_t count);
};

class IoQueue {
 public:
  IoQueue(const IoLimits& limits, const Clock& clock);
  // REQUIRES: all is over.
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // As of IoEngine.
  IoId Submit(const IoTransfer& transfer, IoDone done);
  void Cancel(IoId id);
  size_t transfer_count() const {
    const MutexLock lock(mutex_);
    return transfers_.size();
  }
  void Report(MetricSink& sink, MetricLabels labels, std::string_view engine) const;

  // The piece that is next, if one may begin now. Whoever has it calls End() with it.
  std::optional<IoPiece> Take();
  // Waits for one of that kind. nullopt: the queue stops.
  std::optional<IoPiece> AwaitPiece(IoKind kind);
  // `result` is the bytes moved or -errno. The rest of a short transfer is taken again.
  void End(const IoPiece& piece, int64_t result);

  // Ends what was not begun by its deadline. Returns the next deadline.
  absl::Time EndLate();
  // EndLate() as deadlines come, until the queue stops.
  void KeepDeadlines();

  // Ends what was not begun; from now on Take() gives only the rests of short transfers.
  void Stop();
  bool is_stopping() const;
  // True once no piece is taken, false at `deadline`.
  bool AwaitIdle(absl::Time deadline);

 private:
  struct Transfer {
    IoId id = 0;
    IoTransfer io;
    IoDone done;
    uint64_t taken_bytes = 0;  // from its start
    int pieces = 0;            // taken
    absl::Status status;       // the first failure: no further piece is begun
  };
  using Transfers = std::list<Transfer>;
  // Completions to run once the lock is released.
  using Ended = std::vector<std::pair<IoDone, absl::Status>>;
  // By IoKind.
  template <typename T>
  using PerKind = std::array<T, 2>;

  static size_t Index(IoKind kind) { return static_cast<size_t>(kind); }
  static void Complete(Ended ended);

  // The list that a transfer is in.
  Transfers& ListOf(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLateLocked(Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: the kernel has nothing of it.
  void EndLocked(Transfers::iterator transfer, absl::Status status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No further piece of it begins. It ends now if the kernel has nothing of it.
  void FailLocked(Transfers::iterator transfer, absl::Status status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It is not waiting to begin any more.
  void LeaveWaitingLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The list whose first is to begin next, of those of `kind`; null when none may.
  Transfers* NextLocked(IoKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t PieceBytesLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoomLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasReadsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<IoPiece> TakeRestLocked(IoKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A piece of the first of `from`.
  IoPiece CutLocked(Transfers& from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: nothing of the piece is left to do.
  bool ResumeLocked(const IoPiece& piece, int64_t result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddInflightLocked(const IoPiece& piece, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of threads that sleep, as many as have something to do.
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const IoLimits limits_;
  const Clock& clock_;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  IoId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Each transfer is in one of the lists, and moves between them without being copied.
  PerKind<Transfers> foreground_ ABSL_GUARDED_BY(mutex_);  // with bytes that were not taken
  PerKind<Transfers> background_ ABSL_GUARDED_BY(mutex_);  // likewise
  Transfers taken_ ABSL_GUARDED_BY(mutex_);                // all bytes taken, or failed
  std::unordered_map<IoId, Transfers::iterator> transfers_ ABSL_GUARDED_BY(mutex_);
  // Of what is not begun, where there is one.
  std::set<std::pair<absl::Time, IoId>> deadlines_ ABSL_GUARDED_BY(mutex_);
  PerKind<std::vector<IoPiece>> rests_ ABSL_GUARDED_BY(mutex_);  // of short transfers
  size_t pieces_ ABSL_GUARDED_BY(mutex_) = 0;                    // taken, rests included
  // Bytes of the pieces taken.
  uint64_t foreground_read_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t other_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                     // of all else
  absl::Time last_read_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // a foreground read's end

  PerKind<CondVar> ready_;
  PerKind<int> sleeping_ ABSL_GUARDED_BY(mutex_){};
  CondVar deadline_is_nearer_;
  absl::Time deadlines_sleep_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  CondVar idle_;

  PerKind<Counter> bytes_, errors_, late_, refused_;
  PerKind<Gauge> inflight_bytes_, waiting_;
  PerKind<Histogram> seconds_{{Histogram(LatencyBounds()), Histogram(LatencyBounds())}};
};

}  // namespace cairn
