// SPDX-License-Identifier: Apache-2.0
#include "kernels/mine_plan.h"

#include <cstring>

#include "codecs/backend/reference/token_norm.h"
#include "codecs/format/image_spec.h"
#include "codecs/format/tiling.h"
#include "codecs/side/bank.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_planes.h"

namespace cairn::kernels {
namespace {

using codecs::Error;

static_assert(kMineDimMax == codecs::kBankDimMax && kMinePatternsMax == codecs::kBankPatternsMax);
static_assert(static_cast<uint32_t>(Fault::kIncomplete) ==
              static_cast<uint32_t>(Error::kIncomplete));

// Places the task's scratch; *end becomes the end of the scratch.
void PlaceScratch(const MineJob& job, const PlaneRecord& plane, MineTask* task, uint64_t* end) {
  const auto take = [end](uint64_t bytes) {
    const uint64_t at = *end;
    *end += codecs::AlignSection(bytes);
    return at;
  };
  const auto fill = [](uint64_t count, uint64_t unit) { return (count + unit - 1) / unit * unit; };
  task->centres_at =
      take(fill(plane.dim, codecs::kNormSums) * fill(job.patterns, kCentresBeside) * sizeof(float));
  task->left_at = take(job.sample.tokens * sizeof(float));
  task->nearest_at = take(job.sample.tokens * sizeof(uint16_t));
}

}  // namespace

codecs::BankShape BankShapeOf(const MineJob& job) {
  const MineSample& sample = job.sample;
  return {sample.layers, sample.heads, job.patterns, sample.tile.k_dim, sample.tile.v_dim};
}

uint64_t MinePlanBytes(uint32_t heads) {
  return sizeof(MineHeader) + kPlanesOfImage * sizeof(PlaneRecord) +
         uint64_t{heads} * sizeof(MineTask);
}

Error MakeMinePlan(const MineJob& job, std::span<std::byte> buffer, MinePlan* plan) {
  if (!IsAligned(buffer.data())) return Error::kInvalidShape;
  const MineSample& sample = job.sample;
  const codecs::BankShape shape = BankShapeOf(job);
  if (codecs::Validate(shape) != Error::kOk) return Error::kInvalidShape;
  if (const Error error = CheckSample(sample, job.bank); error != Error::kOk) return error;
  const uint32_t heads = HeadsOf(sample);
  MinePlan made;
  made.counts[static_cast<size_t>(MineList::kPatterns)] = heads;
  const uint64_t bytes = MinePlanBytes(heads);
  if (buffer.size() < bytes) return Error::kTargetTooSmall;
  made.bytes = static_cast<uint32_t>(bytes);

  const codecs::ImageSpec spec = SpecOf(sample);
  PlaneRecords planes = RecordsOf(spec, spec.slice, sample.view, 0);
  for (PlaneRecord& plane : planes) plane.patterns = static_cast<uint16_t>(job.patterns);
  MineHeader header{};
  header.lists[0] = {0, heads};
  header.planes_at = sizeof(MineHeader);
  header.tasks_at = header.planes_at + sizeof(planes);
  std::memcpy(buffer.data(), &header, sizeof(header));
  std::memcpy(buffer.data() + header.planes_at, planes.data(), sizeof(planes));
  const codecs::Tiling tiling = codecs::TilingOf(spec);
  for (uint32_t i = 0; i < heads; ++i) {
    const codecs::TileArea area = tiling.AreaOf(i);
    const uint32_t number = uint32_t{area.slice.layer_first} * sample.heads + area.slice.head_first;
    MineTask task{};
    task.source = BaseOf(sample.view, spec.slice, area);
    task.plane = area.plane_first;
    task.patterns = codecs::U8(job.bank) + codecs::PatternsAt(shape, task.plane, number);
    PlaceScratch(job, planes[task.plane], &task, &made.scratch_bytes);
    std::memcpy(buffer.data() + header.tasks_at + i * sizeof(task), &task, sizeof(task));
  }
  *plan = made;
  return Error::kOk;
}

}  // namespace cairn::kernels
