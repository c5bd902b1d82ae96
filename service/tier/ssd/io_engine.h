// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves bytes between files and memory without the page cache.
//
// A transfer has one completion, which runs exactly once, without locks held. It runs on a thread
// of the engine, or inside Submit(), Cancel() or Stop() if the transfer was not begun. The
// completion must be short: on an engine with one thread, no other completion runs meanwhile. It
// may call Submit() and Cancel().
//
// Foreground reads run first, and have their own budget of bytes in flight. All other transfers
// share another budget (IoLimits). Transfers of one kind and class begin in the order of Submit().
// After each piece of a transfer, other transfers may run before its next piece.
//
// Thread-safety: Thread-safe, except Stop() and the destructor. One thread, which is not one of the
//                engine's, calls these.
// Memory:        `fd` and `parts` must stay valid until the completion runs. The kernel accesses
//                the memory until then, even after the deadline.

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/units.h"
#include "service/limits.h"

namespace cairn {

// Every offset, address and length of a transfer is a multiple of this size.
inline constexpr uint64_t kPageBytes = 4096;

enum class IoKind : uint8_t { kRead, kWrite };

struct IoTransfer {
  IoKind kind = IoKind::kRead;
  int fd = -1;
  uint64_t offset = 0;  // offset in the file
  // Memory for consecutive bytes of the file. The second part may be empty. Writes only read it.
  std::array<std::span<std::byte>, 2> parts{};
  // On the clock of MonotonicNow(). A transfer that has begun before the deadline is not ended
  // early.
  absl::Time deadline = absl::InfiniteFuture();
  // Runs after all foreground transfers: for write-back, reclaim, scrubbing.
  bool is_background = false;

  uint64_t bytes() const { return parts[0].size() + parts[1].size(); }
};

// Identifies a transfer for Cancel(). 0: none.
using IoId = uint64_t;

// The outcome of a transfer:
//   OK                  all bytes are moved
//   DataLoss            the device reports an error, or a read reached the end of the file
//   DeadlineExceeded    not begun before the deadline
//   Cancelled           cancelled before its last piece was begun
//   ResourceExhausted   too many transfers wait; not begun
//   Unavailable         the engine is stopping; the last piece was not begun
//   Internal            any other error of the kernel; the message names it
// After an error, the bytes that a read or write was to change are unspecified.
using IoDone = absl::AnyInvocable<void(absl::Status status) &&>;

class IoEngine {
 public:
  // Stops the engine, and waits for the transfers in the kernel.
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "uring", "threads"
  // Submits a transfer. REQUIRES: whole pages, at least one.
  virtual IoId Submit(const IoTransfer& transfer, IoDone done) = 0;
  // Ends a transfer at once if it has not begun. If it has, begins no further piece of it. Does
  // nothing if it has completed.
  virtual void Cancel(IoId id) = 0;
  // Begins no more pieces. Returns true once all completions have run. Returns false at `deadline`
  // (on the clock of MonotonicNow()) if the kernel still has pieces. Idempotent.
  virtual bool Stop(absl::Time deadline) = 0;
  // The number of unfinished transfers.
  virtual size_t transfer_count() const = 0;
  // `labels` come before those of the engine.
  virtual void Report(MetricSink& sink, MetricLabels labels) const = 0;
};

struct IoLimits {
  uint64_t piece_bytes = limits::kIoPieceBytes;  // largest single request to the kernel
  uint64_t read_inflight_bytes = limits::kIoReadInflightBytes;
  uint64_t write_inflight_bytes = limits::kIoWriteInflightBytes;
  // The limit for writes and background reads together while foreground reads run, and shortly
  // after.
  uint64_t inflight_beside_reads_bytes = limits::kIoInflightBesideReadsBytes;
  size_t queue_max = limits::kIoQueueMax;  // unfinished transfers
  // Only for the thread engine.
  int read_threads = limits::kIoReadThreads;
  int write_threads = limits::kIoWriteThreads;
};

// Memory for O_DIRECT: whole, aligned pages. Thread-safety: Thread-compatible.
class PageMemory {
 public:
  PageMemory() = default;
  // REQUIRES: `bytes` is a multiple of the page size. The contents are unspecified.
  explicit PageMemory(size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes}))),
        bytes_(bytes) {}

  std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kPageBytes});
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

// --- Engines -------------------------------------------------------------------------------------

// Moves bytes as preadv() and pwritev() do, with their results and errno.
using IoCall = absl::AnyInvocable<ssize_t(IoKind kind, int fd, const iovec* parts, int parts_count,
                                          off_t offset) const>;

// Calls the kernel.
ssize_t CallKernel(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset);

// Makes the engine that works on every system. Its threads call preadv() and pwritev(), and a
// running transfer occupies a thread. Threads are named "io-read-0", "io-write-0", …, and
// "io-late", which ends transfers that have not begun before their deadline. Several threads use
// `call` at once.
std::unique_ptr<IoEngine> MakeThreadEngine(const IoLimits& limits, IoCall call = CallKernel);

// Makes the engine that uses io_uring. One thread, "io-ring", begins pieces and takes completions,
// so that no thread waits in the kernel for a drive. Errors: FailedPrecondition if the system
// refuses io_uring. The text has the reason, which may be a container's seccomp profile, a sysctl,
// an old kernel, or a build without liburing.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits& limits);

enum class IoChoice { kAuto, kUring, kThreads };

// Makes an engine. kAuto makes the io_uring engine if the system permits it. Otherwise it makes the
// thread engine, and logs the reason. Errors: FailedPrecondition with the reason if kUring is
// refused.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoChoice choice, const IoLimits& limits);

}  // namespace cairn
