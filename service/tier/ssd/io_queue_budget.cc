// SPDX-License-Identifier: Apache-2.0
// Of IoQueue: which piece is next, what is in flight, and what is reported of it.
#include <algorithm>
#include <iterator>
#include <string>

#include "base/check.h"
#include "service/limits.h"
#include "service/tier/ssd/io_queue.h"

namespace cairn {

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
  // One piece may always be in flight, however small the budget.
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
  // Others of the list come before its next piece.
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
