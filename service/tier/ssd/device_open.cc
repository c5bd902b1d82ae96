// SPDX-License-Identifier: Apache-2.0
// Taking a folder: lock, format, ledger. What is damaged makes the tier start empty; what cannot be
// read now changes nothing.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/direct_io.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "service/tier/ssd/device.h"
#include "service/tier/ssd/mounts.h"

namespace cairn {
namespace {

constexpr absl::Duration kLockStep = absl::Milliseconds(100);
// What the ledger calls the id of the tier whose it is.
constexpr char kOwner[] = "tier";
// And the epoch up to which deletions are done in it.
constexpr char kDeletions[] = "deletions";

std::string_view BytesOf(const SsdTierId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? absl::ErrnoToStatus(error.value(), path) : absl::OkStatus();
}

absl::StatusOr<Fd> TakeLock(const std::string& folder, absl::Duration wait,
                            absl::FunctionRef<void(std::string_view what)> on_step) {
  const std::string path = absl::StrCat(folder, "/LOCK");
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, path);
  }
  const absl::Time deadline = MonotonicNow() + wait;
  for (bool is_first = true; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; is_first = false) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::ErrnoToStatus(errno, path);
    }
    if (MonotonicNow() >= deadline) {
      return absl::FailedPreconditionError(
          absl::StrCat("another process still uses it after ", absl::FormatDuration(wait)));
    }
    if (is_first) {
      LogInfo("ssd", "another process uses the folder: waiting for it to end",
              {{"path", folder}, {"seconds", absl::ToInt64Seconds(wait)}});
      on_step(absl::StrCat("waiting for another process to leave ", folder));
    }
    absl::SleepFor(kLockStep);
  }
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SsdDevice>> SsdDevice::Open(Options options,
                                                           std::unique_ptr<IoEngine> engine,
                                                           CopyTier& tier) {
  CAIRN_ASSIGN_OR_RETURN(
      const SsdBudget budget,
      ShareOut(options.budget_bytes, options.segment_bytes, options.extents_max));
  std::unique_ptr<SsdDevice> device(
      new SsdDevice(std::move(options), std::move(engine), budget, tier));
  CAIRN_RETURN_IF_ERROR(device->OpenFolder());
  CAIRN_RETURN_IF_ERROR(device->OpenLedger());
  CAIRN_RETURN_IF_ERROR(device->ReadDeletions());
  const MutexLock lock(device->mutex_);
  device->segments_ = std::make_unique<SegmentMap>(
      device->budget_.slot_count, device->budget_.segment_bytes, device->budget_.extents_max);
  device->files_.resize(device->budget_.slot_count);
  return device;
}

absl::Status SsdDevice::OpenFolder() {
  CAIRN_RETURN_IF_ERROR(CheckMounted(options_.path, options_.fstab));
  struct stat there = {};
  if (::stat(options_.path.c_str(), &there) == 0 && !S_ISDIR(there.st_mode)) {
    return absl::InvalidArgumentError("it is not a folder");
  }
  CAIRN_RETURN_IF_ERROR(MakeFolders(absl::StrCat(options_.path, "/segments")));
  CAIRN_RETURN_IF_ERROR(CheckDirectIo(options_.path));
  CAIRN_ASSIGN_OR_RETURN(lock_file_, TakeLock(options_.path, options_.lock_wait, options_.on_step));
  options_.on_step(absl::StrCat("opening ", options_.path));
  side_files_ =
      std::make_unique<SideFiles>(absl::StrCat(options_.path, "/objects"), budget_.side_bytes_max);
  return side_files_->Open();
}

absl::Status SsdDevice::OpenLedger() {
  const absl::StatusOr<TierMeta> meta = ReadTierMeta(options_.path);
  if (absl::IsNotFound(meta.status())) {
    return StartEmpty("");
  }
  if (absl::IsDataLoss(meta.status())) {
    return StartEmpty(ToStd(meta.status().message()));
  }
  if (absl::IsUnimplemented(meta.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.path, ": a newer version wrote it; name another folder, or remove it"));
  }
  CAIRN_RETURN_IF_ERROR(meta.status());
  tier_id_ = meta->tier_id;
  if (meta->segment_bytes != budget_.segment_bytes) {
    // Another budget than before: segments keep their size.
    const absl::StatusOr<SsdBudget> shared =
        ShareOut(options_.budget_bytes, meta->segment_bytes, options_.extents_max);
    if (!shared.ok()) {
      return StartEmpty(ToStd(shared.status().message()));
    }
    budget_ = *shared;
  }
  absl::StatusOr<std::unique_ptr<Ledger>> ledger =
      Ledger::Open({.path = absl::StrCat(options_.path, "/index"),
                    .write_buffer_bytes = budget_.write_buffer_bytes});
  if (absl::IsDataLoss(ledger.status())) {
    return StartEmpty(ToStd(ledger.status().message()));
  }
  CAIRN_RETURN_IF_ERROR(ledger.status());
  ledger_ = *std::move(ledger);
  const absl::Status owner = CheckOwner();
  return absl::IsDataLoss(owner) ? StartEmpty(ToStd(owner.message())) : owner;
}

absl::Status SsdDevice::CheckOwner() const {
  const absl::StatusOr<std::string> owner = ledger_->GetMeta(kOwner);
  if (absl::IsNotFound(owner.status()) || absl::IsDataLoss(owner.status()) ||
      (owner.ok() && *owner != BytesOf(tier_id_))) {
    return absl::DataLossError("the ledger is not this tier's");
  }
  return owner.status();
}

// --- Deletions -----------------------------------------------------------------------------------

void SsdDevice::PutEpoch(uint64_t epoch, Ledger::Batch& batch) {
  batch.PutMeta(kDeletions, {reinterpret_cast<const char*>(&epoch), sizeof(epoch)});
}

absl::Status SsdDevice::ReadDeletions() {
  absl::StatusOr<DeletionHistory> history = deletion_file_.Read();
  if (history.ok()) {
    history_ = *std::move(history);
  } else if (!absl::IsNotFound(history.status()) && !absl::IsDataLoss(history.status())) {
    return history.status();
  }
  const absl::StatusOr<std::string> epoch = ledger_->GetMeta(kDeletions);
  if (absl::IsNotFound(epoch.status()) || absl::IsDataLoss(epoch.status()) ||
      (epoch.ok() && epoch->size() != sizeof(uint64_t))) {
    return absl::OkStatus();  // it is new, and holds nothing that could be deleted
  }
  CAIRN_RETURN_IF_ERROR(epoch.status());
  uint64_t done = 0;
  std::memcpy(&done, epoch->data(), sizeof(done));
  done_epoch_ = done;
  if (!history_.has_value() || history_->epoch < done) {
    // The file has lost its end, or all: it says nothing of what was before.
    history_.emplace();
    history_->base = history_->epoch = done;
  }
  return absl::OkStatus();
}

// --- Ledger and folder, empty --------------------------------------------------------------------

absl::Status SsdDevice::StartEmpty(std::string_view why) {
  if (!why.empty()) {
    resets_.Add();
    LogWarn("ssd", "contents of the device cannot be read: it starts empty",
            {{"path", options_.path}, {"error", why}});
  }
  CAIRN_ASSIGN_OR_RETURN(
      budget_, ShareOut(options_.budget_bytes, options_.segment_bytes, options_.extents_max));
  // Segments of the tier before do not match the new name.
  tier_id_ = RandomBytes<sizeof(SsdTierId)>();
  ledger_.reset();
  CAIRN_ASSIGN_OR_RETURN(ledger_, Ledger::Open({.path = absl::StrCat(options_.path, "/index"),
                                                .write_buffer_bytes = budget_.write_buffer_bytes,
                                                .create = true}));
  Ledger::Batch batch;
  batch.PutMeta(kOwner, BytesOf(tier_id_));
  CAIRN_RETURN_IF_ERROR(ledger_->Write(batch, /*is_synced=*/true));
  return WriteTierMeta(options_.path,
                       {.tier_id = tier_id_, .segment_bytes = budget_.segment_bytes});
}

}  // namespace cairn
