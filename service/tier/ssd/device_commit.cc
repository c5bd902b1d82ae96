// SPDX-License-Identifier: Apache-2.0
// The commit thread: records of what was written and freed, all that have come since the last round
// in one batch.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "service/tier/ssd/await_done.h"
#include "service/tier/ssd/device.h"

namespace cairn {

void SsdDevice::RunCommits() {
  pthread_setname_np(pthread_self(), "ssd-commit");
  for (;;) {
    std::vector<Written> written;
    std::vector<ExtentPlace> freed;
    std::vector<Deletion> deleted;
    uint64_t round = 0;
    {
      const MutexLock lock(mutex_);
      while (is_mending_ ||
             (written_.empty() && freed_.empty() && deleted_.empty() && !is_landed_)) {
        commit_due_.WaitUntil(mutex_, absl::InfiniteFuture());
      }
      if (written_.empty() && freed_.empty() && deleted_.empty()) {
        return;
      }
      written.swap(written_);
      freed.swap(freed_);
      deleted.swap(deleted_);
      is_committing_ = true;
      round = next_round_++;
    }
    Commit(std::move(written), freed, deleted);
    const MutexLock lock(mutex_);
    is_committing_ = false;
    rounds_over_ = round;
    committed_.NotifyAll();
  }
}

void SsdDevice::Commit(std::vector<Written> written, const std::vector<ExtentPlace>& freed,
                       const std::vector<Deletion>& deleted) {
  Ledger::Batch batch;
  std::vector<absl::Status> results(written.size());
  absl::flat_hash_set<uint32_t> to_sync;
  for (size_t i = 0; i < written.size(); ++i) {
    Written& write = written[i];
    results[i] = Name(write, batch);
    if (!results[i].ok()) {
      continue;
    }
    const MutexLock lock(mutex_);
    const uint32_t slot = segments_->SlotOf(write.offset);
    batch.PutExtent(segments_->at(slot).seq, segments_->PageOf(write.offset), write.record);
    if (write.is_durable) {
      to_sync.insert(slot);
    }
  }
  for (const ExtentPlace& place : freed) {
    batch.DeleteExtent(place.seq, place.page);
  }
  absl::Status status = Record(deleted, batch);
  for (const uint32_t slot : to_sync) {
    if (::fdatasync(files_[slot].get()) != 0) {
      status = absl::ErrnoToStatus(errno, "fdatasync of a segment");
    }
  }
  if (status.ok()) {
    status = ledger_->Write(batch, /*is_synced=*/!to_sync.empty());
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

absl::Status SsdDevice::Name(Written& written, Ledger::Batch& batch) {
  if (written.space == nullptr) {
    return absl::OkStatus();
  }
  for (const NamedSideObject& object : written.side_objects) {
    CAIRN_RETURN_IF_ERROR(side_files_->Write(object.id, object.bytes));
  }
  if (written.record.side_object != codecs::Digest{} &&
      !side_files_->Has(written.record.side_object)) {
    return absl::InternalError("a side object was not handed over");
  }
  const MutexLock lock(mutex_);
  const auto [found, is_new] = spaces_.try_emplace(written.space->fingerprint);
  SpaceNumber& space = found->second;
  if (is_new) {
    space.number = ++last_space_;
  }
  if (is_new || space.version != written.space->version) {
    batch.PutSpace(space.number, *written.space);
    space.version = written.space->version;
  }
  space_ids_[space.number] = written.space_id;
  written.record.space = space.number;
  return absl::OkStatus();
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

absl::Status SsdDevice::CommitNow(Written written) {
  // The commit thread outlives those that wait for it.
  return AwaitDone([&](TierDone done) {
    written.done = std::move(done);
    Landed(std::move(written), absl::OkStatus());
  });
}

}  // namespace cairn
