// SPDX-License-Identifier: Apache-2.0
#pragma once
// The queue of a device's transfers. The queue chooses the next piece that the kernel moves. It
// makes no system calls itself: an I/O engine takes pieces from the queue, calls the kernel, and
// returns the kernel's results to the queue:
//
//     while (std::optional<IoPiece> piece = queue.Take()) { … }
//     queue.End(*piece, result);
//
// A call that ends transfers releases its lock and runs their completions before it returns.
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

// One system call's part of a transfer.
struct IoPiece {
  IoId id = 0;  // the transfer's id
  IoKind kind = IoKind::kRead;
  bool is_background = false;
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // the sum of its parts
  std::array<iovec, 2> parts{};
  int parts_count = 0;
  int interruptions = 0;  // number of signals that interrupted it
  absl::Time begun;

  // Sets `parts` to a range of `whole`: `count` bytes, after the first `skip` bytes of `whole`.
  void SetParts(const std::array<iovec, 2>& whole, uint64_t skip, uint64_t count);
};

class IoQueue {
 public:
  IoQueue(const IoLimits& limits, const Clock& clock);
  // REQUIRES: every transfer has completed.
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // As in IoEngine.
  IoId Submit(const IoTransfer& transfer, IoDone done);
  void Cancel(IoId id);
  size_t transfer_count() const {
    const MutexLock lock(mutex_);
    return transfers_.size();
  }
  void Report(MetricSink& sink, MetricLabels labels, std::string_view engine) const;

  // Returns the next piece, if one may begin now. The caller must call End() with it.
  std::optional<IoPiece> Take();
  // Waits for a piece of that kind. Returns nullopt if the queue stops.
  std::optional<IoPiece> AwaitPiece(IoKind kind);
  // `result` is the number of bytes moved, or -errno. After a short transfer, Take() returns the
  // rest.
  void End(const IoPiece& piece, int64_t result);

  // Ends transfers that have not begun before their deadline. Returns the next deadline.
  absl::Time EndLate();
  // Calls EndLate() at each deadline until the queue stops.
  void KeepDeadlines();

  // Ends transfers that have not begun. Take() then returns only the rests of short transfers.
  void Stop();
  bool is_stopping() const;
  // Returns true once the kernel has no piece, or false at `deadline`.
  bool AwaitIdle(absl::Time deadline);

 private:
  struct Transfer {
    IoId id = 0;
    IoTransfer io;
    IoDone done;
    uint64_t dispatched_bytes = 0;  // bytes passed to the kernel, from the start
    int pieces = 0;                 // pieces that the kernel has
    absl::Status status;            // the first failure; after it no further piece begins
  };
  using Transfers = std::list<Transfer>;
  // Completions, to be run after the lock is released.
  using Ended = std::vector<std::pair<IoDone, absl::Status>>;
  // Indexed by IoKind.
  template <typename T>
  using PerKind = std::array<T, 2>;

  static size_t Index(IoKind kind) { return static_cast<size_t>(kind); }
  static void Complete(Ended ended);

  // Returns the list that has the transfer.
  Transfers& ListOf(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLateLocked(Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: the kernel has no piece of the transfer.
  void EndLocked(Transfers::iterator transfer, absl::Status status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins no further piece of the transfer. Ends it now if the kernel has no piece of it.
  void FailLocked(Transfers::iterator transfer, absl::Status status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a transfer from those that wait to begin.
  void LeaveWaitingLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the list of `kind` with the transfer that begins next. Null: none may begin now.
  Transfers* NextLocked(IoKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t PieceBytesLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoomLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasReadsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<IoPiece> TakeRestLocked(IoKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a piece of the first transfer in `from`.
  IoPiece CutLocked(Transfers& from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues the rest of a short piece again. Returns false if the piece is complete.
  bool ResumeLocked(const IoPiece& piece, int64_t result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddInflightLocked(const IoPiece& piece, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes as many sleeping threads as there are pieces for the kernel.
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const IoLimits limits_;
  const Clock& clock_;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  IoId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Each transfer is in one of these lists. It moves between them without being copied.
  PerKind<Transfers> foreground_ ABSL_GUARDED_BY(mutex_);  // have bytes for the kernel
  PerKind<Transfers> background_ ABSL_GUARDED_BY(mutex_);  // have bytes for the kernel
  Transfers dispatched_ ABSL_GUARDED_BY(mutex_);           // completely in the kernel, or failed
  std::unordered_map<IoId, Transfers::iterator> transfers_ ABSL_GUARDED_BY(mutex_);
  // The deadlines of transfers that have not begun.
  std::set<std::pair<absl::Time, IoId>> deadlines_ ABSL_GUARDED_BY(mutex_);
  PerKind<std::vector<IoPiece>> short_pieces_ ABSL_GUARDED_BY(mutex_);  // rests for the kernel
  size_t pieces_ ABSL_GUARDED_BY(mutex_) = 0;  // pieces that the kernel has, and rests
  // The bytes of these pieces: first of foreground reads, then of all other transfers.
  uint64_t foreground_read_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t other_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The time at which the last foreground read ended.
  absl::Time last_read_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

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
