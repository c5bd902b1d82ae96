// SPDX-License-Identifier: Apache-2.0
#include "kernels/attend_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "codecs/format/tile_layout.h"
#include "codecs/pack/dense.h"
#include "codecs/types/bytes.h"
#include "kernels/attend_jobs.h"
#include "kernels/plan_planes.h"
#include "kernels/plan_side.h"

namespace cairn::kernels {
namespace {

using codecs::Error;
using codecs::FormId;
using codecs::GroupKind;

constexpr uint32_t kWorkPartsMax = 32;
// Lists before this one have AffineParts, including fp8. Kernels of the lists from here on use one
// warp per part.
constexpr auto kAffineLists = static_cast<uint32_t>(AttendList::kPlainBf16);
constexpr auto kFastLists = static_cast<uint32_t>(AttendList::kNarrow);

static_assert(sizeof(AttendHeader) % 16 == 0 && sizeof(AttendQueries) % 16 == 0);
static_assert(sizeof(PlaneRecord) % 16 == 0 && sizeof(AttendWork) % 4 == 0);
static_assert(kPlanesOfImage * (kAttendImagesMax + kAttendJobsMax) <=
              std::numeric_limits<decltype(TileTask::plane)>::max());

constexpr uint32_t DivideUp(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// The tiles of K and V of an image's head.
struct TilePair {
  uint32_t k_index, v_index;
  codecs::TileEntry k, v;
};

TilePair PairAt(const AttendJob& job, const codecs::ImagePrefix& prefix, uint16_t head) {
  const bool is_latent = job.tile.kind == GroupKind::kLatent;
  TilePair pair{};
  pair.k_index = prefix.IndexOf({job.layer, head, 0});
  pair.v_index = is_latent ? pair.k_index : prefix.IndexOf({job.layer, head, 1});
  pair.k = prefix.Tile(pair.k_index);
  pair.v = prefix.Tile(pair.v_index);
  return pair;
}

// Returns whether the narrow kernel supports the form.
bool IsPlain(uint16_t form) {
  const FormId id = codecs::FormIdOf(form);
  return id == FormId::kRaw || id == FormId::kAffine || id == FormId::kFp8;
}

// Returns the list for parts of plain forms that no fast kernel supports.
AttendList SlowList(const AttendJob& job) {
  const bool is_narrow = job.tile.k_dim <= kAttendNarrowDim && VDim(job) <= kAttendNarrowDim;
  return is_narrow ? AttendList::kNarrow : AttendList::kWide;
}

// Returns whether fast kernels support the heads: kAttendDim, for source bits and fp8 also
// kAttendSmallDim.
bool IsFast(const AttendJob& job, uint32_t dim = kAttendDim) {
  const codecs::TileShape& tile = job.tile;
  return tile.kind == GroupKind::kKv && tile.dtype != codecs::DType::kFp32 && tile.k_dim == dim &&
         tile.v_dim == dim;
}

// Returns the list for a job's source bits.
//   unit  alignment of their rows, in bytes
AttendList PlainList(const AttendJob& job, uint32_t unit) {
  const bool is_fast = IsFast(job) || IsFast(job, kAttendSmallDim);
  if (is_fast && unit == kUnitMax) {
    return static_cast<AttendList>(AttendPlainList(job.tile.dtype, job.tile.k_dim));
  }
  return SlowList(job);
}

AttendList ListOf(const AttendJob& job, const codecs::Recipe& recipe, const TilePair& pair) {
  const bool is_affine = pair.k.form == codecs::AffineForm(recipe.bits) &&
                         pair.v.form == pair.k.form && pair.k.rows == 0 && pair.v.rows == 0 &&
                         recipe.k_group_tokens == kAttendKGroup &&
                         recipe.v_group_channels == kAttendVGroup;
  if (IsFast(job) && is_affine) return static_cast<AttendList>(AttendAffineList(recipe.bits));
  const bool is_fp8 = pair.k.form == codecs::kFp8Form && pair.v.form == pair.k.form &&
                      pair.k.rows == 0 && pair.v.rows == 0;
  if (is_fp8 && (IsFast(job) || IsFast(job, kAttendSmallDim))) {
    return static_cast<AttendList>(AttendFp8List(job.tile.k_dim));
  }
  if (pair.k.form == codecs::kRawForm && pair.v.form == codecs::kRawForm) {
    return PlainList(job, kUnitMax);
  }
  return IsPlain(pair.k.form) && IsPlain(pair.v.form) ? SlowList(job) : AttendList::kWide;
}

// Visits the jobs in the same way for counting and for writing.
class AttendPlanMaker {
 public:
  AttendPlanMaker(std::span<const AttendJob> jobs, uint32_t works_wanted) : jobs_(jobs) {
    uint64_t parts = 0;
    for (const AttendJob& job : jobs) {
      uint64_t of_head = DivideUp(job.tail_tokens_max, kTaskTokensMax);
      for (const AttendImage& image : job.images) {
        of_head += DivideUp(image.prefix->spec().tokens, kTaskTokensMax);
      }
      parts += of_head * job.head_count * DivideUp(RowsOf(job), kAttendRows);
      slot_floats_ = std::max(slot_floats_, kAttendRows * (VDim(job) + 1));
    }
    parts_of_work_ = static_cast<uint32_t>(
        std::clamp<uint64_t>((parts + works_wanted - 1) / works_wanted, 1, kWorkPartsMax));
  }

  Error Make(std::span<std::byte> buffer, AttendPlan* plan) {
    Walk();
    const uint64_t bytes = Place();
    if (parts_ > kAttendPartsMax || bytes > std::numeric_limits<uint32_t>::max()) {
      return Error::kTooLarge;
    }
    AttendPlan made;
    made.bytes = static_cast<uint32_t>(bytes);
    made.status_count = status_count_;
    made.scratch_bytes = uint64_t{slots_} * slot_floats_ * sizeof(float);
    for (uint32_t list = 0; list < kAttendLists; ++list)
      made.counts[list] = header_.lists[list].count;
    *plan = made;
    if (bytes > buffer.size()) return Error::kTargetTooSmall;
    buffer_ = buffer.data();
    std::memcpy(buffer_, &header_, sizeof(header_));
    Walk();
    return Error::kOk;
  }

 private:
  // Computes the offsets of the records that were counted.
  uint64_t Place() {
    header_.slot_floats = slot_floats_;
    uint64_t at = sizeof(AttendHeader);
    header_.queries_at = static_cast<uint32_t>(at);
    at += jobs_.size() * sizeof(AttendQueries);
    header_.planes_at = static_cast<uint32_t>(at);
    at += planes_ * sizeof(PlaneRecord);
    for (uint32_t list = 0; list < kAttendPartLists; ++list) {
      header_.parts_at[list] = static_cast<uint32_t>(at);
      at += part_counts_[list] * (list < kAffineLists ? sizeof(AffinePart) : sizeof(AttendPart));
    }
    header_.works_at = static_cast<uint32_t>(at);
    uint32_t first = 0;
    for (uint32_t list = 0; list < kAttendLists; ++list) {
      header_.lists[list] = {first, work_counts_[list]};
      first += work_counts_[list];
    }
    return at + first * sizeof(AttendWork);
  }

  template <typename T>
  void Put(uint64_t at, uint32_t index, const T& record) {
    if (buffer_ != nullptr) std::memcpy(buffer_ + at + index * sizeof(T), &record, sizeof(T));
  }
  template <typename T>
  void PutPart(AttendList list, const T& part) {
    const auto number = static_cast<uint32_t>(list);
    Put(header_.parts_at[number], part_counts_[number]++, part);
    ++parts_;
  }
  void PutWork(uint32_t list, const AttendWork& work) {
    Put(header_.works_at, header_.lists[list].first + work_counts_[list]++, work);
  }

  void Walk() {
    part_counts_ = {};
    work_counts_ = {};
    parts_ = planes_ = slots_ = status_count_ = image_count_ = 0;
    for (uint32_t i = 0; i < jobs_.size(); ++i) {
      Put(header_.queries_at, i, QueriesOf(jobs_[i]));
      AddPlanes(jobs_[i]);
      for (uint32_t head = 0; head < jobs_[i].head_count; ++head) AddHead(i, head);
      image_count_ += static_cast<uint32_t>(jobs_[i].images.size());
      status_count_ += static_cast<uint32_t>(jobs_[i].images.size()) + 1;
    }
  }

  static AttendQueries QueriesOf(const AttendJob& job) {
    AttendQueries queries{};
    queries.queries = codecs::U8(job.queries);
    queries.outputs = job.outputs;
    queries.log_sums = job.log_sums;
    queries.tail_tokens = job.tail_tokens;
    queries.tail_tokens_max = job.tail_tokens_max;
    queries.query_heads = job.query_heads;
    queries.rows_of_token = job.query_heads / job.head_count;
    queries.rows = RowsOf(job);
    queries.k_dim = job.tile.k_dim;
    queries.v_dim = VDim(job);
    queries.scale = job.scale;
    queries.dtype = job.tile.dtype;
    queries.is_causal = job.tail_ends_with_queries;
    return queries;
  }

  // Images that differ only in their content share their planes.
  static bool AreAlike(const AttendImage& a, const AttendImage& b) {
    const codecs::ImageSpec& of = a.prefix->spec();
    return of.recipe == b.prefix->spec().recipe && of.tokens == b.prefix->spec().tokens &&
           a.side.bank == b.side.bank && a.side.profile == b.side.profile &&
           a.side_object == b.side_object;
  }

  // Returns the alignment of all rows.
  uint32_t PutPlanes(const codecs::ImageSpec& spec, const PagedView& view,
                     const AttendImage* image) {
    PlaneRecords records = RecordsOf(spec, spec.slice, view, 0);
    if (image != nullptr) AddSide(spec, image->side, image->side_object, &records);
    for (const PlaneRecord& record : records) Put(header_.planes_at, planes_++, record);
    return std::min(records[0].unit, records[codecs::PlaneCount(spec.tile.kind) - 1].unit);
  }

  void AddPlanes(const AttendJob& job) {
    for (size_t i = 0; i < job.images.size(); ++i) {
      if (i == 0 || !AreAlike(job.images[i - 1], job.images[i])) {
        PutPlanes(job.images[i].prefix->spec(), {}, &job.images[i]);
      }
      plane_of_[image_count_ + i] = static_cast<uint16_t>(planes_ - kPlanesOfImage);
    }
    if (job.tail_tokens_max == 0) return;
    tail_plane_ = static_cast<uint16_t>(planes_);
    tail_unit_ = PutPlanes(TailSpec(job), job.tail, nullptr);
  }

  void AddHead(uint32_t job_index, uint32_t head) {
    const AttendJob& job = jobs_[job_index];
    const auto first = part_counts_;
    for (size_t i = 0; i < job.images.size(); ++i) AddImage(job, head, static_cast<uint32_t>(i));
    AddTail(job, head);
    for (uint32_t row = 0; row < RowsOf(job); row += kAttendRows) {
      AttendWork work{};
      work.queries = static_cast<uint16_t>(job_index);
      work.head = static_cast<uint16_t>(head);
      work.row_first = row;
      const uint32_t slot_first = slots_;
      for (uint32_t list = 0; list < kAttendPartLists; ++list) {
        const uint32_t end = part_counts_[list];
        // Fast kernels process one part per warp.
        const uint32_t step =
            list < kFastLists ? std::max(parts_of_work_, kAttendThreads / 32) : parts_of_work_;
        for (uint32_t at = first[list]; at < end; at += step) {
          work.part_first = at;
          work.part_count = std::min(step, end - at);
          work.slot = slots_++;
          PutWork(list, work);
        }
      }
      work.part_first = slot_first;
      work.part_count = slots_ - slot_first;
      PutWork(static_cast<uint32_t>(AttendList::kMerge), work);
    }
  }

  void AddImage(const AttendJob& job, uint32_t head, uint32_t number) {
    const AttendImage& image = job.images[number];
    const codecs::ImageSpec& spec = image.prefix->spec();
    const TilePair pair = PairAt(job, *image.prefix, static_cast<uint16_t>(job.head_first + head));
    const AttendList list = ListOf(job, spec.recipe, pair);
    AttendPart part{};
    part.status = status_count_ + number;
    part.k_form = codecs::FormIdOf(pair.k.form);
    part.v_form = codecs::FormIdOf(pair.v.form);
    part.k = TaskOfTile(*image.prefix, pair.k_index, image.image, image.side);
    part.v = TaskOfTile(*image.prefix, pair.v_index, image.image, image.side);
    const uint32_t plane = plane_of_[image_count_ + number];
    part.k.plane = static_cast<uint16_t>(plane);
    part.v.plane = static_cast<uint16_t>(job.tile.kind == GroupKind::kKv ? plane + 1 : plane);
    for (uint32_t first = 0; first < spec.tokens; first += kTaskTokensMax) {
      SetTokens(first, spec.tokens, &part);
      if (static_cast<uint32_t>(list) < kAffineLists) {
        PutPart(list, AffineOf(part, image.image, list, spec));
      } else {
        PutPart(list, part);
      }
    }
  }

  static void SetTokens(uint32_t first, uint32_t tokens, AttendPart* part) {
    for (TileTask* task : {&part->k, &part->v}) {
      task->token_first = static_cast<uint16_t>(first);
      task->token_count = static_cast<uint16_t>(std::min(kTaskTokensMax, tokens - first));
    }
  }

  static AffinePart AffineOf(const AttendPart& part, const std::byte* image, AttendList list,
                             const codecs::ImageSpec& spec) {
    const bool is_fp8 = list >= AttendList::kFp8;
    const uint32_t first = part.k.token_first, bits = is_fp8 ? 8 : spec.recipe.bits;
    const uint32_t codes = first * codecs::CodeRowBytes(spec.tile.k_dim, bits);
    const auto from_image = [&](const TileTask& task) {
      return static_cast<uint32_t>(task.source - codecs::U8(image));  // of kImageBytesMax
    };
    constexpr uint32_t kVPairs = kAttendDim / kAttendVGroup;
    const uint32_t k_params = 4 * (first / kAttendKGroup * kAttendDim);
    const uint32_t v_params = 4 * first * kVPairs;
    AffinePart affine{};
    affine.image = codecs::U8(image);
    affine.k_codes = from_image(part.k) + codes;
    affine.k_params = from_image(part.k) + part.k.params_at + (is_fp8 ? 2 * first : k_params);
    affine.v_codes = from_image(part.v) + codes;
    affine.v_params = from_image(part.v) + part.v.params_at + (is_fp8 ? 2 * first : v_params);
    affine.tokens = part.k.token_count;
    affine.status = part.status;
    return affine;
  }

  void AddTail(const AttendJob& job, uint32_t head) {
    if (job.tail_tokens_max == 0) return;
    const codecs::Slice slice = TailSpec(job).slice;
    AttendPart part{};
    part.status = status_count_ + static_cast<uint32_t>(job.images.size());
    part.is_tail = true;
    const auto base_of = [&](uint8_t plane) {
      const auto of = static_cast<uint16_t>(job.head_first + head);
      return BaseOf(job.tail, slice, {{job.layer, 1, of, 1}, plane, 1});
    };
    const bool has_v = job.tile.kind == GroupKind::kKv;
    part.k.target = base_of(0);
    part.v.target = has_v ? base_of(1) : part.k.target;
    part.k.plane = tail_plane_;
    part.v.plane = static_cast<uint16_t>(tail_plane_ + (has_v ? 1 : 0));
    for (uint32_t first = 0; first < job.tail_tokens_max; first += kTaskTokensMax) {
      SetTokens(first, job.tail_tokens_max, &part);
      PutPart(PlainList(job, tail_unit_), part);
    }
  }

  std::span<const AttendJob> jobs_;
  std::byte* buffer_ = nullptr;  // null during counting
  AttendHeader header_{};
  uint32_t slot_floats_ = 0, parts_of_work_ = 1;
  std::array<uint32_t, kAttendPartLists> part_counts_{};
  std::array<uint32_t, kAttendLists> work_counts_{};
  uint64_t parts_ = 0;
  uint32_t planes_ = 0, slots_ = 0, status_count_ = 0;
  uint32_t image_count_ = 0;  // images of the earlier jobs
  uint16_t tail_plane_ = 0;
  uint32_t tail_unit_ = 0;
  std::array<uint16_t, kAttendImagesMax> plane_of_{};  // of images of all jobs
};

Error MakeChecked(std::span<const AttendJob> jobs, uint32_t works_wanted,
                  std::span<std::byte> buffer, AttendPlan* plan) {
  if (works_wanted == 0) return Error::kInvalidShape;
  if (jobs.size() > kAttendJobsMax) return Error::kTooLarge;
  size_t images = 0;
  for (const AttendJob& job : jobs) {
    images += job.images.size();
    if (images > kAttendImagesMax) return Error::kTooLarge;
    if (const Error error = CheckAttend(job); error != Error::kOk) return error;
  }
  return AttendPlanMaker(jobs, works_wanted).Make(buffer, plan);
}

}  // namespace

Error MakeAttendPlan(std::span<const AttendJob> jobs, uint32_t works_wanted,
                     std::span<std::byte> buffer, AttendPlan* plan) {
  if (reinterpret_cast<uintptr_t>(buffer.data()) % kUnitMax != 0) return Error::kInvalidShape;
  AttendPlan made;
  const Error error = MakeChecked(jobs, works_wanted, buffer, &made);
  if (error == Error::kOk) *plan = made;
  return error;
}

uint64_t AttendPlanBytes(std::span<const AttendJob> jobs, uint32_t works_wanted) {
  AttendPlan made;
  const Error error = MakeChecked(jobs, works_wanted, {}, &made);
  return error == Error::kOk || error == Error::kTargetTooSmall ? made.bytes : 0;
}

}  // namespace cairn::kernels
