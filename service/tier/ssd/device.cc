// SPDX-License-Identifier: Apache-2.0
// Places, and what the device says of itself.
#include "service/tier/ssd/device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr std::string_view kSegmentStates[SegmentMap::kStateCount] = {
    "absent", "clean", "ready", "open", "full", "sealed", "reclaiming", "set aside"};

}  // namespace

absl::StatusOr<SsdBudget> ShareOut(uint64_t budget_bytes, uint64_t segment_bytes,
                                   uint64_t extents_max) {
  if (segment_bytes == 0 && budget_bytes < limits::kSsdBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat("a budget of ", FormatBytes(budget_bytes),
                                                   ": at least ",
                                                   FormatBytes(limits::kSsdBytesMin)));
  }
  SsdBudget budget;
  budget.segment_bytes = segment_bytes > 0
                             ? segment_bytes
                             : std::clamp(budget_bytes / limits::kSsdSegmentsMin / kMiB * kMiB,
                                          limits::kSsdSegmentBytesMin, limits::kSsdSegmentBytesMax);
  budget.extents_max = extents_max > 0 ? extents_max : limits::SsdImagesAuto(budget_bytes);
  budget.write_buffer_bytes = limits::SsdWriteBufferBytes(budget_bytes);
  // Of ssd tables, logs and what compaction holds twice: measured over 10 M records.
  budget.ledger_bytes_max = 2 * budget.write_buffer_bytes + 256 * budget.extents_max;
  budget.side_bytes_max = std::min<uint64_t>(budget_bytes / 16, 1_GiB);
  const uint64_t others = budget.ledger_bytes_max + budget.side_bytes_max + kMiB;
  budget.slot_count =
      static_cast<uint32_t>((budget_bytes - std::min(others, budget_bytes)) / budget.segment_bytes);
  if (budget.slot_count < SegmentMap::kSlotsMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a budget of ", FormatBytes(budget_bytes), " is ", budget.slot_count, " segments of ",
        FormatBytes(budget.segment_bytes), ": at least ", SegmentMap::kSlotsMin));
  }
  return budget;
}

SsdDevice::SsdDevice(Options options, std::unique_ptr<IoEngine> engine, const SsdBudget& budget,
                     CopyTier& tier)
    : options_(std::move(options)),
      budget_(budget),
      tier_(tier),
      engine_(std::move(engine)),
      deletion_file_(absl::StrCat(options_.path, "/deletions")) {}

std::string SsdDevice::SegmentPath(uint32_t slot) const {
  return absl::StrCat(options_.path, "/segments/", absl::StrFormat("%06u", slot));
}

// --- Places --------------------------------------------------------------------------------------

absl::StatusOr<TierExtent> SsdDevice::Reserve(uint64_t bytes) {
  if (bytes > image_bytes_max()) {
    too_large_.Add();
    return absl::ResourceExhaustedError(absl::StrCat("ssd: an image of ", bytes,
                                                     " bytes: at most a quarter of a segment of ",
                                                     budget_.segment_bytes));
  }
  const MutexLock lock(mutex_);
  if (is_stopping_ || !TakesImages()) {
    return absl::UnavailableError(
        absl::StrCat("ssd: ", is_stopping_ ? "stopping" : ToAbsl(cairn::Name(ShownState()))));
  }
  const std::optional<uint64_t> offset = segments_->Allocate(bytes, /*is_carried=*/false);
  if (IsCareDue()) {
    care_due_.NotifyOne();
  }
  if (!offset.has_value()) {
    no_segment_.Add();
    return absl::ResourceExhaustedError("ssd: no segment is ready");
  }
  reserved_[*offset] = BeginWrite();
  return TierExtent(tier_, TierOffset(*offset), bytes, SegmentMap::RoundedBytes(bytes));
}

void SsdDevice::Free(uint64_t tier_offset) {
  const uint64_t offset = DeviceOffset(tier_offset);
  const MutexLock lock(mutex_);
  if (const auto reserved = reserved_.find(offset); reserved != reserved_.end()) {
    EndWrite(reserved->second);  // it was never written
    reserved_.erase(reserved);
  }
  // A copy that is moved keeps its old record until the new place is durable.
  if (moving_from_ != offset) {
    UnlistLocked(offset);
  }
  if (segments_->Free(offset)) {
    care_due_.NotifyOne();
  }
}

void SsdDevice::Unlist(uint64_t tier_offset) {
  const MutexLock lock(mutex_);
  UnlistLocked(DeviceOffset(tier_offset));
}

void SsdDevice::UnlistLocked(uint64_t offset) {
  SegmentMap::Extent& extent = segments_->Find(offset);
  if (!extent.is_recorded || is_stopping_) {
    return;
  }
  extent.is_recorded = false;
  QueueFreed(offset);
  if (const auto moved = moved_from_.find(offset); moved != moved_from_.end()) {
    queued_.freed.push_back(moved->second);
    moved_from_.erase(moved);
  }
}

void SsdDevice::QueueFreed(uint64_t offset) {
  queued_.freed.push_back(
      {segments_->at(segments_->SlotOf(offset)).seq, segments_->PageOf(offset)});
  commit_due_.NotifyOne();
}

uint64_t SsdDevice::BeginWrite() {
  writes_.insert(next_write_);
  return next_write_++;
}

void SsdDevice::EndWrite(uint64_t id) {
  writes_.erase(id);
  committed_.NotifyAll();
}

void SsdDevice::QueueDeletions(const std::vector<Deletion>& deletions) {
  const MutexLock lock(mutex_);
  queued_.deleted.insert(queued_.deleted.end(), deletions.begin(), deletions.end());
  FreeUnread(deletions);
  commit_due_.NotifyOne();
}

void SsdDevice::PolicyChanged(const SpaceRecord& space) {
  const MutexLock lock(mutex_);
  queued_.changed.push_back(space);
  commit_due_.NotifyOne();
}

bool SsdDevice::RecordsDeletions() const {
  const MutexLock lock(mutex_);
  return state_ != State::kOut && !is_ledger_failed_;
}

bool SsdDevice::AwaitFreed(absl::Time deadline) {
  const MutexLock lock(mutex_);
  const auto await = [&](auto is_over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!is_over() && !is_stopping_ && committed_.WaitUntil(mutex_, deadline)) {
    }
    return is_over();
  };
  // What recovery finds is held against the deletions known when it began, and these are recorded.
  if (!await([&] { return state_ != State::kRecovering; }) || state_ == State::kOut ||
      is_stopping_) {  // what is freed once it is stopping stays in the ledger
    return false;
  }
  // A write under way may be of an image that is deleted already: it is recorded, and then freed.
  const uint64_t next_write = next_write_;
  if (!await([&] { return writes_.empty() || *writes_.begin() >= next_write; })) {
    return false;
  }
  // What is being recorded now may hold some, what is queued the rest.
  const uint64_t last_round = queued_.is_empty() ? next_round_ - 1 : next_round_;
  // A ledger that failed is opened anew, and what was freed meanwhile is taken out of it then.
  if (!await([&] { return rounds_over_ >= last_round && !is_ledger_failed_; })) {
    return false;
  }
  records_wanted_round_ = std::max(records_wanted_round_, last_round);
  commit_due_.NotifyOne();
  return await([&] { return records_synced_round_ >= last_round && !is_ledger_failed_; });
}

// --- Ends ----------------------------------------------------------------------------------------

void SsdDevice::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  care_due_.NotifyAll();
  committed_.NotifyAll();
  engine_->Stop(absl::InfiniteFuture());
  if (care_thread_.joinable()) {
    care_thread_.join();
  }
  {
    const MutexLock lock(mutex_);
    is_landed_ = true;
  }
  commit_due_.NotifyAll();
  if (commit_thread_.joinable()) {
    commit_thread_.join();
    if (const absl::Status status = ledger_->SyncWal(); !status.ok()) {
      LogWarn("ssd", "the last records may not be durable",
              {{"path", options_.path}, {"error", status}});
    }
  }
}

// --- By request ----------------------------------------------------------------------------------

absl::Status SsdDevice::SetRetired(bool is_retired) {
  const MutexLock lock(mutex_);
  is_retired_ = is_retired;
  if (!is_retired) {
    grow_again_ = absl::InfinitePast();
    probe_again_ = state_ == State::kReadOnly ? absl::InfinitePast() : probe_again_;
    care_due_.NotifyOne();
  }
  return absl::OkStatus();
}

// --- Figures -------------------------------------------------------------------------------------

uint64_t SsdDevice::used_bytes() const {
  const MutexLock lock(mutex_);
  return segments_ == nullptr ? 0 : segments_->live_bytes();
}

bool SsdDevice::is_out() const {
  const MutexLock lock(mutex_);
  return state_ == State::kOut;
}

bool SsdDevice::is_idle() const {
  const MutexLock lock(mutex_);
  return segments_->live_count() == 0 && writes_.empty() && queued_.written.empty() &&
         !is_committing_ && engine_->transfer_count() == 0;
}

SsdDevice::State SsdDevice::ShownState() const {
  return is_retired_ ? std::max(state_, State::kReadOnly) : state_;
}

DeviceReport SsdDevice::Describe() const {
  DeviceReport report;
  report.path = options_.path;
  report.capacity_bytes = capacity_bytes();
  report.written_bytes = written_bytes_.Value();
  report.carried_bytes = carried_bytes_.Value();
  report.read_bytes = read_bytes_.Value();
  report.fault_count = faults_.Value();
  report.transfer_count = engine_->transfer_count();
  report.engine = engine_->name();
  const MutexLock lock(mutex_);
  report.state = ShownState();
  report.reason = state_ == State::kOk ? "" : why_;
  if (is_retired_) {
    absl::StrAppend(&report.reason, report.reason.empty() ? "" : "; ", "retired");
  }
  report.is_retired = is_retired_;
  report.is_trying =
      state_ == State::kReadOnly && !is_retired_ && (is_trying_ || MonotonicNow() >= probe_again_);
  report.used_bytes = segments_->live_bytes();
  report.image_count = segments_->live_count();
  for (size_t state = 0; state < SegmentMap::kStateCount; ++state) {
    report.segments.emplace_back(kSegmentStates[state],
                                 segments_->count(static_cast<SegmentMap::State>(state)));
  }
  return report;
}

void SsdDevice::ReportState(MetricSink& sink, uint64_t number, State shown) {
  const std::string name = absl::StrCat(number);
  for (const State state : {State::kOk, State::kCapped, State::kReadOnly, State::kOut}) {
    const MetricLabel labels[] = {{"device", name}, {"state", cairn::Name(state)}};
    sink.AddGauge("cairn_ssd_state", "1 for the state of a device.", labels,
                  shown == state ? 1 : 0);
  }
}

void SsdDevice::Report(MetricSink& sink) const {
  const std::string number = absl::StrCat(options_.number);
  const MetricLabel device{"device", number};
  const auto gauge = [&](std::string_view name, std::string_view help, uint64_t value) {
    sink.AddGauge(name, help, {&device, 1}, static_cast<double>(value));
  };
  const auto counter = [&](std::string_view name, std::string_view help, const Counter& value) {
    sink.AddCounter(name, help, {&device, 1}, value.Value());
  };
  {
    const MutexLock lock(mutex_);
    for (size_t state = 0; state < SegmentMap::kStateCount; ++state) {
      const MetricLabel labels[] = {device, {"state", kSegmentStates[state]}};
      sink.AddGauge("cairn_ssd_segments", "Segments of a device, by state.", labels,
                    static_cast<double>(segments_->count(static_cast<SegmentMap::State>(state))));
    }
    ReportState(sink, options_.number, ShownState());
    gauge("cairn_ssd_extents", "Images on a device.", segments_->live_count());
  }
  gauge("cairn_ssd_ledger_bytes", "Bytes of files of a device's ledger.", ledger_->disk_bytes());
  gauge("cairn_ssd_side_object_bytes", "Bytes of side objects on a device.", side_files_->bytes());
  counter("cairn_ssd_written_bytes_total",
          "Bytes of images written to a device for the first time.", written_bytes_);
  counter("cairn_ssd_carried_bytes_total",
          "Bytes of images that reclaim rewrote because they were in use.", carried_bytes_);
  counter("cairn_ssd_read_bytes_total", "Bytes of images read from a device for gets.",
          read_bytes_);
  counter("cairn_ssd_reclaimed_segments_total", "Segments emptied for reuse.", reclaims_);
  counter("cairn_ssd_resets_total", "Times that a device started empty because it was unreadable.",
          resets_);
  counter("cairn_ssd_dropped_at_open_total", "Records at start that named no complete image.",
          dropped_at_open_);
  counter("cairn_ssd_corrupt_total", "Images that reclaim found damaged.", corrupt_);
  const auto by = [&](std::string_view name, std::string_view help, std::string_view label,
                      std::string_view value, const Counter& count) {
    const MetricLabel labels[] = {device, {label, value}};
    sink.AddCounter(name, help, labels, count.Value());
  };
  by("cairn_ssd_refused_total", "Writes that a device had no room for.", "reason", "size",
     too_large_);
  by("cairn_ssd_refused_total", "Writes that a device had no room for.", "reason", "segment",
     no_segment_);
  engine_->Report(sink, {&device, 1});
}

}  // namespace cairn
