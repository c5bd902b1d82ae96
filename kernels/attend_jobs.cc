// SPDX-License-Identifier: Apache-2.0
#include "kernels/attend_jobs.h"

#include <limits>

#include "codecs/image/settle.h"
#include "codecs/pack/eight_bits.h"
#include "kernels/plan_planes.h"

namespace cairn::kernels {
namespace {

using codecs::Error;
using codecs::GroupKind;

constexpr uint32_t kQueriesMax = 4096;  // query heads of query tokens

Error CheckImage(const AttendJob& job, const AttendImage& image) {
  const codecs::ImageSpec& spec = image.prefix->spec();
  if (!WhyDecodeFirst(spec).empty()) return Error::kUnknownRecipe;
  if (const Error error = codecs::CheckCodableWith(spec, image.side); error != Error::kOk) {
    return error;
  }
  const bool is_placed =
      IsAligned(image.image) && (!spec.recipe.NeedsSideObject() || IsAligned(image.side_object));
  if (!(spec.tile == job.tile) || !is_placed) return Error::kInvalidShape;
  const codecs::Slice wanted = {job.layer, 1, job.head_first, job.head_count};
  return spec.slice.Contains(wanted) ? Error::kOk : Error::kInvalidSlice;
}

std::string_view WhyDecodeFirst(codecs::FormId form) {
  using codecs::FormId;
  switch (form) {
    case FormId::kRaw:
    case FormId::kAffine:
    case FormId::kPatterned:
    case FormId::kMixed:
    case FormId::kFp8:
    case FormId::kHot:
      return {};
    case FormId::kStrips:
    case FormId::kSteps:
      return "decode first: entropy-coded tiles cannot be attended to";
    case FormId::kKept:
      return "decode first: arkv:paper lacks tokens";
    default:
      return "decode first: nothing attends to this recipe";
  }
}

}  // namespace

uint32_t VDim(const AttendJob& job) {
  return job.tile.kind == GroupKind::kKv ? job.tile.v_dim : job.v_dim;
}
uint32_t RowsOf(const AttendJob& job) {
  return job.query_tokens * (job.query_heads / job.head_count);
}

// Returns a raw spec with the tail's layer and heads.
codecs::ImageSpec TailSpec(const AttendJob& job) {
  codecs::ImageSpec spec;
  spec.tile = job.tile;
  spec.slice = {job.layer, 1, job.head_first, job.head_count};
  spec.tokens = static_cast<uint16_t>(job.tail_tokens_max);
  return spec;
}

Error CheckAttend(const AttendJob& job) {
  const codecs::TileShape& tile = job.tile;
  const bool has_elements = tile.kind == GroupKind::kKv || tile.kind == GroupKind::kLatent;
  if (!has_elements || codecs::Validate(tile) != Error::kOk || codecs::IsFp8(tile.dtype) ||
      tile.k_dim > kAttendDimMax || VDim(job) == 0 || VDim(job) > kAttendDimMax ||
      (tile.kind == GroupKind::kLatent && VDim(job) > tile.k_dim)) {
    return Error::kInvalidShape;
  }
  if (job.head_count == 0 || job.query_heads == 0 || job.query_heads % job.head_count != 0 ||
      job.query_tokens == 0 || uint64_t{job.query_tokens} * job.query_heads > kQueriesMax) {
    return Error::kInvalidShape;
  }
  if (!(job.scale > 0) || !IsAligned(job.queries) || job.outputs == nullptr ||
      job.log_sums == nullptr || !IsWhole(job.outputs) || !IsWhole(job.log_sums) ||
      !IsWhole(job.tail_tokens)) {
    return Error::kInvalidShape;
  }
  for (const AttendImage& image : job.images) {
    if (const Error error = CheckImage(job, image); error != Error::kOk) return error;
  }
  if (job.tail_tokens_max == 0) return Error::kOk;
  if (job.tail_tokens_max > std::numeric_limits<uint16_t>::max()) return Error::kInvalidShape;
  const codecs::ImageSpec tail = TailSpec(job);
  return CheckView(tail, tail.slice, job.tail, job.queries);
}

std::string_view WhyDecodeFirst(const codecs::ImageSpec& spec) {
  if (codecs::IsFp8(spec.tile.dtype)) return "decode first: nothing attends to 8-bit floats";
  if (spec.domain != codecs::Domain::kAsWritten) {
    return "decode first: K before RoPE turns by each token's own position";
  }
  const codecs::RecipeTraits& traits = spec.recipe.Traits();
  const std::string_view why = WhyDecodeFirst(traits.k_form);
  return why.empty() ? WhyDecodeFirst(traits.v_form) : why;
}

}  // namespace cairn::kernels
