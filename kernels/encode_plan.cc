// SPDX-License-Identifier: Apache-2.0
#include "kernels/encode_plan.h"

#include <cstring>

#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/image.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_planes.h"

namespace cairn::kernels {
namespace {

using codecs::Error;

static_assert(kAffineFormLow == static_cast<uint32_t>(codecs::TileLayoutId::kAffine));
static_assert(sizeof(EncodeHeader) % 16 == 0 && sizeof(TileResult) == 16);

uint32_t TileCount(const codecs::ImageSpec& spec) {
  return static_cast<uint32_t>(codecs::TilingOf(spec).count());
}

Error Check(const EncodeJob& job) {
  const codecs::ImageSpec& spec = *job.spec;
  if (const Error error = codecs::Validate(spec); error != Error::kOk) return error;
  if (!IsEncodable(spec)) return Error::kUnknownRecipe;
  return CheckView(spec, spec.slice, job.source, job.slots);
}

EncodeTask TaskOf(const EncodeJob& job, uint32_t job_index, uint32_t index) {
  const codecs::ImageSpec& spec = *job.spec;
  const codecs::TileArea area = codecs::TilingOf(spec).AreaOf(index);
  EncodeTask task{};
  task.slot = codecs::U8(job.slots + SlotOffset(spec, index));
  task.source = BaseOf(job.source, spec.slice, area);
  task.plane = kPlanesOfImage * job_index + area.plane_first;
  return task;
}

}  // namespace

bool IsEncodable(const codecs::ImageSpec& spec) {
  return spec.recipe.id == codecs::RecipeId::kKivi && !spec.recipe.is_clipped &&
         spec.tile.dtype != codecs::DType::kBytes;
}

uint64_t SlotOffset(const codecs::ImageSpec& spec, uint32_t index) {
  uint64_t of_head = 0;
  uint64_t before = 0;
  const uint32_t planes = codecs::PlaneCount(spec.tile.kind);
  for (uint32_t plane = 0; plane < planes; ++plane) {
    if (plane == index % planes) before = of_head;
    of_head += codecs::RawLayout(codecs::GeometryOf(spec, plane)).bytes;
  }
  return index / planes * of_head + before;
}

uint64_t SlotBytes(const codecs::ImageSpec& spec) { return SlotOffset(spec, TileCount(spec)); }

Error MakeEncodePlan(std::span<const EncodeJob> jobs, std::span<std::byte> buffer,
                     EncodePlan* plan) {
  if (jobs.size() > kPlanImagesMax) return Error::kTooLarge;
  if (reinterpret_cast<uintptr_t>(buffer.data()) % kUnitMax != 0) return Error::kInvalidShape;
  uint64_t tiles = 0;
  for (const EncodeJob& job : jobs) {
    if (const Error error = Check(job); error != Error::kOk) return error;
    tiles += TileCount(*job.spec);
  }
  if (tiles > kPlanTasksMax) return Error::kTooLarge;
  EncodeHeader header{};
  header.task_count = static_cast<uint32_t>(tiles);
  header.planes_at = sizeof(EncodeHeader);
  header.tasks_at =
      header.planes_at + kPlanesOfImage * static_cast<uint32_t>(jobs.size() * sizeof(PlaneRecord));
  const uint64_t bytes = header.tasks_at + tiles * sizeof(EncodeTask);
  if (bytes > buffer.size()) return Error::kTargetTooSmall;
  std::memcpy(buffer.data(), &header, sizeof(header));
  std::byte* next = buffer.data() + header.tasks_at;
  for (uint32_t i = 0; i < jobs.size(); ++i) {
    const codecs::ImageSpec& spec = *jobs[i].spec;
    const PlaneRecords planes = RecordsOf(spec, spec.slice, jobs[i].source, i);
    std::memcpy(buffer.data() + header.planes_at + i * sizeof(planes), planes.data(),
                sizeof(planes));
    for (uint32_t tile = 0; tile < TileCount(spec); ++tile, next += sizeof(EncodeTask)) {
      const EncodeTask task = TaskOf(jobs[i], i, tile);
      std::memcpy(next, &task, sizeof(task));
    }
  }
  *plan = {static_cast<uint32_t>(bytes), header.task_count};
  return Error::kOk;
}

uint64_t EncodePlanBytesMax() {
  return sizeof(EncodeHeader) + kPlanesOfImage * kPlanImagesMax * sizeof(PlaneRecord) +
         uint64_t{kPlanTasksMax} * sizeof(EncodeTask);
}

Error WritePrefix(const codecs::ImageSpec& spec, std::span<const TileResult> results,
                  std::span<std::byte> prefix, uint64_t* image_bytes) {
  if (const Error error = codecs::Validate(spec); error != Error::kOk) return error;
  if (results.size() != TileCount(spec)) return Error::kBadDirectory;
  const uint64_t bytes = codecs::PrefixBytes(results.size());
  if (prefix.size() < bytes) return Error::kTargetTooSmall;
  codecs::ImageWriter writer(spec, prefix.first(bytes));
  for (const TileResult& result : results) {
    if (result.fault != Fault::kNone) return static_cast<Error>(result.fault);
    writer.Commit(result.bytes, result.crc, result.rows, result.form);
  }
  const uint64_t written = writer.Finish();
  codecs::ImagePrefix parsed;
  if (codecs::ParseImagePrefix(prefix, &parsed) != Error::kOk) return Error::kBadDirectory;
  *image_bytes = written;
  return Error::kOk;
}

}  // namespace cairn::kernels
