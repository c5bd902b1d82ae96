// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves bytes between files and memory, without a copy in the page cache.
//
// A transfer has one completion, which runs exactly once with no lock held: on a thread of the
// engine, or inside Submit(), Cancel() or Stop() where the transfer was not begun. It is short: on
// an engine with one thread nothing else completes meanwhile. It may call Submit() and Cancel().
//
// Foreground reads come first, and have a budget of bytes in flight of their own. Everything else
// shares what IoLimits leaves beside them. Within one kind and class the order is that of
// Submit(), but a transfer of several pieces lets others pass after each piece.
//
// Thread-safety: Thread-safe, but Stop() and the destructor: one thread, which is none of the
//                engine's.
// Memory:        fd and parts stay until the completion. The kernel writes to the memory until
//                then, whatever the deadline says.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  uint64_t offset = 0;  // of the first byte, in the file
  // In this order, without a gap in the file; the second may be empty. A write only reads them.
  std::array<std::span<std::byte>, 2> parts{};
  // Of MonotonicNow(). What has begun by then ends when the kernel says so.
  absl::Time deadline = absl::InfiniteFuture();
  // After all others: writing down, reclaim, scrubbing.
  bool is_background = false;

  uint64_t bytes() const { return parts[0].size() + parts[1].size(); }
};

// Names a transfer to Cancel(); 0: none.
using IoId = uint64_t;

// OK                  all bytes are moved
// DataLoss            the device says that it cannot, or a read met the end of the file
// DeadlineExceeded    not begun by the deadline
// Cancelled           Cancel() came before the last piece was begun
// ResourceExhausted   too many transfers wait; not begun
// Unavailable         the engine stops; the last piece was not begun
// Internal            any other error of the kernel; the message names it
// After an error the bytes of a read, and those in the file after a write, are any.
using IoDone = absl::AnyInvocable<void(absl::Status status) &&>;

class IoEngine {
 public:
  // Stops, and waits for what the kernel has.
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "uring", "threads"
  // REQUIRES: pages throughout, and at least one.
  virtual IoId Submit(const IoTransfer& transfer, IoDone done) = 0;
  // What is not begun ends at once; of a transfer that has begun no further piece is begun. Nothing
  // if it is over.
  virtual void Cancel(IoId id) = 0;
  // No piece is begun any more. Returns once all completions have run, or false at `deadline` (a
  // point of MonotonicNow()) when the kernel still has some. Idempotent.
  virtual bool Stop(absl::Time deadline) = 0;
  // That are not over.
  virtual size_t transfer_count() const = 0;
  // `labels` come before those of the engine.
  virtual void Report(MetricSink& sink, MetricLabels labels) const = 0;
};

struct IoLimits {
  uint64_t piece_bytes = limits::kIoPieceBytes;  // the most that the kernel is asked for at once
  uint64_t read_inflight_bytes = limits::kIoReadInflightBytes;
  uint64_t write_inflight_bytes = limits::kIoWriteInflightBytes;
  // Of writes and background reads together, while foreground reads are there or just were.
  uint64_t inflight_beside_reads_bytes = limits::kIoInflightBesideReadsBytes;
  size_t queue_max = limits::kIoQueueMax;  // transfers that are not over
  // Of the engine with threads.
  int read_threads = limits::kIoReadThreads;
  int write_threads = limits::kIoWriteThreads;
};

enum class IoChoice { kAuto, kUring, kThreads };

// kAuto is io_uring where the system lets us have it, else threads, and a line in the log says
// why. kUring: FailedPrecondition with the reason where it is refused.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(IoChoice choice, const IoLimits& limits);

}  // namespace cairn
