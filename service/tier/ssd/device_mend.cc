// SPDX-License-Identifier: Apache-2.0
// What a device does about its faults: it is read meanwhile, and tried again, less and less often.
// After failed writes of segments one that takes a header makes it whole. After a failure of the
// ledger that is opened anew, and compared with what the device knows.
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/log.h"
#include "base/status.h"
#include "service/tier/ssd/device.h"

namespace cairn {
namespace {

using SegmentState = SegmentMap::State;

// Of the longest time between two tries: the first comes so soon.
constexpr int kFirstTryShare = 32;
// For calls of the ledger that hang in the disk.
constexpr absl::Duration kLedgerWait = absl::Seconds(1);

}  // namespace

void SsdDevice::TurnReadOnly(std::string_view why, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    if (state_ >= State::kReadOnly) {
      return;
    }
    state_ = State::kReadOnly;
    why_ = absl::StrCat(ToAbsl(why), ": ", status.message());
    probe_rest_ = options_.probe_after / kFirstTryShare;
    probe_again_ = MonotonicNow() + probe_rest_;
    care_due_.NotifyOne();
  }
  LogError("ssd", "device takes no more writes; reads continue",
           {{"path", options_.path}, {"what", why}, {"error", status}});
}

void SsdDevice::LedgerFailed(std::string_view why, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    is_ledger_failed_ = true;
  }
  TurnReadOnly(why, status);
}

void SsdDevice::GoOut(std::string_view why, const absl::Status& status) {
  {
    const MutexLock lock(mutex_);
    state_ = State::kOut;
    why_ = absl::StrCat(ToAbsl(why), ": ", status.message());
  }
  LogError("ssd", "device is out: opening it again",
           {{"path", options_.path}, {"what", why}, {"error", status}});
}

bool SsdDevice::Probe() {
  bool is_ledger_failed = false;
  {
    const MutexLock lock(mutex_);
    is_ledger_failed = is_ledger_failed_;
    if (state_ != State::kReadOnly || (is_retired_ && !is_ledger_failed) ||
        MonotonicNow() < probe_again_) {
      return false;
    }
    probe_rest_ = std::min(2 * probe_rest_, options_.probe_after);
    probe_again_ = MonotonicNow() + probe_rest_;
    is_trying_ = true;
  }
  bool is_mended = false;
  if (IsFolderGone()) {
    GoOut("the folder is gone, or another one", absl::NotFoundError(options_.path));
  } else {
    is_mended = is_ledger_failed ? MendLedger() : TryOne();
  }
  const MutexLock lock(mutex_);
  is_trying_ = false;
  return is_mended;
}

bool SsdDevice::IsFolderGone() const {
  struct stat held = {}, named = {};
  return ::fstat(lock_file_.get(), &held) != 0 ||
         ::stat(absl::StrCat(options_.path, "/LOCK").c_str(), &named) != 0 ||
         held.st_dev != named.st_dev || held.st_ino != named.st_ino;
}

// --- Segments ------------------------------------------------------------------------------------

bool SsdDevice::TryOne() {
  std::optional<uint32_t> slot;
  uint64_t seq = 0;
  {
    const MutexLock lock(mutex_);
    for (uint32_t i = 0; i < segments_->slot_count() && !slot.has_value(); ++i) {
      const SegmentMap::Segment& segment = segments_->at(i);
      if (segment.state == SegmentState::kSetAside && segment.live_pages == 0 &&
          segment.writes == 0 && files_[i].is_valid()) {
        slot = i;
        seq = segment.seq;
      }
    }
  }
  // Records that it may still have are of images that are gone.
  Ledger::Batch batch;
  if (seq != 0) {
    batch.DeleteExtentsOf(seq);
  }
  if (!slot.has_value()) {
    return false;
  }
  if (const absl::Status status = ledger_->Write(batch, /*is_synced=*/true); !status.ok()) {
    LedgerFailed("the ledger failed a write", status);  // it takes none before it is opened anew
    return false;
  }
  if (!Prepare(*slot).ok()) {
    return false;
  }
  {
    const MutexLock lock(mutex_);
    state_ = State::kOk;
    probe_again_ = absl::InfiniteFuture();
    // What the others hold is sealed, or lost where that fails. Those that are lost are emptied.
    for (uint32_t i = 0; i < segments_->slot_count(); ++i) {
      const SegmentMap::Segment& segment = segments_->at(i);
      if (segment.state == SegmentState::kSetAside && files_[i].is_valid()) {
        segments_->SetState(i, segment.is_lost         ? SegmentState::kReclaiming
                               : segment.next_page > 1 ? SegmentState::kFull
                                                       : SegmentState::kClean);
      }
    }
  }
  LogInfo("ssd", "device takes writes again", {{"path", options_.path}});
  return true;
}

// --- The ledger ----------------------------------------------------------------------------------

bool SsdDevice::MendLedger() {
  {
    const MutexLock lock(mutex_);
    is_mending_ = true;  // no round begins
  }
  const absl::Status status = ReopenLedger();
  bool is_mended = false;
  {
    const MutexLock lock(mutex_);
    is_mending_ = false;
    commit_due_.NotifyOne();
    if (status.ok()) {
      is_ledger_failed_ = false;
      // What failed besides is tried now.
      is_mended = segments_->count(SegmentState::kSetAside) < kSetAsideMax;
      state_ = is_mended ? State::kOk : state_;
      probe_again_ = is_mended ? absl::InfiniteFuture() : MonotonicNow();
    } else {
      why_ = absl::StrCat("the ledger cannot be opened anew: ", status.message());
    }
    committed_.NotifyAll();
  }
  if (absl::IsDataLoss(status)) {
    GoOut("the ledger is damaged", status);
  } else if (is_mended) {
    LogInfo("ssd", "device takes writes again: its ledger was reopened", {{"path", options_.path}});
  }
  return status.ok();
}

absl::Status SsdDevice::ReopenLedger() {
  const absl::Time deadline = MonotonicNow() + kLedgerWait;
  {
    const MutexLock lock(mutex_);
    while (is_committing_) {
      if (!committed_.WaitUntil(mutex_, deadline)) {
        return absl::UnavailableError("a write to it does not complete");
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(ledger_->Reopen(deadline));
  CAIRN_RETURN_IF_ERROR(CheckOwner());
  Ledger::Batch batch;
  if (const absl::Status recorded = RecordAllDeletions(batch); !recorded.ok()) {
    return absl::UnavailableError(recorded.message());  // the ledger may be whole
  }
  CAIRN_RETURN_IF_ERROR(CompareLedger(batch));
  SyncUnsealed();  // records of places that reclaim has moved from go, and no round is under way
  return ledger_->Write(batch, /*is_synced=*/true);
}

absl::Status SsdDevice::CompareLedger(Ledger::Batch& batch) {
  struct Segment {
    uint32_t slot = 0;
    uint32_t recorded = 0;  // extents of it that are to be in the ledger
  };
  absl::flat_hash_map<uint64_t, Segment> by_seq;
  {
    const MutexLock lock(mutex_);
    for (uint32_t slot = 0; slot < segments_->slot_count(); ++slot) {
      const SegmentMap::Segment& segment = segments_->at(slot);
      Segment& known = by_seq[segment.seq];
      known.slot = slot;
      for (const SegmentMap::Extent& extent : segment.extents) {
        known.recorded += extent.is_live && extent.is_recorded ? 1 : 0;
      }
    }
    for (auto& [fingerprint, space] : spaces_) {
      space.version = 0;  // it is written again with its next image
    }
  }
  CAIRN_RETURN_IF_ERROR(
      ledger_->ScanExtents(0, UINT64_MAX, [&](uint64_t seq, uint32_t page, const ExtentRecord&) {
        const auto found = by_seq.find(seq);
        const MutexLock lock(mutex_);
        if (unread_.contains({.seq = seq, .page = page})) {
          return true;
        }
        const SegmentMap::Extent* extent =
            found == by_seq.end() ? nullptr
                                  : segments_->Look(segments_->OffsetOf(found->second.slot, page));
        if (extent == nullptr || !extent->is_recorded) {
          batch.DeleteExtent(seq, page);  // freed since, or its write failed
        } else if (found->second.recorded > 0) {
          --found->second.recorded;
        }
        return true;
      }));
  for (const auto& [seq, segment] : by_seq) {
    if (segment.recorded > 0) {  // the next process would not find them
      const uint64_t begin = segment.slot * budget_.segment_bytes;
      evictor_->LoseCopies(TierId::kSsd, TierOffset(begin),
                           TierOffset(begin + budget_.segment_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn
