// SPDX-License-Identifier: Apache-2.0
#include "kernels/mine_plan.h"

#include <cstring>
#include <limits>

#include "codecs/backend/reference/token_norm.h"
#include "codecs/format/image_spec.h"
#include "codecs/format/tiling.h"
#include "codecs/side/bank.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_planes.h"

namespace cairn::kernels {
namespace {

using codecs::Error;
using codecs::GroupKind;

static_assert(kMineDimMax == codecs::kBankDimMax && kMinePatternsMax == codecs::kBankPatternsMax);
static_assert(static_cast<uint32_t>(Fault::kIncomplete) ==
              static_cast<uint32_t>(Error::kIncomplete));

uint32_t HeadsOf(const MineJob& job) {
  return uint32_t{job.layers} * job.heads * codecs::PlaneCount(job.tile.kind);
}

// A spec of what the sample is.
codecs::ImageSpec SampleSpec(const MineJob& job) {
  codecs::ImageSpec spec;
  spec.tile = job.tile;
  spec.slice = {0, job.layers, 0, job.heads};
  spec.tokens = static_cast<uint16_t>(job.tokens);
  return spec;
}

Error CheckMine(const MineJob& job) {
  const bool has_elements = job.tile.kind == GroupKind::kKv || job.tile.kind == GroupKind::kLatent;
  if (!has_elements || codecs::Validate(job.tile) != Error::kOk ||
      codecs::Validate(BankShapeOf(job)) != Error::kOk || job.tokens == 0 ||
      job.tokens > std::numeric_limits<uint16_t>::max()) {
    return Error::kInvalidShape;
  }
  const codecs::ImageSpec spec = SampleSpec(job);
  return CheckView(spec, spec.slice, job.sample, job.bank);
}

// Gives the task its part of scratch, which ends at *end.
void PlaceScratch(const MineJob& job, const PlaneRecord& plane, MineTask* task, uint64_t* end) {
  const auto take = [end](uint64_t bytes) {
    const uint64_t at = *end;
    *end += codecs::AlignSection(bytes);
    return at;
  };
  const auto fill = [](uint64_t count, uint64_t unit) { return (count + unit - 1) / unit * unit; };
  task->centres_at =
      take(fill(plane.dim, codecs::kNormSums) * fill(job.patterns, kCentresBeside) * sizeof(float));
  task->left_at = take(job.tokens * sizeof(float));
  task->nearest_at = take(job.tokens * sizeof(uint16_t));
}

}  // namespace

codecs::BankShape BankShapeOf(const MineJob& job) {
  return {job.layers, job.heads, job.patterns, job.tile.k_dim, job.tile.v_dim};
}

uint64_t MinePlanBytes(uint32_t heads) {
  return sizeof(MineHeader) + kPlanesOfImage * sizeof(PlaneRecord) +
         uint64_t{heads} * sizeof(MineTask);
}

Error MakeMinePlan(const MineJob& job, std::span<std::byte> buffer, MinePlan* plan) {
  if (!IsAligned(buffer.data())) return Error::kInvalidShape;
  if (const Error error = CheckMine(job); error != Error::kOk) return error;
  MinePlan made;
  made.counts[static_cast<size_t>(MineList::kPatterns)] = HeadsOf(job);
  const uint64_t bytes = MinePlanBytes(HeadsOf(job));
  if (buffer.size() < bytes) return Error::kTargetTooSmall;
  made.bytes = static_cast<uint32_t>(bytes);

  const codecs::ImageSpec spec = SampleSpec(job);
  const codecs::BankShape shape = BankShapeOf(job);
  PlaneRecords planes = RecordsOf(spec, spec.slice, job.sample, 0);
  for (PlaneRecord& plane : planes) plane.patterns = static_cast<uint16_t>(job.patterns);
  MineHeader header{};
  header.lists[0] = {0, HeadsOf(job)};
  header.planes_at = sizeof(MineHeader);
  header.tasks_at = header.planes_at + sizeof(planes);
  std::memcpy(buffer.data(), &header, sizeof(header));
  std::memcpy(buffer.data() + header.planes_at, planes.data(), sizeof(planes));
  const codecs::Tiling tiling = codecs::TilingOf(spec);
  for (uint32_t i = 0; i < HeadsOf(job); ++i) {
    const codecs::TileArea area = tiling.AreaOf(i);
    const uint32_t number = uint32_t{area.slice.layer_first} * job.heads + area.slice.head_first;
    MineTask task{};
    task.source = BaseOf(job.sample, spec.slice, area);
    task.plane = area.plane_first;
    task.patterns = codecs::U8(job.bank) + codecs::PatternsAt(shape, task.plane, number);
    PlaceScratch(job, planes[task.plane], &task, &made.scratch_bytes);
    std::memcpy(buffer.data() + header.tasks_at + i * sizeof(task), &task, sizeof(task));
  }
  *plan = made;
  return Error::kOk;
}

}  // namespace cairn::kernels
