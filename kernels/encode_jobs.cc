// SPDX-License-Identifier: Apache-2.0
#include "kernels/encode_jobs.h"

#include <algorithm>
#include <optional>

#include "codecs/forms/form.h"
#include "codecs/image/chain.h"
#include "codecs/image/image.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/static_step.h"
#include "codecs/transform/demote.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_side.h"

namespace cairn::kernels {
namespace {

using codecs::Error;
using codecs::FormId;

bool Thins(const EncodeJob& job) {
  return job.spec->recipe.Traits().has_ageing_rows &&
         job.stored->prefix->spec().recipe == job.spec->recipe;
}

bool CodesWithSide(const EncodeJob& job) {
  const codecs::ImageSpec& spec = *job.spec;
  if (job.stored != nullptr) return NarrowsSteps(job);
  return spec.recipe.NeedsSideObject() ||
         (spec.recipe.MayHaveProfile() && spec.side_object_count != 0);
}

// Checks the conversion of a stored image: codecs::Demote() from codes alone or from source bits,
// DemoteSteps(), or Thin().
Error CheckStored(const EncodeJob& job) {
  const codecs::ImageSpec& from = job.stored->prefix->spec();
  const codecs::Recipe& to = job.spec->recipe;
  codecs::ImageSpec expected = from;
  expected.recipe = to;
  if (!IsAligned(job.stored->image) || !IsAligned(job.slots)) return Error::kInvalidShape;
  if (!(expected == *job.spec)) return Error::kMismatch;
  if (Thins(job)) return Error::kOk;
  const bool is_steps = HasSteps(from.recipe);
  const bool is_lower = is_steps ? to.level > from.recipe.level && to.level <= codecs::kStepLevelMax
                                 : !(to == from.recipe);
  const bool is_in_strips = from.recipe.Traits().k_form == FormId::kStrips;
  if (!is_lower || is_in_strips || !codecs::IsDemotable(from.recipe, to)) {
    return Error::kNotDemotable;
  }
  return is_steps ? codecs::CheckCodableWith(*job.spec, job.side) : Error::kOk;
}

uint16_t FormOf(const codecs::ImageSpec& spec, const codecs::TileGeometry& geometry) {
  return geometry.IsCodable() ? codecs::CodedForm(geometry, spec.recipe) : codecs::kRawForm;
}

// Returns whether the fast kernel supports the tile. The rules must not make rows: only tokens that
// cannot be coded may be rows.
bool HasFastShape(const PlaneRecord& plane, const EncodeTask& task) {
  constexpr uint32_t kRules = (1U << kRuleVariantShift) - 1;
  const bool is_half = plane.dtype == codecs::DType::kBf16 || plane.dtype == codecs::DType::kFp16;
  const uint32_t group = plane.is_v ? kFastGroupChannels : kFastGroupTokens;
  return is_half && plane.unit == kUnitMax && plane.group == group &&
         (plane.dim == 64 || plane.dim % 128 == 0) && (task.rules & kRules) == 0 &&
         task.scores == nullptr;
}

uint16_t RulesOf(const codecs::ImageSpec& spec, const codecs::TileGeometry& geometry) {
  const codecs::Recipe& recipe = spec.recipe;
  const bool is_first = spec.first_position == 0;
  uint32_t rules = 0;
  if (recipe.is_clipped) rules |= kRuleClipped;
  if (recipe.is_nearest) rules |= kRuleNearest;
  rules |= uint32_t{recipe.variant} << kRuleVariantShift;
  const bool keeps_first = recipe.is_clipped || recipe.HasScores() || recipe.NeedsProfile();
  if (keeps_first && is_first) rules |= kRuleFirstIsRow;
  if (recipe.HasScores() && geometry.IsPerChannel()) rules |= kRuleScores;
  if (recipe.Traits().follows_chain) rules |= kRuleTraced;
  if (recipe.NeedsProfile() && codecs::PlaneCount(spec.tile.kind) > 1) rules |= kRuleSmallNorms;
  if (recipe.Traits().has_ageing_rows) rules |= kRuleAgeing | (is_first ? kRuleFirstStays : 0);
  return static_cast<uint16_t>(rules);
}

const StoredImage* ParentOf(const EncodeJob& job, codecs::ProfileHead at) {
  for (const StoredImage& parent : job.parents) {
    if (codecs::IsParentOf(parent.prefix->spec(), *job.spec, at)) return &parent;
  }
  return nullptr;
}

// Returns the device address of the pool that the previous block left for the head; null if there
// is none.
const uint8_t* PoolBefore(const EncodeJob& job, codecs::ProfileHead at) {
  if (!codecs::FollowsChain(*job.spec)) return nullptr;
  const StoredImage* parent = ParentOf(job, at);
  if (parent == nullptr) return nullptr;
  const std::optional<uint64_t> offset = codecs::ChainOffset(*parent->prefix, at);
  return offset.has_value() ? codecs::U8(parent->image) + *offset : nullptr;
}

// Returns a view of source bits whose tokens are adjacent.
PagedView ViewOfTiles(const codecs::ImageSpec& spec) {
  PagedView view;
  view.page_count = 1;
  view.page_tokens = codecs::TileRows(spec.tile.kind, spec.tokens);
  for (uint32_t plane = 0; plane < codecs::PlaneCount(spec.tile.kind); ++plane) {
    (plane == 0 ? view.k : view.v).token_stride = codecs::GeometryOf(spec, plane).RowBytes();
  }
  return view;
}

// Returns the list for a stored tile. A raw tile stores the bits of the source.
EncodeList ListOfStored(const EncodeJob& job, uint16_t stored_form, EncodeTask* task) {
  const codecs::Recipe& from = job.stored->prefix->spec().recipe;
  const bool is_steps = NarrowsSteps(job);
  if (stored_form == codecs::kRawForm) {
    const bool stays = codecs::KeepsRawTiles(from) && !Thins(job);
    if (stays) task->form = codecs::kRawForm;
    return stays ? EncodeList::kCount : GeneralEncodeList(codecs::FormIdOf(task->form));
  }
  if (Thins(job)) return EncodeList::kThinned;
  task->rules = static_cast<uint16_t>((is_steps ? from.level : from.bits) << kRuleVariantShift);
  return is_steps ? EncodeList::kNarrowSteps : EncodeList::kNarrowed;
}

void AddInputs(const EncodeJob& job, uint32_t tile, const codecs::TileArea& area,
               EncodeTask* task) {
  const codecs::ImageSpec& spec = *job.spec;
  const uint64_t head = tile / codecs::PlaneCount(spec.tile.kind);
  if (job.query_magnitudes != nullptr && task->form == codecs::kMixedForm) {
    task->scores = reinterpret_cast<const uint8_t*>(job.query_magnitudes + head * spec.tile.k_dim);
  }
  if (spec.recipe.Traits().follows_chain) {
    task->scores = PoolBefore(job, {area.slice.layer_first, area.slice.head_first});
  }
  if (job.token_states != nullptr && spec.recipe.NeedsPlan()) {
    task->scores = job.token_states + head * spec.tokens;
  }
  if (job.token_scores != nullptr && spec.recipe.HasScores()) {
    task->scores = reinterpret_cast<const uint8_t*>(job.token_scores + head * spec.tokens);
  }
}

}  // namespace

Error CheckJob(const EncodeJob& job) {
  const codecs::ImageSpec& spec = *job.spec;
  if (const Error error = codecs::Validate(spec); error != Error::kOk) return error;
  if (job.stored != nullptr) {
    if (const Error error = CheckStored(job); error != Error::kOk) return error;
  } else {
    if (const Error error = codecs::CheckCodableWith(spec, job.side); error != Error::kOk) {
      return error;
    }
    if (!codecs::IsEncodableWith(spec, job.side.profile)) return Error::kNoProfile;
  }
  if (CodesWithSide(job) && !IsAligned(job.side_object)) return Error::kInvalidShape;
  if (!IsAligned(job.image) || !IsWhole(job.token_scores) || !IsWhole(job.query_magnitudes)) {
    return Error::kInvalidShape;
  }
  for (const StoredImage& parent : job.parents) {
    if (!IsAligned(parent.image)) return Error::kInvalidShape;
  }
  return job.stored != nullptr ? Error::kOk : CheckView(spec, spec.slice, job.source, job.slots);
}

uint32_t TileCount(const codecs::ImageSpec& spec) {
  return static_cast<uint32_t>(codecs::TilingOf(spec).count());
}

uint64_t SlotBytesOf(const codecs::ImageSpec& spec, const codecs::TileGeometry& geometry) {
  const uint16_t form = FormOf(spec, geometry);
  uint64_t element = 0;  // bytes of temporary data per element
  if (form == codecs::kStepsForm) element = sizeof(int16_t);
  if (form == codecs::kHotForm && geometry.IsPerChannel()) element = sizeof(float);
  return codecs::RawLayout(geometry).bytes +
         codecs::AlignSection(uint64_t{geometry.rows} * geometry.dim * element);
}

bool NarrowsSteps(const EncodeJob& job) {
  return job.stored != nullptr && HasSteps(job.spec->recipe);
}

PlaneRecords PlanesOf(const EncodeJob& job, uint32_t image) {
  const codecs::ImageSpec& spec = *job.spec;
  PlaneRecords records =
      RecordsOf(spec, spec.slice, job.stored != nullptr ? ViewOfTiles(spec) : job.source, image);
  if (NarrowsSteps(job)) {
    // The rows of strips follow planes, which consist of whole words.
    for (PlaneRecord& record : records) record.unit = std::min<uint8_t>(record.unit, 4);
  }
  if (!CodesWithSide(job)) return records;
  AddSide(spec, job.side, job.side_object, &records);
  if (spec.recipe.MayHaveProfile()) {
    AddMagnitudes(*job.side.profile, job.side_object, &records);
  }
  return records;
}

TileWork WorkOf(const EncodeJob& job, const PlaneRecords& planes, uint32_t number, uint32_t tile,
                uint64_t slot) {
  const codecs::ImageSpec& spec = *job.spec;
  const codecs::TileArea area = codecs::TilingOf(spec).AreaOf(tile);
  const codecs::TileGeometry geometry = codecs::GeometryOf(spec, area.plane_first);
  TileWork work{};
  EncodeTask& task = work.task;
  task.slot = codecs::U8(job.slots) + slot;
  task.plane = kPlanesOfImage * number + area.plane_first;
  if (CodesWithSide(job)) {
    task.head = HeadNumber(job.side, {area.slice.layer_first, area.slice.head_first});
  }
  task.form = FormOf(spec, geometry);
  task.rules = RulesOf(spec, geometry);
  work.list = GeneralEncodeList(codecs::FormIdOf(task.form));
  if (job.stored != nullptr) {
    const codecs::TileEntry entry = job.stored->prefix->Tile(tile);
    // Kernels only read it.
    task.source = const_cast<uint8_t*>(codecs::U8(job.stored->image)) + entry.offset;
    if (entry.form != codecs::kRawForm) {
      task.stored_bytes = entry.bytes;
      task.stored_rows = entry.rows;
    }
    work.list = ListOfStored(job, entry.form, &task);
  } else {
    task.source = BaseOf(job.source, spec.slice, area);
    AddInputs(job, tile, area, &task);
  }
  const PlaneRecord& plane = planes[area.plane_first];
  work.may_be_left = work.list == kAffineAny && HasFastShape(plane, task);
  if (work.may_be_left) work.list = AffineEncodeList(plane.bits, plane.dtype);
  const bool is_in_strips = work.list == GeneralEncodeList(FormId::kStrips) ||
                            work.list == GeneralEncodeList(FormId::kSteps) ||
                            work.list == EncodeList::kNarrowSteps;
  work.items = work.list == EncodeList::kCount ? 0
               : is_in_strips                  ? codecs::StripCount(geometry.rows)
                                               : 1;
  return work;
}

codecs::ImageSpec RecordedSpec(const EncodeJob& job) {
  codecs::ImageSpec recorded = *job.spec;
  const bool is_narrowed = job.stored != nullptr && !job.stored->prefix->spec().recipe.IsLossless();
  if (is_narrowed || !codecs::FollowsChain(recorded)) return recorded;
  const codecs::Slice& slice = recorded.slice;
  for (uint32_t i = 0; i < uint32_t{slice.layer_count} * slice.head_count; ++i) {
    const StoredImage* parent = ParentOf(
        job, {slice.layer_first + i / slice.head_count, slice.head_first + i % slice.head_count});
    recorded.recipe.is_local |= parent == nullptr || parent->prefix->spec().recipe.is_local;
  }
  return recorded;
}

}  // namespace cairn::kernels
