// SPDX-License-Identifier: Apache-2.0
#include "kernels/encode_plan.h"

#include <cstring>

#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/image.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/stages/select/token_plan.h"
#include "codecs/stages/stages.h"
#include "codecs/types/bytes.h"
#include "kernels/encode_jobs.h"
#include "kernels/plan_planes.h"
#include "kernels/plan_side.h"

namespace cairn::kernels {
namespace {

using codecs::Error;

static_assert(kHeaderBytesOfImage == codecs::kHeaderBytes);
static_assert(kEntryBytesOfImage == codecs::kDirectoryEntryBytes);
static_assert(sizeof(TileResult) == codecs::kDirectoryEntryBytes);
static_assert(sizeof(EncodeHeader) % 16 == 0 && sizeof(EncodeImage) % 8 == 0);
static_assert(kStripsOfTileMax * codecs::kStripTokens == codecs::kTokensPerBlockMax);
static_assert(kPoolNorms == codecs::kChainRows && kPoolDisplacedMax == codecs::kDisplacedMax);
static_assert(kPoolBytes == codecs::kChainBytes && kTracedTokens == codecs::kKiviKGroupTokens);
static_assert(kStateEvicted == static_cast<uint32_t>(codecs::TokenState::kEvicted) &&
              kStateLow == static_cast<uint32_t>(codecs::TokenState::kLow));
static_assert(sizeof(EncodeTask) % 8 == 0);
static_assert(static_cast<uint32_t>(Fault::kNotDemotable) ==
              static_cast<uint32_t>(Error::kNotDemotable));

// One kernel may leave a tile to another, so a tile can have two items.
constexpr uint32_t kPlanItemsMax = 2 * kPlanTasksMax;

// Returns the tokens that logquant keeps because of their age, in their stored order. The device
// finds the rows that stay.
codecs::LogRows AgeingRows(const EncodeJob& job) {
  codecs::LogRows rows;
  const codecs::ImageSpec& spec = *job.spec;
  if (!spec.recipe.Traits().has_ageing_rows) return rows;
  const bool is_bare = job.stored != nullptr && job.stored->prefix->spec().recipe.IsLossless();
  codecs::SelectLogRows(spec.recipe, codecs::TileRows(spec.tile.kind, spec.tokens),
                        spec.first_position, is_bare ? 0 : job.chain_tokens, {}, &rows);
  uint32_t count = 0;
  for (uint32_t i = 0; i < rows.count; ++i) {
    if ((rows.positions[i] & codecs::kRowStays) == 0) rows.positions[count++] = rows.positions[i];
  }
  rows.count = count;
  return rows;
}

class EncodePlanMaker {
 public:
  EncodePlanMaker(std::span<const EncodeJob> jobs, std::byte* buffer)
      : jobs_(jobs), buffer_(buffer) {}

  // REQUIRES: the buffer has EncodePlanBytesMax() bytes, or `room` is its size.
  Error Make(uint64_t room, EncodePlan* plan) {
    uint64_t tiles = 0;
    uint64_t items = 0;
    for (uint32_t i = 0; i < jobs_.size(); ++i) {
      const EncodeJob& job = jobs_[i];
      planes_[i] = PlanesOf(job, i);
      if (HasSteps(job.spec->recipe)) profiles_.Add(*job.side.profile, &planes_[i]);
      narrows_steps_ |= NarrowsSteps(job);
      tiles += TileCount(*job.spec);
      if (tiles > kPlanTasksMax) return Error::kTooLarge;
      for (uint32_t tile = 0; tile < TileCount(*job.spec); ++tile) {
        const TileWork work = WorkOf(job, planes_[i], i, tile, 0);
        if (work.items == 0) continue;
        counts_[static_cast<uint32_t>(work.list)] += work.items;
        counts_[static_cast<uint32_t>(kAffineAny)] += work.may_be_left ? 1 : 0;
        items += work.items + (work.may_be_left ? 1 : 0);
      }
      if (items > kPlanItemsMax) return Error::kTooLarge;
    }
    if (profiles_.AreTooMany()) return Error::kTooLarge;
    const auto image_count = static_cast<uint32_t>(jobs_.size());
    header_.image_count = image_count;
    header_.tile_count = static_cast<uint32_t>(tiles);
    header_.planes_at = sizeof(EncodeHeader);
    header_.tables_at = header_.planes_at + image_count * sizeof(PlaneRecords);
    header_.old_tables_at = header_.tables_at + profiles_.TableCount() * sizeof(EncodeStepTables);
    header_.images_at = header_.old_tables_at;
    if (narrows_steps_) header_.images_at += profiles_.TableCount() * sizeof(StepTables);
    header_.tasks_at = header_.images_at + image_count * sizeof(EncodeImage);
    header_.items_at = header_.tasks_at + header_.tile_count * sizeof(EncodeTask);
    ageing_at_ = header_.items_at + static_cast<uint32_t>(items) * sizeof(uint32_t);
    if (ageing_at_ > room) return Error::kTargetTooSmall;
    uint32_t first = 0;
    for (uint32_t list = 0; list < kEncodeItemLists; ++list) {
      header_.lists[list] = {first, counts_[list]};
      next_item_[list] = first;
      first += counts_[list];
    }
    for (uint32_t i = 0; i < image_count; ++i) {
      if (!Write(i, room)) return Error::kTargetTooSmall;
    }
    std::memcpy(buffer_, &header_, sizeof(header_));
    profiles_.Write<EncodeStepTables>(buffer_ + header_.tables_at);
    if (narrows_steps_) profiles_.Write<StepTables>(buffer_ + header_.old_tables_at);
    counts_[static_cast<uint32_t>(EncodeList::kPlace)] = image_count;
    counts_[static_cast<uint32_t>(EncodeList::kStore)] = header_.tile_count;
    counts_[static_cast<uint32_t>(EncodeList::kSum)] = header_.tile_count;
    *plan = {ageing_at_, image_count, header_.tile_count, counts_};
    return Error::kOk;
  }

 private:
  // Returns false if the image's rows by age do not fit.
  bool Write(uint32_t index, uint64_t room) {
    const EncodeJob& job = jobs_[index];
    const codecs::ImageSpec& spec = *job.spec;
    const PlaneRecords& planes = planes_[index];
    std::memcpy(buffer_ + header_.planes_at + index * sizeof(planes), planes.data(),
                sizeof(planes));
    const codecs::LogRows ageing = AgeingRows(job);
    const auto ageing_bytes = static_cast<uint32_t>(ageing.count * sizeof(uint16_t));
    if (ageing_bytes > room - ageing_at_) return false;
    std::memcpy(buffer_ + ageing_at_, ageing.positions.data(), ageing_bytes);
    const EncodeImage image{codecs::U8(job.image), next_tile_,      TileCount(spec), ageing_at_,
                            ageing.count,          job.chain_tokens};
    ageing_at_ += ageing_bytes;
    std::memcpy(buffer_ + header_.images_at + index * sizeof(image), &image, sizeof(image));
    uint64_t slot = 0;
    for (uint32_t tile = 0; tile < image.tile_count; ++tile, ++next_tile_) {
      const TileWork work = WorkOf(job, planes, index, tile, slot);
      std::memcpy(buffer_ + header_.tasks_at + next_tile_ * sizeof(work.task), &work.task,
                  sizeof(work.task));
      slot += SlotBytesOf(spec, codecs::GeometryOf(spec, work.task.plane % kPlanesOfImage));
      AddItems(work);
    }
    return true;
  }

  void AddItems(const TileWork& work) {
    for (uint32_t strip = 0; strip < work.items; ++strip) AddItem(work.list, strip);
    if (work.may_be_left) AddItem(kAffineAny, kItemIfLeft);
  }
  void AddItem(EncodeList list, uint32_t strip) {
    const uint32_t item = next_tile_ * kStripsOfTileMax + strip;
    const uint32_t place = next_item_[static_cast<uint32_t>(list)]++;
    std::memcpy(buffer_ + header_.items_at + place * sizeof(item), &item, sizeof(item));
  }

  std::span<const EncodeJob> jobs_;
  std::byte* buffer_;
  EncodeHeader header_{};
  std::array<uint32_t, kEncodeLists> counts_{};
  std::array<uint32_t, kEncodeItemLists> next_item_{};
  std::array<PlaneRecords, kPlanImagesMax> planes_{};
  PlanProfiles profiles_;
  bool narrows_steps_ = false;
  uint32_t next_tile_ = 0;
  uint32_t ageing_at_ = 0;
};

}  // namespace

uint64_t SlotBytes(const codecs::ImageSpec& spec) {
  uint64_t of_head = 0;
  const uint32_t planes = codecs::PlaneCount(spec.tile.kind);
  for (uint32_t plane = 0; plane < planes; ++plane) {
    of_head += SlotBytesOf(spec, codecs::GeometryOf(spec, plane));
  }
  return TileCount(spec) / planes * of_head;
}

Error MakeEncodePlan(std::span<const EncodeJob> jobs, std::span<std::byte> buffer,
                     EncodePlan* plan) {
  if (jobs.size() > kPlanImagesMax) return Error::kTooLarge;
  if (reinterpret_cast<uintptr_t>(buffer.data()) % kUnitMax != 0) return Error::kInvalidShape;
  for (const EncodeJob& job : jobs) {
    if (const Error error = CheckJob(job); error != Error::kOk) return error;
  }
  return EncodePlanMaker(jobs, buffer.data()).Make(buffer.size(), plan);
}

uint64_t EncodePlanBytesMax() {
  return sizeof(EncodeHeader) + kPlanImagesMax * (sizeof(PlaneRecords) + sizeof(EncodeImage)) +
         kPlanesOfImage * kPlanProfilesMax * (sizeof(EncodeStepTables) + sizeof(StepTables)) +
         uint64_t{kPlanTasksMax} * sizeof(EncodeTask) + uint64_t{kPlanItemsMax} * sizeof(uint32_t) +
         uint64_t{kPlanImagesMax} * codecs::kTokensPerBlockMax * sizeof(uint16_t);
}

Error WritePrefix(const codecs::ImageSpec& spec, std::span<const TileResult> results,
                  std::span<std::byte> prefix, uint64_t* image_bytes) {
  if (const Error error = codecs::Validate(spec); error != Error::kOk) return error;
  if (results.size() != TileCount(spec)) return Error::kBadDirectory;
  const uint64_t bytes = codecs::PrefixBytes(results.size());
  if (prefix.size() < bytes) return Error::kTargetTooSmall;
  codecs::ImageWriter writer(spec, prefix.first(bytes));
  uint64_t offset = bytes;
  for (const TileResult& result : results) {
    if (result.offset * uint64_t{codecs::kSectionAlignment} != offset) return Error::kBadDirectory;
    writer.Commit(result.bytes, result.crc, result.rows, result.form);
    offset += result.bytes;
  }
  const uint64_t written = writer.Finish();
  codecs::ImagePrefix parsed;
  if (codecs::ParseImagePrefix(prefix, &parsed) != Error::kOk) return Error::kBadDirectory;
  *image_bytes = written;
  return Error::kOk;
}

}  // namespace cairn::kernels
