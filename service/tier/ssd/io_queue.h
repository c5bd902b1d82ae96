// SPDX-License-Identifier: Apache-2.0
#pragma once
// Queues a device's transfers and chooses the piece that goes to the kernel next: an engine without
// the calls that move bytes. An engine takes pieces and returns the kernel's answer to each:
//
//   while (std::optional<IoPiece> piece = queue.Take()) { … }
//   queue.End(*piece, result);
//
// A call that ends transfers runs their completions before it returns, with the lock released.
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

// One request to the kernel.
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

  // Sets `count` bytes of `whole` after the first `skip`.
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

  // Returns the next piece if one may begin now. The caller must call End() with it.
  std::optional<IoPiece> Take();
  // Waits for a piece of that kind. Returns nullopt when the queue stops.
  std::optional<IoPiece> AwaitPiece(IoKind kind);
  // `result` is the bytes moved or -errno. The rest of a short transfer is dispatched again.
  void End(const IoPiece& piece, int64_t result);

  // Ends transfers that were not begun by their deadline. Returns the next deadline.
  absl::Time EndLate();
  // Calls EndLate() at each deadline until the queue stops.
  void KeepDeadlines();

  // Ends transfers that were not begun. After it, Take() returns only the rests of short transfers.
  void Stop();
  bool is_stopping() const;
  // Returns true once no piece is dispatched, false at `deadline`.
  bool AwaitIdle(absl::Time deadline);

 private:
  struct Transfer {
    IoId id = 0;
    IoTransfer io;
    IoDone done;
    uint64_t dispatched_bytes = 0;  // from its start
    int pieces = 0;                 // dispatched
    absl::Status status;            // the first failure: no further piece begins
  };
  using Transfers = std::list<Transfer>;
  // Completions to run after the lock is released.
  using Ended = std::vector<std::pair<IoDone, absl::Status>>;
  // Indexed by IoKind.
  template <typename T>
  using PerKind = std::array<T, 2>;

  static size_t Index(IoKind kind) { return static_cast<size_t>(kind); }
  static void Complete(Ended ended);

  // The list that a transfer is in.
  Transfers& ListOf(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLateLocked(Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: the kernel has no piece of it.
  void EndLocked(Transfers::iterator transfer, absl::Status status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins no further piece of it. Ends it now if the kernel has no piece of it.
  void FailLocked(Transfers::iterator transfer, absl::Status status, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes it from the transfers that wait to begin.
  void LeaveWaitingLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the list of `kind` whose first transfer begins next; null if none may.
  Transfers* NextLocked(IoKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t PieceBytesLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoomLocked(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasReadsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<IoPiece> TakeRestLocked(IoKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a piece of the first transfer of `from`.
  IoPiece CutLocked(Transfers& from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if the piece is complete.
  bool ResumeLocked(const IoPiece& piece, int64_t result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddInflightLocked(const IoPiece& piece, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes as many sleeping threads as there are pieces to dispatch.
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const IoLimits limits_;
  const Clock& clock_;

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  IoId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Each transfer is in one of these lists, and moves between them without being copied.
  PerKind<Transfers> foreground_ ABSL_GUARDED_BY(mutex_);  // with bytes not dispatched yet
  PerKind<Transfers> background_ ABSL_GUARDED_BY(mutex_);  // likewise
  Transfers dispatched_ ABSL_GUARDED_BY(mutex_);           // all bytes dispatched, or failed
  std::unordered_map<IoId, Transfers::iterator> transfers_ ABSL_GUARDED_BY(mutex_);
  // Of transfers not begun that have one.
  std::set<std::pair<absl::Time, IoId>> deadlines_ ABSL_GUARDED_BY(mutex_);
  PerKind<std::vector<IoPiece>> short_pieces_ ABSL_GUARDED_BY(mutex_);  // of short transfers
  size_t pieces_ ABSL_GUARDED_BY(mutex_) = 0;  // dispatched, including rests
  // Bytes of the dispatched pieces.
  uint64_t foreground_read_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t other_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all others
  // When the last foreground read ended.
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
