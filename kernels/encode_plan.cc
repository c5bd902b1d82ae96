// SPDX-License-Identifier: Apache-2.0
#include "kernels/encode_plan.h"

#include <cstring>

#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/image.h"
#include "codecs/image/settle.h"
#include "codecs/stages/select/log_rows.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_planes.h"
#include "kernels/plan_side.h"

namespace cairn::kernels {
namespace {

using codecs::Error;
using codecs::RecipeId;
using codecs::TileLayoutId;

static_assert(kRawTile == codecs::kRawForm && kStripsTile == codecs::kStripsForm);
static_assert(kHeaderBytesOfImage == codecs::kHeaderBytes);
static_assert(kEntryBytesOfImage == codecs::kDirectoryEntryBytes);
static_assert(sizeof(TileResult) == codecs::kDirectoryEntryBytes);
static_assert(sizeof(EncodeHeader) % 16 == 0 && sizeof(EncodeImage) % 8 == 0);
static_assert(kStripsOfTileMax * codecs::kStripTokens == codecs::kTokensPerBlockMax);
static_assert(kStepStripsTile == codecs::kStepStripsForm);
static_assert(kEncodeItemLists == 7);
static_assert(sizeof(EncodeTask) % 8 == 0);

constexpr uint32_t kNoList = kEncodeLists;

uint32_t TileCount(const codecs::ImageSpec& spec) {
  return static_cast<uint32_t>(codecs::TilingOf(spec).count());
}

bool CodesWithSide(const codecs::ImageSpec& spec) {
  return spec.recipe.NeedsSideObject() ||
         (spec.recipe.MayHaveProfile() && spec.side_object_count != 0);
}

Error Check(const EncodeJob& job) {
  const codecs::ImageSpec& spec = *job.spec;
  if (const Error error = codecs::Validate(spec); error != Error::kOk) return error;
  if (!IsEncodable(spec)) return Error::kUnknownRecipe;
  if (const Error error = codecs::CheckCodableWith(spec, job.side); error != Error::kOk) {
    return error;
  }
  if (!codecs::IsEncodableWith(spec, job.side.profile)) return Error::kNoProfile;
  if (CodesWithSide(spec) && !IsAligned(job.side_object)) return Error::kInvalidShape;
  if (!IsAligned(job.image)) return Error::kInvalidShape;
  return CheckView(spec, spec.slice, job.source, job.slots);
}

uint16_t FormOf(const codecs::ImageSpec& spec, const codecs::TileGeometry& geometry) {
  return geometry.IsCodable() ? codecs::CodedForm(geometry, spec.recipe) : codecs::kRawForm;
}

// The kernel that a tile's slot is for; kNoList where it needs none.
uint32_t ListOf(uint16_t form) {
  switch (codecs::LayoutIdOf(form)) {
    case TileLayoutId::kAffine:
      return static_cast<uint32_t>(EncodeList::kAffineAny);
    case TileLayoutId::kPatterned:
      return static_cast<uint32_t>(EncodeList::kPatternedAny);
    case TileLayoutId::kMixed:
      return static_cast<uint32_t>(EncodeList::kMixedAny);
    case TileLayoutId::kFp8:
      return static_cast<uint32_t>(EncodeList::kFp8Any);
    case TileLayoutId::kStrips:
      return static_cast<uint32_t>(EncodeList::kStripsAny);
    case TileLayoutId::kStepStrips:
      return static_cast<uint32_t>(EncodeList::kStepsAny);
    case TileLayoutId::kHot:
      return static_cast<uint32_t>(EncodeList::kHotAny);
    default:
      return kNoList;
  }
}

// Of a tile, in bytes: a multiple of 16.
uint64_t SlotBytesOf(const codecs::ImageSpec& spec, const codecs::TileGeometry& geometry) {
  const uint16_t form = FormOf(spec, geometry);
  uint64_t element = 0;  // bytes that wait of it
  if (form == codecs::kStepStripsForm) element = sizeof(int16_t);
  if (form == codecs::kHotForm && geometry.IsPerChannel()) element = sizeof(float);
  return codecs::RawLayout(geometry).bytes +
         codecs::AlignSection(uint64_t{geometry.rows} * geometry.dim * element);
}

uint16_t RulesOf(const codecs::ImageSpec& spec, const codecs::TileGeometry& geometry) {
  const codecs::Recipe& recipe = spec.recipe;
  const bool is_first = spec.first_position == 0;
  uint32_t rules = 0;
  if (recipe.is_clipped) rules |= kRuleClipped;
  if (recipe.is_nearest) rules |= kRuleNearest;
  if (recipe.id == RecipeId::kMixKvq) rules |= uint32_t{recipe.variant} << kRuleVariantShift;
  const bool keeps_first =
      recipe.is_clipped || recipe.id == RecipeId::kArkv || recipe.NeedsProfile();
  if (keeps_first && is_first) rules |= kRuleFirstIsRow;
  if (recipe.id == RecipeId::kArkv && geometry.IsPerChannel()) rules |= kRuleScores;
  if (recipe.NeedsProfile() && codecs::PlaneCount(spec.tile.kind) > 1) rules |= kRuleSmallNorms;
  if (recipe.id == RecipeId::kLogQuant) rules |= kRuleAgeing | (is_first ? kRuleFirstStays : 0);
  return static_cast<uint16_t>(rules);
}

EncodeTask TaskOf(const EncodeJob& job, uint32_t job_index, uint32_t index, uint64_t slot) {
  const codecs::ImageSpec& spec = *job.spec;
  const codecs::TileArea area = codecs::TilingOf(spec).AreaOf(index);
  const codecs::TileGeometry geometry = codecs::GeometryOf(spec, area.plane_first);
  EncodeTask task{};
  task.slot = codecs::U8(job.slots) + slot;
  task.source = BaseOf(job.source, spec.slice, area);
  task.plane = kPlanesOfImage * job_index + area.plane_first;
  if (CodesWithSide(spec)) {
    task.head = HeadNumber(job.side, {area.slice.layer_first, area.slice.head_first});
  }
  task.form = FormOf(spec, geometry);
  task.rules = RulesOf(spec, geometry);
  const uint64_t head = index / codecs::PlaneCount(spec.tile.kind);
  if (job.query_magnitudes != nullptr && task.form == codecs::kMixedForm) {
    task.scores = reinterpret_cast<const uint8_t*>(job.query_magnitudes + head * spec.tile.k_dim);
  }
  if (job.token_scores != nullptr && spec.recipe.id == RecipeId::kArkv) {
    task.scores = reinterpret_cast<const uint8_t*>(job.token_scores + head * spec.tokens);
  }
  return task;
}

// Tokens that logquant keeps by their age, in the order in which they are stored. Those that stay
// are the device's to find.
codecs::LogRows AgeingRows(const EncodeJob& job) {
  codecs::LogRows rows;
  const codecs::ImageSpec& spec = *job.spec;
  if (spec.recipe.id != RecipeId::kLogQuant) return rows;
  codecs::SelectLogRows(spec.recipe, codecs::TileRows(spec.tile.kind, spec.tokens),
                        spec.first_position, job.chain_tokens, {}, &rows);
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

  // REQUIRES: the buffer has EncodePlanBytesMax() bytes, or room is what it has.
  Error Make(uint64_t room, EncodePlan* plan) {
    uint64_t tiles = 0;
    uint64_t items = 0;
    for (uint32_t i = 0; i < jobs_.size(); ++i) {
      const codecs::ImageSpec& spec = *jobs_[i].spec;
      planes_[i] = RecordsOf(spec, spec.slice, jobs_[i].source, i);
      AddSide(spec, jobs_[i].side, jobs_[i].side_object, &planes_[i]);
      if (spec.recipe.MayHaveProfile() && CodesWithSide(spec)) {
        AddMagnitudes(*jobs_[i].side.profile, jobs_[i].side_object, &planes_[i]);
      }
      if (spec.recipe.id == RecipeId::kCairn) profiles_.Add(*jobs_[i].side.profile, &planes_[i]);
      tiles += TileCount(spec);
      Count(spec, &items);
      if (tiles > kPlanTasksMax || items > kPlanTasksMax) return Error::kTooLarge;
    }
    if (profiles_.AreTooMany()) return Error::kTooLarge;
    const auto image_count = static_cast<uint32_t>(jobs_.size());
    header_.image_count = image_count;
    header_.tile_count = static_cast<uint32_t>(tiles);
    header_.planes_at = sizeof(EncodeHeader);
    header_.tables_at = header_.planes_at + image_count * sizeof(PlaneRecords);
    header_.images_at = header_.tables_at + profiles_.TableCount() * sizeof(EncodeStepTables);
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
    counts_[static_cast<uint32_t>(EncodeList::kPlace)] = image_count;
    counts_[static_cast<uint32_t>(EncodeList::kStore)] = header_.tile_count;
    counts_[static_cast<uint32_t>(EncodeList::kSum)] = header_.tile_count;
    *plan = {ageing_at_, image_count, header_.tile_count, counts_};
    return Error::kOk;
  }

 private:
  static uint32_t ItemsOf(uint32_t list, const codecs::TileGeometry& geometry) {
    const bool is_in_strips = list == static_cast<uint32_t>(EncodeList::kStripsAny) ||
                              list == static_cast<uint32_t>(EncodeList::kStepsAny);
    return is_in_strips ? codecs::StripCount(geometry.rows) : 1;
  }

  void Count(const codecs::ImageSpec& spec, uint64_t* items) {
    const uint32_t planes = codecs::PlaneCount(spec.tile.kind);
    for (uint32_t plane = 0; plane < planes; ++plane) {
      const codecs::TileGeometry geometry = codecs::GeometryOf(spec, plane);
      const uint32_t list = ListOf(FormOf(spec, geometry));
      if (list == kNoList) continue;
      const uint32_t count = TileCount(spec) / planes * ItemsOf(list, geometry);
      counts_[list] += count;
      *items += count;
    }
  }

  // False where the image's rows by age do not fit.
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
    const EncodeImage image{codecs::U8(job.image), next_tile_, TileCount(spec), ageing_at_,
                            ageing.count};
    ageing_at_ += ageing_bytes;
    std::memcpy(buffer_ + header_.images_at + index * sizeof(image), &image, sizeof(image));
    uint64_t slot = 0;
    for (uint32_t tile = 0; tile < image.tile_count; ++tile, ++next_tile_) {
      const EncodeTask task = TaskOf(job, index, tile, slot);
      std::memcpy(buffer_ + header_.tasks_at + next_tile_ * sizeof(task), &task, sizeof(task));
      const codecs::TileGeometry geometry = codecs::GeometryOf(spec, task.plane % kPlanesOfImage);
      slot += SlotBytesOf(spec, geometry);
      AddItems(ListOf(task.form), geometry);
    }
    return true;
  }

  void AddItems(uint32_t list, const codecs::TileGeometry& geometry) {
    if (list == kNoList) return;
    for (uint32_t strip = 0; strip < ItemsOf(list, geometry); ++strip) {
      const uint32_t item = next_tile_ * kStripsOfTileMax + strip;
      std::memcpy(buffer_ + header_.items_at + next_item_[list]++ * sizeof(item), &item,
                  sizeof(item));
    }
  }

  std::span<const EncodeJob> jobs_;
  std::byte* buffer_;
  EncodeHeader header_{};
  std::array<uint32_t, kEncodeLists> counts_{};
  std::array<uint32_t, kEncodeItemLists> next_item_{};
  std::array<PlaneRecords, kPlanImagesMax> planes_{};
  PlanProfiles profiles_;
  uint32_t next_tile_ = 0;
  uint32_t ageing_at_ = 0;
};

}  // namespace

bool IsEncodable(const codecs::ImageSpec& spec) {
  switch (spec.recipe.id) {
    case RecipeId::kRaw:
    case RecipeId::kExact:
    case RecipeId::kFp8:
    case RecipeId::kKivi:
    case RecipeId::kLogQuant:
    case RecipeId::kCairn:
    case RecipeId::kCairnHot:
    case RecipeId::kPatternkv:
    case RecipeId::kMixKvq:
      return true;
    case RecipeId::kArkv:
      return !spec.recipe.NeedsPlan();
    default:
      return false;
  }
}

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
    if (const Error error = Check(job); error != Error::kOk) return error;
  }
  return EncodePlanMaker(jobs, buffer.data()).Make(buffer.size(), plan);
}

uint64_t EncodePlanBytesMax() {
  return sizeof(EncodeHeader) + kPlanImagesMax * (sizeof(PlaneRecords) + sizeof(EncodeImage)) +
         kPlanesOfImage * kPlanProfilesMax * sizeof(EncodeStepTables) +
         uint64_t{kPlanTasksMax} * (sizeof(EncodeTask) + sizeof(uint32_t)) +
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
