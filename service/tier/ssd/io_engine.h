// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves bytes between files and memory without the page cache.
//
// A transfer has one completion, which runs exactly once without locks held: on a thread of the
// engine, or inside Submit(), Cancel() or Stop() if the transfer was not begun. It must be short,
// because on an engine with one thread no other completion runs meanwhile. It may call Submit() and
// Cancel().
//
// Foreground reads run first and have their own budget of bytes in flight. All other transfers
// share the budget that IoLimits leaves beside them. Transfers of one kind and class run in the
// order of Submit(), but a transfer of several pieces lets others pass after each piece.
//
// Thread-safety: Thread-safe, except Stop() and the destructor: one thread that is not the
// engine's.
// Memory:        fd and parts must stay valid until the completion. The kernel accesses the memory
//                until then, whatever the deadline.

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

// Every offset, address and length of a transfer is a multiple of it.
inline constexpr uint64_t kPageBytes = 4096;

enum class IoKind : uint8_t { kRead, kWrite };

struct IoTransfer {
  IoKind kind = IoKind::kRead;
  int fd = -1;
  uint64_t offset = 0;  // in the file
  // Memory for consecutive bytes of the file; the second may be empty. A write only reads it.
  std::array<std::span<std::byte>, 2> parts{};
  // Of MonotonicNow(). A transfer that has begun by then ends when the kernel ends it.
  absl::Time deadline = absl::InfiniteFuture();
  // Runs after all others: write-back, reclaim, scrubbing.
  bool is_background = false;

  uint64_t bytes() const { return parts[0].size() + parts[1].size(); }
};

// Names a transfer for Cancel(); 0: none.
using IoId = uint64_t;

// The outcome of a transfer:
//   OK                  all bytes are moved
//   DataLoss            the device reports an error, or a read met the end of the file
//   DeadlineExceeded    not begun by the deadline
//   Cancelled           cancelled before the last piece was begun
//   ResourceExhausted   too many transfers wait; not begun
//   Unavailable         the engine stops; the last piece was not begun
//   Internal            any other error of the kernel; the message names it
// After an error the bytes of a read, and those in the file after a write, are unspecified.
using IoDone = absl::AnyInvocable<void(absl::Status status) &&>;

class IoEngine {
 public:
  // Stops, and waits for the kernel's transfers.
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "uring", "threads"
  // Submits a transfer. REQUIRES: whole pages, at least one.
  virtual IoId Submit(const IoTransfer& transfer, IoDone done) = 0;
  // Ends a transfer that was not begun at once; begins no further piece of a running one. Does
  // nothing if it has completed.
  virtual void Cancel(IoId id) = 0;
  // Begins no more pieces. Returns true once all completions have run, or false at `deadline` (a
  // point of MonotonicNow()) if the kernel still has some. Idempotent.
  virtual bool Stop(absl::Time deadline) = 0;
  // Unfinished transfers.
  virtual size_t transfer_count() const = 0;
  // `labels` come before those of the engine.
  virtual void Report(MetricSink& sink, MetricLabels labels) const = 0;
};

struct IoLimits {
  uint64_t piece_bytes = limits::kIoPieceBytes;  // largest single request to the kernel
  uint64_t read_inflight_bytes = limits::kIoReadInflightBytes;
  uint64_t write_inflight_bytes = limits::kIoWriteInflightBytes;
  // For writes and background reads together, while there are foreground reads or just were.
  uint64_t inflight_beside_reads_bytes = limits::kIoInflightBesideReadsBytes;
  size_t queue_max = limits::kIoQueueMax;  // unfinished transfers
  // For the thread engine.
  int read_threads = limits::kIoReadThreads;
  int write_threads = limits::kIoWriteThreads;
};

// Memory for O_DIRECT: whole, aligned pages. Thread-safety: Thread-compatible.
class PageMemory {
 public:
  PageMemory() = default;
  // REQUIRES: whole pages. The contents are unspecified.
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

// Moves bytes like preadv() and pwritev(), including errno.
using IoCall = absl::AnyInvocable<ssize_t(IoKind kind, int fd, const iovec* parts, int parts_count,
                                          off_t offset) const>;

// Calls the kernel.
ssize_t CallKernel(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset);

// Makes the engine that works everywhere: threads that call preadv() and pwritev(). A running
// transfer occupies a thread. Threads are named "io-read-0", "io-write-0", …, and "io-late", which
// ends transfers that did not begin by their deadline. `call` runs on several threads at once.
std::unique_ptr<IoEngine> MakeThreadEngine(const IoLimits& limits, IoCall call = CallKernel);

// Makes the engine over io_uring: one thread, "io-ring", begins pieces and reaps completions, so
// that no thread waits in the kernel for a drive. Errors: FailedPrecondition with the reason if the
// system refuses io_uring: a container's seccomp profile, a sysctl, an old kernel, or a build
// without liburing.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(const IoLimits& limits);

enum class IoChoice { kAuto, kUring, kThreads };

// Makes an engine. kAuto: io_uring if the system permits it, else threads, with a log line that
// gives the reason. Errors: for kUring FailedPrecondition with the reason if it is refused.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoChoice choice, const IoLimits& limits);

}  // namespace cairn
