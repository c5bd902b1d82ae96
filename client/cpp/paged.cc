// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/paged.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn {
namespace {

// Computes a token's offset from the plane's start. Returns false on overflow.
bool OffsetOf(const PagedPlane& plane, int64_t block, int64_t token, int64_t* offset) {
  const int64_t run = plane.tokens_per_run;
  int64_t whole = 0, in_run = 0;
  bool overflows = __builtin_mul_overflow(block, plane.block_stride, offset);
  overflows |= __builtin_mul_overflow(run == 0 ? 0 : token / run, plane.token_run_stride, &whole);
  overflows |= __builtin_mul_overflow(run == 0 ? token : token % run, plane.token_stride, &in_run);
  overflows |= __builtin_add_overflow(*offset, whole, offset);
  overflows |= __builtin_add_overflow(*offset, in_run, offset);
  return !overflows && *offset != codecs::kTokenSkipped;
}

PlaneView ViewOf(const PagedPlane& plane, std::span<const int64_t> offsets) {
  PlaneView view;
  view.data = plane.data;
  view.layers = plane.layers;
  view.token_offsets = offsets;
  view.stride_bytes = {plane.layer_stride, plane.head_stride, 0, plane.dim_stride};
  view.dims_per_run = plane.dims_per_run;
  view.run_stride_bytes = plane.dim_run_stride;
  view.first_byte = plane.first_byte;
  view.end_byte = plane.end_byte;
  return view;
}

}  // namespace

absl::Status CheckTable(uint32_t tokens_per_block, int64_t block_count, uint32_t tokens,
                        std::span<const int64_t> table, ViewUse use) {
  if (tokens_per_block == 0 || tokens % tokens_per_block != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cache.tokens_per_block is ", tokens_per_block,
                                                   ", expected a divisor of the space's ", tokens));
  }
  const size_t blocks = tokens / tokens_per_block;
  if (table.empty() || table.size() % blocks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the table has ", table.size(), " blocks, expected a multiple of ", blocks));
  }
  const int64_t least = use == ViewUse::kTarget ? kBlockSkipped : 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] < least || table[i] >= block_count) {
      return absl::InvalidArgumentError(absl::StrCat("blocks[", i, "] is ", table[i], ", expected ",
                                                     least, " to ", block_count - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PagedViews> PagedViews::Make(const PagedCache& cache, const ViewShape& shape,
                                            std::span<const int64_t> table, ViewUse use) {
  const codecs::GroupKind kind = shape.tile.kind;
  if (kind != codecs::GroupKind::kKv && kind != codecs::GroupKind::kLatent) {
    return absl::InvalidArgumentError(
        "only KV and latents have paged caches; the group has neither");
  }
  CAIRN_RETURN_IF_ERROR(
      CheckTable(cache.tokens_per_block, cache.block_count, shape.tokens, table, use));
  const size_t blocks = shape.tokens / cache.tokens_per_block;
  const uint32_t planes = codecs::PlaneCount(kind);
  PagedViews result;
  result.offsets_.reserve(table.size() * cache.tokens_per_block * planes);
  for (size_t first = 0; first < table.size(); first += blocks) {
    PlaneViews& views = result.views_.emplace_back();
    for (uint32_t i = 0; i < planes; ++i) {
      const PagedPlane& plane = i == 0 ? cache.k : cache.v;
      const int64_t* begin = result.offsets_.data() + result.offsets_.size();
      for (const int64_t block : table.subspan(first, blocks)) {
        for (uint32_t token = 0; token < cache.tokens_per_block; ++token) {
          int64_t offset = codecs::kTokenSkipped;
          if (block != kBlockSkipped && !OffsetOf(plane, block, token, &offset)) {
            return absl::InvalidArgumentError(
                "the strides of the cache lead out of the address space");
          }
          result.offsets_.push_back(offset);
        }
      }
      (i == 0 ? views.k : views.v) = ViewOf(plane, {begin, shape.tokens});
    }
    CAIRN_RETURN_IF_ERROR(Validate(shape, views, use));
  }
  return result;
}

}  // namespace cairn
