// SPDX-License-Identifier: Apache-2.0
#include "kernels/mine_pass.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "codecs/format/tiling.h"
#include "codecs/pack/strip.h"
#include "codecs/types/bytes.h"
#include "kernels/plan_planes.h"

namespace cairn::kernels {
namespace {

using codecs::Error;

static_assert(kPassDimMax == codecs::kProfileDimMax);
static_assert(kTaskTokensMax == codecs::kStripTokens);
static_assert(static_cast<uint32_t>(Fault::kBadPage) ==
              static_cast<uint32_t>(Error::kTargetTooSmall));

uint32_t PlanesOf(const MinePassJob& job) { return codecs::PlaneCount(job.sample.tile.kind); }
uint32_t DimOf(const MinePassJob& job, uint32_t plane) {
  const codecs::TileShape& tile = job.sample.tile;
  return codecs::PlaneDim(tile, codecs::PlaneAt(tile.kind, plane));
}
uint64_t ChannelsOf(const MinePassJob& job, uint32_t plane) {
  return uint64_t{job.sample.layers} * job.sample.heads * DimOf(job, plane);
}

bool IsRun(const MineSample& sample, const SampleRun& run) {
  return run.tokens != 0 && run.part < codecs::kSampleParts &&
         uint64_t{run.token_first} + run.tokens <= sample.tokens;
}

// Returns whether pairs, channels and columns fit a pass of this sample.
bool IsPass(const MinePassJob& job) {
  const codecs::RotaryPairs& pairs = job.pairs;
  if (job.turns.size() != pairs.Count() ||
      uint64_t{pairs.first} + pairs.dims > job.sample.tile.k_dim) {
    return false;
  }
  for (uint32_t plane = 0; plane < PlanesOf(job) && !job.pass.columns.empty(); ++plane) {
    if (job.pass.channels[plane].size() != ChannelsOf(job, plane)) return false;
  }
  return std::ranges::all_of(job.pass.columns, [](const codecs::CodeColumn& column) {
    return std::abs(column.multiplier) <= codecs::kProfileMultiplierMax;
  });
}

Error CheckJob(const MinePassJob& job, const std::byte* buffer) {
  const codecs::TileShape& tile = job.sample.tile;
  if (tile.k_dim > kPassDimMax || tile.v_dim > kPassDimMax) return Error::kInvalidShape;
  if (const Error error = CheckSample(job.sample, buffer); error != Error::kOk) return error;
  const bool is_valid = !job.runs.empty() && std::ranges::all_of(job.runs, [&](const auto& run) {
    return IsRun(job.sample, run);
  }) && IsPass(job);
  return is_valid ? Error::kOk : Error::kInvalidShape;
}

uint32_t StripCount(const MinePassJob& job) {
  uint32_t count = 0;
  for (const SampleRun& run : job.runs) count += (run.tokens - 1) / kTaskTokensMax + 1;
  return count;
}

// Calls visit(range) for each range of columns.
template <typename Visit>
void ForEachRange(const MinePassJob& job, Visit visit) {
  const std::span<const codecs::CodeColumn> columns = job.pass.columns;
  for (uint32_t first = 0, end = 0; first < columns.size(); first = end) {
    const codecs::CodeColumn& column = columns[first];
    while (end < columns.size() && end - first < kColumnsOfRangeMax &&
           columns[end].is_strided == column.is_strided &&
           columns[end].has_shrink == column.has_shrink) {
      ++end;
    }
    visit(ColumnRange{first, end - first, column.is_strided, column.has_shrink});
  }
}

// The offsets of the parts of a plan, which are consecutive.
struct PlanParts {
  uint32_t strip_count = 0, range_count = 0;
  uint64_t planes = 0, tasks = 0, strips = 0, turns = 0, columns = 0, ranges = 0, channels[2] = {};
  uint64_t bytes = 0;
};

// REQUIRES: no run is empty.
PlanParts PartsOf(const MinePassJob& job) {
  PlanParts parts;
  parts.strip_count = StripCount(job);
  ForEachRange(job, [&](const ColumnRange&) { ++parts.range_count; });
  const auto take = [&parts](uint64_t bytes) {
    const uint64_t at = parts.bytes;
    parts.bytes += codecs::AlignSection(bytes);
    return at;
  };
  take(sizeof(MinePassHeader));
  parts.planes = take(sizeof(PlaneRecords));
  parts.tasks = take(uint64_t{HeadsOf(job.sample)} * sizeof(MinePassTask));
  parts.strips = take(uint64_t{parts.strip_count} * sizeof(SampleStrip));
  parts.turns = take(job.turns.size_bytes());
  parts.columns = take(job.pass.columns.size_bytes());
  parts.ranges = take(uint64_t{parts.range_count} * sizeof(ColumnRange));
  for (uint32_t plane = 0; plane < PlanesOf(job) && !job.pass.columns.empty(); ++plane) {
    parts.channels[plane] = take(job.pass.channels[plane].size_bytes());
  }
  return parts;
}

// Places the sums of the pass.
void PlaceSums(const MinePassJob& job, MinePassPlan* plan) {
  const auto take = [plan](uint64_t bytes) {
    const uint64_t at = plan->sums_bytes;
    plan->sums_bytes += codecs::AlignSection(bytes);
    return at;
  };
  const uint64_t heads = uint64_t{job.sample.layers} * job.sample.heads;
  take(sizeof(NormCounts));
  for (uint32_t plane = 0; plane < PlanesOf(job); ++plane) {
    PassPlane& sums = plan->sums[plane];
    if (job.pass.columns.empty()) {
      sums.moments_at =
          take(ChannelsOf(job, plane) * codecs::kSampleParts * sizeof(codecs::ExactMoments));
      sums.tokens_at = take(heads * sizeof(codecs::HeadTokens));
    } else {
      sums.codes_at = take(job.pass.columns.size() * sizeof(codecs::CodeCounts));
      sums.shrink_at = take(sizeof(codecs::ShrinkSums));
    }
  }
}

void WriteStrips(const MinePassJob& job, std::byte* to) {
  for (const SampleRun& run : job.runs) {
    for (uint32_t at = 0; at < run.tokens; at += kTaskTokensMax) {
      const uint32_t tokens = std::min(run.tokens - at, kTaskTokensMax);
      const SampleStrip strip{run.first_position + at, run.token_first + at,
                              static_cast<uint16_t>(tokens), static_cast<uint16_t>(run.part)};
      codecs::Store(to, strip);
      to += sizeof(strip);
    }
  }
}

TurningPairs PairsOf(const codecs::RotaryPairs& pairs) {
  TurningPairs turning{};
  turning.count = static_cast<uint16_t>(pairs.Count());
  if (turning.count == 0) return turning;
  turning.first = static_cast<uint16_t>(pairs.First(0));
  turning.step = pairs.kind == codecs::RopeKind::kInterleaved ? 2 : 1;
  turning.distance = static_cast<uint16_t>(pairs.Second(0) - pairs.First(0));
  return turning;
}

void WriteTasks(const MinePassJob& job, const PlanParts& parts, std::byte* to) {
  const codecs::ImageSpec spec = SpecOf(job.sample);
  const codecs::Tiling tiling = codecs::TilingOf(spec);
  for (uint32_t i = 0; i < HeadsOf(job.sample); ++i) {
    const codecs::TileArea area = tiling.AreaOf(i);
    MinePassTask task{};
    task.source = BaseOf(job.sample.view, spec.slice, area);
    task.plane = area.plane_first;
    task.number = uint32_t{area.slice.layer_first} * job.sample.heads + area.slice.head_first;
    task.channel_at = parts.channels[task.plane] +
                      uint64_t{task.number} * DimOf(job, task.plane) * sizeof(codecs::MinedChannel);
    codecs::Store(to + i * sizeof(task), task);
  }
}

template <typename Part>
void CopyPart(std::span<const Part> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

template <typename Part>
std::span<const Part> PartOf(std::span<const std::byte> sums, uint64_t at, uint64_t count) {
  return {reinterpret_cast<const Part*>(sums.data() + at), count};
}

}  // namespace

uint64_t MinePassPlanBytes(const MinePassJob& job) { return PartsOf(job).bytes; }

Error MakeMinePassPlan(const MinePassJob& job, std::span<std::byte> buffer, MinePassPlan* plan) {
  if (!IsAligned(buffer.data())) return Error::kInvalidShape;
  if (const Error error = CheckJob(job, buffer.data()); error != Error::kOk) return error;
  const PlanParts parts = PartsOf(job);
  if (parts.bytes > std::numeric_limits<uint32_t>::max()) return Error::kTooLarge;
  if (buffer.size() < parts.bytes) return Error::kTargetTooSmall;
  MinePassPlan made;
  made.bytes = static_cast<uint32_t>(parts.bytes);
  const PassList list = job.pass.columns.empty() ? PassList::kMoments : PassList::kCodes;
  uint32_t& count = made.counts[static_cast<size_t>(list)];
  count = HeadsOf(job.sample) * (list == PassList::kMoments ? 1 : parts.range_count);
  PlaceSums(job, &made);

  const codecs::ImageSpec spec = SpecOf(job.sample);
  PlaneRecords planes = RecordsOf(spec, spec.slice, job.sample.view, 0);
  planes[0].pairs = PairsOf(job.pairs);
  MinePassHeader header{};
  header.lists[static_cast<size_t>(list)] = {0, count};
  std::ranges::copy(made.sums, header.sums);
  header.planes_at = static_cast<uint32_t>(parts.planes);
  header.tasks_at = static_cast<uint32_t>(parts.tasks);
  header.strips_at = static_cast<uint32_t>(parts.strips);
  header.turns_at = static_cast<uint32_t>(parts.turns);
  header.columns_at = static_cast<uint32_t>(parts.columns);
  header.ranges_at = static_cast<uint32_t>(parts.ranges);
  header.strip_count = parts.strip_count;
  header.range_count = parts.range_count;
  std::byte* const to = buffer.data();
  codecs::Store(to, header);
  codecs::Store(to + parts.planes, planes);
  WriteTasks(job, parts, to + parts.tasks);
  WriteStrips(job, to + parts.strips);
  CopyPart(job.turns, to + parts.turns);
  CopyPart(job.pass.columns, to + parts.columns);
  std::byte* range_at = to + parts.ranges;
  ForEachRange(job, [&](const ColumnRange& range) {
    codecs::Store(range_at, range);
    range_at += sizeof(range);
  });
  for (uint32_t plane = 0; plane < PlanesOf(job) && !job.pass.columns.empty(); ++plane) {
    CopyPart(job.pass.channels[plane], to + parts.channels[plane]);
  }
  *plan = made;
  return Error::kOk;
}

codecs::PassSums SumsOf(const MinePassJob& job, const MinePassPlan& plan,
                        std::span<const std::byte> sums) {
  const auto norms = codecs::Load<NormCounts>(sums.data());
  codecs::PassSums made;
  made.norms = norms.norms;
  made.small_norms = norms.small_norms;
  for (uint32_t i = 0; i < PlanesOf(job); ++i) {
    const PassPlane& from = plan.sums[i];
    codecs::PassSums::Plane& to = made.planes[i];
    if (job.pass.columns.empty()) {
      to.moments = PartOf<codecs::ExactMoments>(sums, from.moments_at,
                                                ChannelsOf(job, i) * codecs::kSampleParts);
      to.tokens = PartOf<codecs::HeadTokens>(sums, from.tokens_at,
                                             uint64_t{job.sample.layers} * job.sample.heads);
    } else {
      to.codes = PartOf<codecs::CodeCounts>(sums, from.codes_at, job.pass.columns.size());
      to.shrink = codecs::Load<codecs::ShrinkSums>(sums.data() + from.shrink_at);
    }
  }
  return made;
}

}  // namespace cairn::kernels
