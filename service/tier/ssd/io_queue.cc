// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <string>

#include "base/check.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {
namespace {

bool IsPaged(uint64_t value) { return value % kPageBytes == 0; }

bool IsPaged(const IoTransfer& transfer) {
  const auto is_paged = [](std::span<std::byte> part) {
    return IsPaged(reinterpret_cast<uintptr_t>(part.data())) && IsPaged(part.size());
  };
  return IsPaged(transfer.offset) && is_paged(transfer.parts[0]) && is_paged(transfer.parts[1]);
}

// Returns true if the block layer or the file system reports this error for a bad medium.
bool IsMediumError(int error) {
  switch (error) {
    case EIO:
    case ENODATA:    // a sector that cannot be read
    case EILSEQ:     // protection information does not match
    case EBADMSG:    // a checksum of the file system does not match
    case EUCLEAN:    // likewise
    case EREMOTEIO:  // the target failed
      return true;
    default:
      return false;
  }
}

absl::Status StatusOf(const IoPiece& piece, int64_t result) {
  if (result == static_cast<int64_t>(piece.bytes)) {
    return absl::OkStatus();
  }
  const bool is_read = piece.kind == IoKind::kRead;
  const std::string what =
      absl::StrCat(is_read ? "read of " : "write of ", piece.bytes, " bytes at ", piece.offset);
  if (result < 0) {
    const absl::Status named = absl::ErrnoToStatus(static_cast<int>(-result), what);
    return IsMediumError(static_cast<int>(-result)) ? absl::DataLossError(named.message())
                                                    : absl::InternalError(named.message());
  }
  const std::string message = absl::StrCat(what, ": moved ", result);
  return is_read ? absl::DataLossError(message) : absl::InternalError(message);
}

}  // namespace

void IoPiece::SetParts(const std::array<iovec, 2>& whole, uint64_t skip, uint64_t count) {
  bytes = count;
  parts = {};
  parts_count = 0;
  for (const iovec& part : whole) {
    const uint64_t skipped = std::min<uint64_t>(skip, part.iov_len);
    const uint64_t kept = std::min<uint64_t>(count, part.iov_len - skipped);
    skip -= skipped;
    count -= kept;
    if (kept > 0) {
      parts[static_cast<size_t>(parts_count++)] = {static_cast<char*>(part.iov_base) + skipped,
                                                   kept};
    }
  }
}

IoQueue::IoQueue(const IoLimits& limits, const Clock& clock) : limits_(limits), clock_(clock) {
  for (const uint64_t bytes : {limits.piece_bytes, limits.read_inflight_bytes,
                               limits.write_inflight_bytes, limits.inflight_beside_reads_bytes}) {
    CAIRN_CHECK(bytes > 0 && IsPaged(bytes));
  }
}

IoQueue::~IoQueue() {
  const MutexLock lock(mutex_);
  CAIRN_CHECK(transfers_.empty());
}

void IoQueue::Complete(Ended ended) {
  for (auto& [done, status] : ended) {
    std::move(done)(std::move(status));
  }
}

IoId IoQueue::Submit(const IoTransfer& transfer, IoDone done) {
  CAIRN_CHECK(IsPaged(transfer) && transfer.bytes() > 0);
  absl::Status refusal;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_) {
      refusal = absl::UnavailableError("transfers are being stopped");
    } else if (transfers_.size() >= limits_.queue_max) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat(limits_.queue_max, " transfers wait for the drive"));
      refused_[Index(transfer.kind)].Add();
    } else {
      const IoId id = ++last_id_;
      Transfers& list = (transfer.is_background ? background_ : foreground_)[Index(transfer.kind)];
      list.push_back({.id = id, .io = transfer, .done = std::move(done), .status = {}});
      transfers_.emplace(id, std::prev(list.end()));
      waiting_[Index(transfer.kind)].Add(1);
      if (transfer.deadline != absl::InfiniteFuture()) {
        deadlines_.emplace(transfer.deadline, id);
        if (transfer.deadline < deadlines_sleep_until_) {
          deadline_is_nearer_.NotifyOne();
        }
      }
      WakeLocked();
      return id;
    }
  }
  std::move(done)(std::move(refusal));
  return 0;
}

void IoQueue::Cancel(IoId id) {
  Ended ended;
  {
    const MutexLock lock(mutex_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || &ListOf(*found->second) == &dispatched_) {
      return;
    }
    FailLocked(found->second, absl::CancelledError("the transfer was cancelled"), ended);
    WakeLocked();  // those behind the cancelled one
  }
  Complete(std::move(ended));
}

std::optional<IoPiece> IoQueue::Take() {
  Ended ended;
  std::optional<IoPiece> piece;
  {
    const MutexLock lock(mutex_);
    EndLateLocked(ended);
    piece = TakeRestLocked(IoKind::kRead);
    if (!piece.has_value()) {
      piece = TakeRestLocked(IoKind::kWrite);
    }
    if (!piece.has_value()) {
      Transfers* const read = NextLocked(IoKind::kRead);
      Transfers* const write = NextLocked(IoKind::kWrite);
      if (read != nullptr && write != nullptr) {
        // If both are background transfers, the older one is first.
        const bool is_write_first =
            read->front().io.is_background &&
            (!write->front().io.is_background || write->front().id < read->front().id);
        piece = CutLocked(is_write_first ? *write : *read);
      } else if (read != nullptr || write != nullptr) {
        piece = CutLocked(read != nullptr ? *read : *write);
      }
    }
  }
  Complete(std::move(ended));
  return piece;
}

std::optional<IoPiece> IoQueue::AwaitPiece(IoKind kind) {
  while (true) {  // until there is a piece, or the queue stops
    Ended ended;
    {
      const MutexLock lock(mutex_);
      EndLateLocked(ended);
      std::optional<IoPiece> piece;
      if (ended.empty()) {
        piece = TakeRestLocked(kind);
        Transfers* const next = piece.has_value() ? nullptr : NextLocked(kind);
        if (next != nullptr) {
          piece = CutLocked(*next);
        }
        if (piece.has_value() || is_stopping_) {
          WakeLocked();  // other threads may find more pieces
          return piece;
        }
        ++sleeping_[Index(kind)];
        ready_[Index(kind)].WaitUntil(mutex_, absl::InfiniteFuture());
        --sleeping_[Index(kind)];
      }
    }
    Complete(std::move(ended));
  }
}

void IoQueue::End(const IoPiece& piece, int64_t result) {
  Ended ended;
  {
    const MutexLock lock(mutex_);
    const Transfers::iterator transfer = transfers_.at(piece.id);
    const size_t kind = Index(piece.kind);
    bytes_[kind].Add(result > 0 ? static_cast<uint64_t>(result) : 0);
    if (!transfer->status.ok() || !ResumeLocked(piece, result)) {
      const absl::Time now = clock_.Now();
      seconds_[kind].Observe(now - piece.begun);
      AddInflightLocked(piece, -static_cast<int64_t>(piece.bytes));
      if (piece.kind == IoKind::kRead && !piece.is_background) {
        last_read_ = now;
      }
      --pieces_;
      --transfer->pieces;
      absl::Status status = StatusOf(piece, result);
      if (!status.ok()) {
        errors_[kind].Add();
        FailLocked(transfer, std::move(status), ended);
      } else if (transfer->pieces == 0 && &ListOf(*transfer) == &dispatched_) {
        EndLocked(transfer, std::move(transfer->status), ended);
      }
      if (pieces_ == 0) {
        idle_.NotifyAll();
      }
    }
    WakeLocked();
  }
  Complete(std::move(ended));
}

bool IoQueue::ResumeLocked(const IoPiece& piece, int64_t result) {
  const bool is_interrupted = result == -EINTR || result == -EAGAIN;
  // If the kernel stopped inside a page, that page is moved again.
  const uint64_t moved = result > 0 ? static_cast<uint64_t>(result) / kPageBytes * kPageBytes : 0;
  if (is_interrupted ? piece.interruptions == limits::kIoInterruptionsMax
                     : moved == 0 || moved >= piece.bytes) {
    return false;
  }
  IoPiece rest = piece;
  rest.interruptions += is_interrupted ? 1 : 0;
  rest.offset += moved;
  rest.SetParts(piece.parts, moved, piece.bytes - moved);
  AddInflightLocked(piece, -static_cast<int64_t>(moved));
  short_pieces_[Index(piece.kind)].push_back(rest);
  return true;
}

absl::Time IoQueue::EndLate() {
  Ended ended;
  absl::Time next = absl::InfiniteFuture();
  {
    const MutexLock lock(mutex_);
    EndLateLocked(ended);
    if (!deadlines_.empty()) {
      next = deadlines_.begin()->first;
    }
  }
  Complete(std::move(ended));
  return next;
}

void IoQueue::KeepDeadlines() {
  while (true) {  // until the queue stops
    Ended ended;
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) {
        return;
      }
      EndLateLocked(ended);
      if (ended.empty()) {
        deadlines_sleep_until_ =
            deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
        deadline_is_nearer_.WaitUntil(mutex_, deadlines_sleep_until_);
        deadlines_sleep_until_ = absl::InfinitePast();
      }
    }
    Complete(std::move(ended));
  }
}

void IoQueue::Stop() {
  Ended ended;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    for (auto* lists : {&foreground_, &background_}) {
      for (Transfers& list : *lists) {
        while (!list.empty()) {
          FailLocked(list.begin(), absl::UnavailableError("transfers are being stopped"), ended);
        }
      }
    }
    for (CondVar& ready : ready_) {
      ready.NotifyAll();
    }
    deadline_is_nearer_.NotifyAll();
  }
  Complete(std::move(ended));
}

bool IoQueue::is_stopping() const {
  const MutexLock lock(mutex_);
  return is_stopping_;
}

bool IoQueue::AwaitIdle(absl::Time deadline) {
  const MutexLock lock(mutex_);
  while (pieces_ > 0) {
    if (!idle_.WaitUntil(mutex_, deadline) && pieces_ > 0) {
      return false;
    }
  }
  return true;
}

// --- Budgets -------------------------------------------------------------------------------------
// The choice of the next piece, and the bytes in flight.

IoQueue::Transfers& IoQueue::ListOf(const Transfer& transfer) {
  if (!transfer.status.ok() || transfer.dispatched_bytes == transfer.io.bytes()) {
    return dispatched_;
  }
  return (transfer.io.is_background ? background_ : foreground_)[Index(transfer.io.kind)];
}

void IoQueue::EndLateLocked(Ended& ended) {
  if (deadlines_.empty()) {
    return;
  }
  const absl::Time now = clock_.Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Transfers::iterator transfer = transfers_.at(deadlines_.begin()->second);
    late_[Index(transfer->io.kind)].Add();
    FailLocked(transfer, absl::DeadlineExceededError("the drive was busy until the deadline"),
               ended);
  }
}

void IoQueue::EndLocked(Transfers::iterator transfer, absl::Status status, Ended& ended) {
  ended.emplace_back(std::move(transfer->done), std::move(status));
  transfers_.erase(transfer->id);
  dispatched_.erase(transfer);
}

void IoQueue::FailLocked(Transfers::iterator transfer, absl::Status status, Ended& ended) {
  if (transfer->status.ok()) {
    if (transfer->dispatched_bytes == 0) {
      LeaveWaitingLocked(*transfer);
    }
    dispatched_.splice(dispatched_.end(), ListOf(*transfer), transfer);
    transfer->status = std::move(status);
  }
  if (transfer->pieces == 0) {
    EndLocked(transfer, std::move(transfer->status), ended);
  }
}

void IoQueue::LeaveWaitingLocked(const Transfer& transfer) {
  waiting_[Index(transfer.io.kind)].Add(-1);
  deadlines_.erase({transfer.io.deadline, transfer.id});
}

bool IoQueue::HasReadsLocked() {
  return !foreground_[Index(IoKind::kRead)].empty() || foreground_read_bytes_ > 0 ||
         clock_.Now() - last_read_ < absl::Milliseconds(limits::kIoReadsLingerMs);
}

uint64_t IoQueue::PieceBytesLocked(const Transfer& transfer) {
  const uint64_t left = transfer.io.bytes() - transfer.dispatched_bytes;
  const bool is_foreground_read = transfer.io.kind == IoKind::kRead && !transfer.io.is_background;
  if (!is_foreground_read && HasReadsLocked()) {
    return std::min({left, limits_.piece_bytes, limits_.inflight_beside_reads_bytes});
  }
  return std::min(left, limits_.piece_bytes);
}

bool IoQueue::HasRoomLocked(const Transfer& transfer) {
  const bool is_read = transfer.io.kind == IoKind::kRead;
  const uint64_t bytes = PieceBytesLocked(transfer);
  // At least one piece may be in flight, even with a small budget.
  if (is_read && !transfer.io.is_background) {
    return foreground_read_bytes_ == 0 ||
           foreground_read_bytes_ + bytes <= limits_.read_inflight_bytes;
  }
  const uint64_t room = HasReadsLocked() ? limits_.inflight_beside_reads_bytes
                        : is_read        ? limits_.read_inflight_bytes
                                         : limits_.write_inflight_bytes;
  return other_bytes_ == 0 || other_bytes_ + bytes <= room;
}

IoQueue::Transfers* IoQueue::NextLocked(IoKind kind) {
  Transfers& foreground = foreground_[Index(kind)];
  if (!foreground.empty()) {
    return HasRoomLocked(foreground.front()) ? &foreground : nullptr;
  }
  Transfers& background = background_[Index(kind)];
  const bool gives_way = !foreground_[Index(IoKind::kWrite)].empty();  // they share a budget
  return !background.empty() && !gives_way && HasRoomLocked(background.front()) ? &background
                                                                                : nullptr;
}

std::optional<IoPiece> IoQueue::TakeRestLocked(IoKind kind) {
  std::vector<IoPiece>& rests = short_pieces_[Index(kind)];
  if (rests.empty()) {
    return std::nullopt;
  }
  const IoPiece rest = rests.back();
  rests.pop_back();
  return rest;
}

IoPiece IoQueue::CutLocked(Transfers& from) {
  Transfer& transfer = from.front();
  const uint64_t bytes = PieceBytesLocked(transfer);
  if (transfer.dispatched_bytes == 0) {
    LeaveWaitingLocked(transfer);
  }
  const auto as_iovec = [](std::span<std::byte> part) { return iovec{part.data(), part.size()}; };
  IoPiece piece = {.id = transfer.id,
                   .kind = transfer.io.kind,
                   .is_background = transfer.io.is_background,
                   .fd = transfer.io.fd,
                   .offset = transfer.io.offset + transfer.dispatched_bytes,
                   .begun = clock_.Now()};
  piece.SetParts({as_iovec(transfer.io.parts[0]), as_iovec(transfer.io.parts[1])},
                 transfer.dispatched_bytes, bytes);
  transfer.dispatched_bytes += bytes;
  ++transfer.pieces;
  ++pieces_;
  AddInflightLocked(piece, static_cast<int64_t>(bytes));
  // Other transfers of the list come before the next piece of this one.
  Transfers& to = ListOf(transfer);
  to.splice(to.end(), from, from.begin());
  return piece;
}

void IoQueue::AddInflightLocked(const IoPiece& piece, int64_t bytes) {
  const bool is_foreground_read = piece.kind == IoKind::kRead && !piece.is_background;
  (is_foreground_read ? foreground_read_bytes_ : other_bytes_) += static_cast<uint64_t>(bytes);
  inflight_bytes_[Index(piece.kind)].Add(bytes);
}

void IoQueue::WakeLocked() {
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    if (sleeping_[Index(kind)] > 0 &&
        (!short_pieces_[Index(kind)].empty() || NextLocked(kind) != nullptr)) {
      ready_[Index(kind)].NotifyOne();
    }
  }
}

void IoQueue::Report(MetricSink& sink, MetricLabels labels, std::string_view engine) const {
  std::vector<MetricLabel> all(labels.begin(), labels.end());
  all.push_back({"engine", engine});
  sink.AddGauge("cairn_ssd_engine_info", "The engine that moves bytes; always 1.", all, 1);
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    const size_t i = Index(kind);
    all.back() = {"op", kind == IoKind::kRead ? "read" : "write"};
    sink.AddCounter("cairn_ssd_io_bytes_total", "Bytes that the drive has moved.", all,
                    bytes_[i].Value());
    sink.AddHistogram("cairn_ssd_io_seconds",
                      "Time of a transfer, or of a piece of a large one, in the kernel.", all,
                      seconds_[i].Snapshot());
    sink.AddCounter("cairn_ssd_io_errors_total", "Pieces of transfers that failed.", all,
                    errors_[i].Value());
    sink.AddCounter("cairn_ssd_io_late_total", "Transfers that had not begun by their deadline.",
                    all, late_[i].Value());
    sink.AddCounter("cairn_ssd_io_refused_total", "Transfers refused because too many waited.", all,
                    refused_[i].Value());
    sink.AddGauge("cairn_ssd_io_inflight_bytes", "Bytes of transfers in the kernel.", all,
                  static_cast<double>(inflight_bytes_[i].Value()));
    sink.AddGauge("cairn_ssd_io_waiting", "Transfers that have not begun.", all,
                  static_cast<double>(waiting_[i].Value()));
  }
}

}  // namespace cairn
