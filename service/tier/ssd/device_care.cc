// SPDX-License-Identifier: Apache-2.0
// The care thread: a segment that is full is sealed, the next one is made ready, the oldest is
// reclaimed.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "service/tier/ssd/device.h"

namespace cairn {
namespace {

using SegmentState = SegmentMap::State;

// Ready ones, so that writes do not wait for a header.
constexpr size_t kReadyMin = 2;
constexpr absl::Duration kRest = absl::Seconds(1);
constexpr absl::Duration kGrowAgain = absl::Seconds(30);
// Of the ledger's budget.
constexpr uint64_t kCompactPercent = 70;

}  // namespace

bool SsdDevice::IsCareDue() const {
  return segments_->count(SegmentState::kFull) > 0 ||
         segments_->count(SegmentState::kReclaiming) > 0 ||
         segments_->count(SegmentState::kReady) < kReadyMin || IsReclaimDue();
}

void SsdDevice::RunCare() {
  pthread_setname_np(pthread_self(), "ssd-care");
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) {
        return;
      }
    }
    if (SealOne() || PrepareOne() || ReclaimOne() || Probe()) {
      continue;
    }
    const absl::Time now = MonotonicNow();
    const MutexLock lock(mutex_);
    if (!is_stopping_) {
      absl::Time until = now + kRest;
      for (const absl::Time due : {reclaim_again_, probe_again_}) {
        until = due > now ? std::min(until, due) : until;
      }
      care_due_.WaitUntil(mutex_, until);
    }
  }
}

// --- Sealing -------------------------------------------------------------------------------------

bool SsdDevice::SealOne() {
  std::optional<uint32_t> slot;
  SegmentRecord record = {.seq = 0, .state = SegmentRecord::State::kSealed};
  {
    const MutexLock lock(mutex_);
    if (state_ >= State::kReadOnly) {
      return false;
    }
    for (uint32_t i = 0; i < segments_->slot_count() && !slot.has_value(); ++i) {
      if (segments_->at(i).state == SegmentState::kFull && segments_->at(i).writes == 0) {
        slot = i;
      }
    }
    if (!slot.has_value()) {
      return false;
    }
    record.seq = segments_->at(*slot).seq;
  }
  if (!SyncNow()) {
    return true;  // it may be lost, or the device is only read
  }
  Ledger::Batch batch;
  batch.PutSegment(*slot, record);
  if (const absl::Status status = ledger_->Write(batch, /*is_synced=*/true); !status.ok()) {
    LedgerFailed("a segment cannot be sealed", status);
    return false;
  }
  {
    const MutexLock lock(mutex_);
    segments_->SetState(*slot, SegmentState::kSealed);
  }
  CheckLedgerSize();
  return true;
}

void SsdDevice::CheckLedgerSize() {
  if (ledger_->disk_bytes() > budget_.ledger_bytes_max / 100 * kCompactPercent) {
    if (const absl::Status status = ledger_->Compact(); !status.ok()) {
      LedgerFailed("the ledger cannot be compacted", status);
    }
  }
}

// --- Making ready --------------------------------------------------------------------------------

bool SsdDevice::PrepareOne() {
  std::optional<uint32_t> slot;
  bool is_absent = false, is_retry = false;
  {
    const MutexLock lock(mutex_);
    const bool may_grow = MonotonicNow() >= grow_again_;
    // A device that found no room looks for it again, also where reclaim makes enough.
    is_retry = state_ == State::kCapped && may_grow && segments_->count(SegmentState::kAbsent) > 0;
    if (!TakesImages() || (segments_->count(SegmentState::kReady) >= kReadyMin && !is_retry)) {
      return false;
    }
    if (!is_retry) {
      slot = segments_->Any(SegmentState::kClean);
    }
    is_absent = !slot.has_value();
    if (is_absent && may_grow) {
      slot = segments_->Any(SegmentState::kAbsent);
    }
    if (!slot.has_value()) {
      return false;
    }
  }
  if (is_absent) {
    if (const absl::Status status = Grow(*slot); !status.ok()) {
      const MutexLock lock(mutex_);
      grow_again_ = MonotonicNow() + kGrowAgain;
      if (state_ == State::kOk) {
        state_ = State::kCapped;
        segments_->SetCanGrow(false);
        why_ = ToStd(status.message());
        LogWarn("ssd", "no room for all segments: continues with fewer",
                {{"path", options_.path}, {"error", status}});
      }
      return is_retry;  // a clean one may be made ready
    }
    const MutexLock lock(mutex_);
    segments_->SetState(*slot, SegmentState::kClean);
    segments_->SetCanGrow(true);
    state_ = state_ == State::kCapped ? State::kOk : state_;
  }
  if (const absl::Status status = Prepare(*slot); absl::IsUnavailable(status)) {
    return false;  // stopping
  } else if (!status.ok()) {
    {
      const MutexLock lock(mutex_);
      segments_->SetState(*slot, SegmentState::kSetAside);
    }
    CountError(*slot, IoKind::kWrite, absl::DataLossError(status.message()));
  }
  return true;
}

absl::Status SsdDevice::Grow(uint32_t slot) {
  struct statvfs space = {};
  if (::statvfs(options_.path.c_str(), &space) != 0) {
    return absl::ErrnoToStatus(errno, "statvfs");
  }
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes < options_.keep_free_bytes + budget_.segment_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the file system has ", free_bytes,
                                                     " bytes left, of which ",
                                                     options_.keep_free_bytes, " are reserved"));
  }
  const std::string path = SegmentPath(slot);
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, path);
  }
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(budget_.segment_bytes));
      error != 0) {
    ::unlink(path.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("fallocate of ", path));
  }
  if (::fsync(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("fsync of ", path));
  }
  files_[slot] = std::move(file);
  return absl::OkStatus();
}

absl::Status SsdDevice::Prepare(uint32_t slot) {
  SegmentHeader header = {
      .tier_id = tier_id_, .slot = slot, .segment_bytes = budget_.segment_bytes};
  {
    const MutexLock lock(mutex_);
    header.seq = next_seq_++;
  }
  PageMemory page(kSegmentHeaderBytes);
  EncodeSegmentHeader(header, page.bytes().first<kSegmentHeaderBytes>());
  CAIRN_RETURN_IF_ERROR(Transfer(IoKind::kWrite, files_[slot].get(), 0, page.bytes()));
  if (::fdatasync(files_[slot].get()) != 0) {
    return absl::ErrnoToStatus(errno, "fdatasync of a header");
  }
  const MutexLock lock(mutex_);
  segments_->Empty(slot);
  segments_->at(slot).seq = header.seq;
  segments_->SetState(slot, SegmentState::kReady);
  return absl::OkStatus();
}

}  // namespace cairn
