// SPDX-License-Identifier: Apache-2.0
// The commit thread: records of what was written and freed, all that have come since the last round
// in one batch.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "service/tier/ssd/await_done.h"
#include "service/tier/ssd/device.h"

namespace cairn {
namespace {

// One makes durable what so many ask for, or what is asked for in so long.
constexpr size_t kSyncsMax = 16;
constexpr absl::Duration kSyncWait = absl::Milliseconds(2);

}  // namespace

void SsdDevice::RunCommits() {
  pthread_setname_np(pthread_self(), "ssd-commit");
  for (;;) {
    Round round;
    std::vector<TierDone> syncs;
    uint64_t number = 0;
    {
      const MutexLock lock(mutex_);
      while (is_mending_ ||
             (queued_.is_empty() && !IsSyncDue() && !AreRecordsDue() && !is_landed_)) {
        commit_due_.WaitUntil(mutex_,
                              is_mending_ || syncs_.empty() ? absl::InfiniteFuture() : sync_at_);
      }
      if (queued_.is_empty() && !IsSyncDue() && !AreRecordsDue()) {
        return;
      }
      round = std::exchange(queued_, {});
      if (IsSyncDue()) {
        syncs.swap(syncs_);
      }
      is_committing_ = true;
      number = next_round_++;
      const bool is_recording =
          !round.written.empty() || !round.freed.empty() || !round.changed.empty();
      recorded_round_ = is_recording ? number : recorded_round_;
    }
    Commit(std::move(round));
    RunSyncs(std::move(syncs), number);
    SyncRecords(number);
    const MutexLock lock(mutex_);
    is_committing_ = false;
    rounds_over_ = number;
    committed_.NotifyAll();
  }
}

void SsdDevice::Commit(Round round) {
  std::vector<Written>& written = round.written;
  Ledger::Batch batch;
  std::vector<absl::Status> results(written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    Written& write = written[i];
    const uint32_t slot = write.offset / budget_.segment_bytes;
    results[i] = IsLost(slot) ? absl::DataLossError("its segment was lost")
                              : AddSpaceAndSideObjects(write, batch);
    if (!results[i].ok()) {
      continue;
    }
    const MutexLock lock(mutex_);
    batch.PutExtent(segments_->at(slot).seq, segments_->PageOf(write.offset), write.record);
  }
  for (const ExtentPlace& place : round.freed) {
    batch.DeleteExtent(place.seq, place.page);
  }
  for (const SpaceRecord& space : round.changed) {
    const MutexLock lock(mutex_);
    // A space that the ledger does not know has nothing on the device.
    if (const auto found = spaces_.find(space.fingerprint); found != spaces_.end()) {
      PutSpace(found->second, space, batch);
    }
  }
  absl::Status status = Record(round.deleted, batch);
  if (status.ok()) {
    status = ledger_->Write(batch, /*is_synced=*/false);
  }
  {
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < written.size(); ++i) {
      results[i].Update(status);
      segments_->Find(written[i].offset).is_recorded = results[i].ok();
      --segments_->at(segments_->SlotOf(written[i].offset)).writes;
    }
    if (IsCareDue()) {
      care_due_.NotifyOne();
    }
  }
  if (!status.ok()) {
    LedgerFailed("records cannot be written", status);
  }
  for (size_t i = 0; i < written.size(); ++i) {
    End(written[i], results[i].ok() || absl::IsResourceExhausted(results[i])
                        ? results[i]
                        : absl::UnavailableError(results[i].message()));
  }
}

absl::Status SsdDevice::AddSpaceAndSideObjects(Written& written, Ledger::Batch& batch) {
  if (written.space == nullptr) {
    return absl::OkStatus();
  }
  for (const NamedSideObject& object : written.side_objects) {
    CAIRN_RETURN_IF_ERROR(side_files_->Write(object.id, object.bytes));
  }
  if (written.record.side_object != codecs::Digest{} &&
      !side_files_->Has(written.record.side_object)) {
    return absl::InternalError("a side object is missing");
  }
  const MutexLock lock(mutex_);
  const auto [found, is_new] = spaces_.try_emplace(written.space->fingerprint);
  SpaceNumber& space = found->second;
  if (is_new) {
    space.number = ++last_space_;
  }
  PutSpace(space, *written.space, batch);
  space_ids_[space.number] = written.space_id;
  written.record.space = space.number;
  return absl::OkStatus();
}

void SsdDevice::PutSpace(SpaceNumber& space, const SpaceRecord& record, Ledger::Batch& batch) {
  // A write that began before a change may end after it.
  if (space.version == 0 || space.version < record.version) {
    batch.PutSpace(space.number, record);
    space.version = record.version;
  }
}

absl::Status SsdDevice::Record(const std::vector<Deletion>& deleted, Ledger::Batch& batch) {
  if (deleted.empty()) {
    return absl::OkStatus();
  }
  if (deletion_file_.count() + deleted.size() > 2 * options_.deletions->count_max()) {
    return RecordAllDeletions(batch);
  }
  CAIRN_RETURN_IF_ERROR(deletion_file_.Append(deleted));
  PutEpoch(deleted.back().epoch, batch);
  return absl::OkStatus();
}

absl::Status SsdDevice::RecordAllDeletions(Ledger::Batch& batch) {
  const DeletionHistory all = options_.deletions->All();
  CAIRN_RETURN_IF_ERROR(deletion_file_.Write(all));
  PutEpoch(all.epoch, batch);
  return absl::OkStatus();
}

// --- What is to outlive a loss of power ----------------------------------------------------------

void SsdDevice::Sync(TierDone done) {
  absl::Status status;
  {
    const MutexLock lock(mutex_);
    if (is_stopping_ || is_ledger_failed_ || state_ == State::kOut) {
      status = absl::UnavailableError(is_stopping_ ? "the tier is stopping" : why_);
    } else if (recorded_round_ > synced_round_ || !syncs_.empty()) {
      return QueueSync(std::move(done));
    }
  }
  std::move(done)(std::move(status));
}

void SsdDevice::QueueSync(TierDone done) {
  sync_at_ = syncs_.empty() ? MonotonicNow() + kSyncWait : sync_at_;
  syncs_.push_back(std::move(done));
  commit_due_.NotifyOne();
}

bool SsdDevice::IsSyncDue() const {
  return !syncs_.empty() &&
         (syncs_.size() >= kSyncsMax || is_landed_ || MonotonicNow() >= sync_at_);
}

void SsdDevice::RunSyncs(std::vector<TierDone> syncs, uint64_t round) {
  if (syncs.empty()) {
    return;
  }
  const absl::Status status =
      SyncUnsealed() ? ledger_->SyncWal() : absl::UnavailableError("a segment was lost");
  if (status.ok()) {
    const MutexLock lock(mutex_);
    synced_round_ = records_synced_round_ = round;
  } else if (!ledger_->health().ok()) {
    LedgerFailed("records cannot be written", status);
  }
  for (TierDone& done : syncs) {
    std::move(done)(status.ok() ? status : absl::UnavailableError(status.message()));
  }
}

bool SsdDevice::AreRecordsDue() const { return records_wanted_round_ > records_synced_round_; }

void SsdDevice::SyncRecords(uint64_t round) {
  {
    const MutexLock lock(mutex_);
    if (!AreRecordsDue()) {
      return;
    }
  }
  const absl::Status status = ledger_->SyncWal();
  if (!status.ok() && !ledger_->health().ok()) {
    LedgerFailed("records cannot be written", status);
  }
  const MutexLock lock(mutex_);
  if (status.ok()) {
    records_synced_round_ = round;
  } else {
    records_wanted_round_ = records_synced_round_;  // AwaitFreed() retries
  }
}

bool SsdDevice::SyncUnsealed() {
  std::vector<uint32_t> slots;
  {
    const MutexLock lock(mutex_);
    for (uint32_t i = 0; i < segments_->slot_count(); ++i) {
      const SegmentMap::State state = segments_->at(i).state;
      if (state == SegmentMap::State::kOpen || state == SegmentMap::State::kFull ||
          (state == SegmentMap::State::kSetAside && segments_->at(i).live_pages > 0 &&
           !segments_->at(i).is_lost)) {
        slots.push_back(i);
      }
    }
  }
  bool are_kept = true;
  for (const uint32_t slot : slots) {
    if (::fdatasync(files_[slot].get()) != 0) {
      CountError(slot, IoKind::kWrite,
                 absl::DataLossError(absl::ErrnoToStatus(errno, "fdatasync").message()));
      LoseSegment(slot);
      are_kept = false;
    }
  }
  return are_kept;
}

bool SsdDevice::SyncNow() {
  return AwaitDone([this](TierDone done) { Sync(std::move(done)); }).ok();
}

void SsdDevice::LoseSegment(uint32_t slot) {
  {
    const MutexLock lock(mutex_);
    segments_->at(slot).is_lost = true;
  }
  const uint64_t begin = slot * budget_.segment_bytes;
  evictor_->LoseCopies(TierId::kSsd, TierOffset(begin), TierOffset(begin + budget_.segment_bytes));
}

bool SsdDevice::IsLost(uint32_t slot) const {
  const MutexLock lock(mutex_);
  return segments_->at(slot).is_lost;
}

absl::Status SsdDevice::CommitNow(Written written) {
  // The commit thread outlives the threads that wait for it.
  return AwaitDone([&](TierDone done) {
    written.done = std::move(done);
    Landed(std::move(written), absl::OkStatus());
  });
}

}  // namespace cairn
