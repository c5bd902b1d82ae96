// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/settle.h"
#include "codecs/pack/dense.h"
#include "codecs/pack/strip.h"
#include "kernels/plan_planes.h"
#include "kernels/plan_side.h"

namespace cairn::kernels {
namespace {

using codecs::Error;
using codecs::FormId;
using codecs::TileGeometry;

static_assert(static_cast<uint32_t>(Fault::kBadPage) ==
              static_cast<uint32_t>(Error::kTargetTooSmall));
static_assert(static_cast<uint32_t>(Fault::kBadChecksum) ==
              static_cast<uint32_t>(Error::kBadChecksum));
static_assert(static_cast<uint32_t>(Fault::kBadTile) == static_cast<uint32_t>(Error::kBadTile));
static_assert(kTaskTokensMax == codecs::kStripTokens);
static_assert(kTileTokensMax == codecs::kTokensPerBlockMax && kMixedDimMax == codecs::kDimMax);
static_assert(kStepsFastLists == kPlanesOfImage * kPlanProfilesMax);
static_assert(codecs::kTokensPerBlockMax <= std::numeric_limits<uint16_t>::max());

// A tile's place, and the part of it that is decoded at once.
struct PlacedTile {
  TileGeometry geometry;
  uint32_t index;
  uint16_t form;
  uint32_t plane;
  uint8_t* target;  // BaseOf()
};

// Returns whether the fast kernel supports the plane. A thread's 8 channels must share their group
// and be stored at once.
bool HasFastShape(const PlaneRecord& plane) {
  const bool is_half = plane.dtype == codecs::DType::kBf16 || plane.dtype == codecs::DType::kFp16;
  return is_half && plane.unit == kUnitMax && plane.dim % 8 == 0 && plane.dim <= kAffineDimMax &&
         plane.group % (plane.is_v ? 8 : kAffineTokensMin) == 0;
}

// Returns the number of tokens of a task of the fast kernel; 0 if it does not support the plane.
uint32_t FastTokens(const PlaneRecord& plane) {
  if (!HasFastShape(plane)) return 0;
  const uint32_t code_row_bytes = codecs::CodeRowBytes(plane.dim, plane.bits);
  uint32_t tokens = kTaskTokensMax;
  while (tokens * code_row_bytes > kAffineCodesMax || (!plane.is_v && plane.group % tokens != 0)) {
    tokens /= 2;
  }
  return tokens < kAffineTokensMin ? 0 : tokens;
}

// Returns the kernel for tiles of strips.
DecodeList StripsList(const PlaneRecord& plane) {
  constexpr DecodeList kAny = GeneralDecodeList(FormId::kStrips);
  const bool is_bf16 = plane.dtype == codecs::DType::kBf16;
  if (plane.unit != kUnitMax || plane.dim % kStripsFastDim != 0 ||
      codecs::BytesOf(plane.dtype) != 2) {
    return kAny;
  }
  if (!plane.is_fast) return is_bf16 ? DecodeList::kStripsBf16 : DecodeList::kStripsFp16;
  if (plane.dim > kPlanesFastDimMax) return kAny;
  return is_bf16 ? DecodeList::kPlanesBf16 : DecodeList::kPlanesFp16;
}

// REQUIRES for the fast list: RoPE rotates all channels of K, or none.
uint32_t StepsList(const PlaneRecord& plane) {
  const TurningPairs& pairs = plane.pairs;
  const bool is_half = pairs.step == 1 && pairs.distance == pairs.count && pairs.count % 8 == 0;
  const bool is_interleaved = pairs.step == 2 && pairs.distance == 1;
  const bool turns_whole = pairs.first == 0 && 2U * pairs.count == plane.dim;
  const bool is_fast = plane.dtype == codecs::DType::kBf16 && plane.unit == kUnitMax &&
                       plane.dim % kStepsFastDim == 0 && plane.vectors == nullptr &&
                       (pairs.count == 0 || (turns_whole && (is_half || is_interleaved)));
  if (!is_fast) return static_cast<uint32_t>(GeneralDecodeList(FormId::kSteps));
  return static_cast<uint32_t>(DecodeList::kStepsFast) + plane.tables;
}

// The kernel of a tile, and the number of tokens of a task.
struct Choice {
  uint32_t list, tokens;
};

// Fast kernels process the shapes that they support; the general kernel of the form processes all
// others.
Choice ChoiceOf(const PlaneRecord& plane, uint16_t form) {
  const auto whole = [](DecodeList list) {
    return Choice{static_cast<uint32_t>(list), kTaskTokensMax};
  };
  const uint32_t tokens = FastTokens(plane);
  const FormId id = codecs::FormIdOf(form);
  if (id == FormId::kStrips) return whole(StripsList(plane));
  if (id == FormId::kSteps) return {StepsList(plane), kTaskTokensMax};
  if (id == FormId::kFp8 && tokens != 0) {
    const bool is_bf16 = plane.dtype == codecs::DType::kBf16;
    return {static_cast<uint32_t>(is_bf16 ? DecodeList::kFp8Bf16 : DecodeList::kFp8Fp16), tokens};
  }
  if (id == FormId::kAffine && tokens != 0) {
    return {AffineFastList(plane.bits, plane.dtype, plane.is_v), tokens};
  }
  return whole(GeneralDecodeList(id));
}

// Calls visit(tile) for every tile of the job.
template <typename Visit>
Error ForEachTile(const DecodeJob& job, Visit visit) {
  const codecs::ImagePrefix& prefix = *job.prefix;
  const codecs::ImageSpec& spec = prefix.spec();
  const codecs::Tiling tiling = prefix.tiling();
  return tiling.ForEach(job.slice, [&](uint32_t index) {
    const codecs::TileArea area = tiling.AreaOf(index);
    PlacedTile tile{};
    tile.index = index;
    tile.form = prefix.Tile(index).form;
    tile.plane = area.plane_first;
    tile.target = BaseOf(job.target, job.slice, area);
    tile.geometry = codecs::GeometryOf(spec, tile.plane);
    return visit(tile);
  });
}

Error Check(const DecodeJob& job) {
  const codecs::ImageSpec& spec = job.prefix->spec();
  if (const Error error = codecs::CheckCodableWith(spec, job.side); error != Error::kOk) {
    return error;
  }
  // Meanwhile, the kernels of steps store 16 bits in the place of an element.
  if (HasSteps(spec.recipe) && codecs::ElementBytes(spec.tile.dtype) == 1) {
    return Error::kUnknownRecipe;
  }
  if (spec.recipe.NeedsSideObject() && !IsAligned(job.side_object)) return Error::kInvalidShape;
  if (job.slice.IsEmpty() || !spec.slice.Contains(job.slice)) return Error::kInvalidSlice;
  return CheckView(spec, job.slice, job.target, job.image);
}

class PlanMaker {
 public:
  PlanMaker(std::span<const DecodeJob> jobs, Verify verify) : jobs_(jobs), verify_(verify) {
    for (uint32_t i = 0; i < jobs.size(); ++i) {
      const codecs::ImageSpec& spec = jobs[i].prefix->spec();
      planes_[i] = RecordsOf(spec, jobs[i].slice, jobs[i].target, i);
      AddSide(spec, jobs[i].side, jobs[i].side_object, &planes_[i]);
      if (HasSteps(spec.recipe)) profiles_.Add(*jobs[i].side.profile, &planes_[i]);
    }
  }

  // Calls visit(list, task) for every task, job by job.
  template <typename Visit>
  Error ForEachTask(Visit visit) const {
    for (uint32_t i = 0; i < jobs_.size(); ++i) {
      const Error error = ForEachTile(jobs_[i], [&](const PlacedTile& tile) {
        const Choice choice = ChoiceOf(planes_[i][tile.plane], tile.form);
        const DecodeJob& job = jobs_[i];
        TileTask task = TaskOfTile(*job.prefix, tile.index, job.image, job.side);
        task.target = tile.target;
        task.plane = static_cast<uint16_t>(kPlanesOfImage * i + tile.plane);
        const bool is_placed =
            verify_ == Verify::kNo || visit(static_cast<uint32_t>(DecodeList::kVerify), task);
        if (!is_placed) return Error::kTooLarge;
        for (uint32_t first = 0; first < tile.geometry.rows; first += choice.tokens) {
          task.token_first = static_cast<uint16_t>(first);
          task.token_count =
              static_cast<uint16_t>(std::min(choice.tokens, tile.geometry.rows - first));
          if (!visit(choice.list, task)) return Error::kTooLarge;
        }
        return Error::kOk;
      });
      if (error != Error::kOk) return error;
    }
    return Error::kOk;
  }

  Error Make(std::span<std::byte> buffer, DecodePlan* plan) const {
    if (profiles_.AreTooMany()) return Error::kTooLarge;
    DecodePlan made;
    uint32_t tasks = 0;
    const Error error = ForEachTask([&](uint32_t list, const TileTask&) {
      ++made.counts[list];
      return ++tasks <= kPlanTasksMax;
    });
    if (error != Error::kOk) return error;
    made.image_count = static_cast<uint32_t>(jobs_.size());
    PlanHeader header{};
    header.image_count = made.image_count;
    header.planes_at = sizeof(PlanHeader);
    header.tables_at = header.planes_at + made.image_count * sizeof(PlaneRecords);
    header.tasks_at = header.tables_at + profiles_.TableCount() * sizeof(StepTables);
    made.bytes = header.tasks_at + tasks * sizeof(TileTask);
    if (made.bytes > buffer.size()) return Error::kTargetTooSmall;
    uint32_t first = 0;
    for (uint32_t list = 0; list < kDecodeLists; ++list) {
      header.lists[list] = {first, made.counts[list]};
      first += made.counts[list];
    }
    Write(header, buffer.data());
    *plan = made;
    return Error::kOk;
  }

 private:
  void Write(const PlanHeader& header, std::byte* buffer) const {
    std::memcpy(buffer, &header, sizeof(header));
    std::memcpy(buffer + header.planes_at, planes_.data(), jobs_.size() * sizeof(PlaneRecords));
    profiles_.Write<StepTables>(buffer + header.tables_at);
    std::array<uint32_t, kDecodeLists> next{};
    for (uint32_t list = 0; list < kDecodeLists; ++list) next[list] = header.lists[list].first;
    const Error error = ForEachTask([&](uint32_t list, const TileTask& task) {
      std::memcpy(buffer + header.tasks_at + next[list]++ * sizeof(task), &task, sizeof(task));
      return true;
    });
    static_cast<void>(error);  // the first pass had none
  }

  std::span<const DecodeJob> jobs_;
  Verify verify_;
  PlanProfiles profiles_;
  std::array<PlaneRecords, kPlanImagesMax> planes_{};
};

static_assert(sizeof(PlanHeader) % 16 == 0 && sizeof(PlaneRecord) % 8 == 0);

}  // namespace

Error MakeDecodePlan(std::span<const DecodeJob> jobs, Verify verify, std::span<std::byte> buffer,
                     DecodePlan* plan) {
  if (jobs.size() > kPlanImagesMax) return Error::kTooLarge;
  if (reinterpret_cast<uintptr_t>(buffer.data()) % kUnitMax != 0) return Error::kInvalidShape;
  for (const DecodeJob& job : jobs) {
    if (const Error error = Check(job); error != Error::kOk) return error;
  }
  return PlanMaker(jobs, verify).Make(buffer, plan);
}

uint64_t DecodePlanBytesMax() {
  return sizeof(PlanHeader) + kPlanImagesMax * sizeof(PlaneRecords) +
         kPlanesOfImage * kPlanProfilesMax * sizeof(StepTables) +
         uint64_t{kPlanTasksMax} * sizeof(TileTask);
}

}  // namespace cairn::kernels
