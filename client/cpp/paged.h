// SPDX-License-Identifier: Apache-2.0
#pragma once
// An engine's paged KV cache, described once, and the views of store blocks in it.
//
// Thread-safety: values and pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/view.h"

namespace cairn {

// K, V or a latent of all blocks of an engine. Element [layer, block, token, head, dim] is at
//
//   (layers.empty() ? data + layer * layer_stride : layers[layer]) + block * block_stride
//     + head * head_stride
//     + token / tokens_per_run * token_run_stride + token % tokens_per_run * token_stride
//     + dim / dims_per_run * dim_run_stride + dim % dims_per_run * dim_stride
//
// If a run length is 0, there is only one run: the term is then token * token_stride, or dim *
// dim_stride. All strides are in bytes. The formula also fits caches that are tiled for matrix
// units, and a transposed K. layer and head are counted within the slice to move. Borrows
// everything.
struct PagedPlane {
  std::byte* data = nullptr;             // a put only reads it
  std::span<std::byte* const> layers{};  // one per layer of the slice, or empty
  int64_t layer_stride = 0, block_stride = 0, head_stride = 0;
  uint32_t tokens_per_run = 0, dims_per_run = 0;
  int64_t token_run_stride = 0, token_stride = 0;
  int64_t dim_run_stride = 0, dim_stride = 0;
  // The memory that contains all elements: bytes [first_byte, end_byte) from `data`, or from each
  // pointer of `layers`. If both are 0, the memory is unknown, and only overflow of addresses is
  // checked.
  int64_t first_byte = 0, end_byte = 0;
};

struct PagedCache {
  uint32_t tokens_per_block = 0;  // size of the engine's blocks
  int64_t block_count = 0;        // number of blocks in the engine
  PagedPlane k, v;                // if the kind has one plane, it is `k`
};

// An entry of a block table that makes a get skip the tokens of the block.
inline constexpr int64_t kBlockSkipped = -1;

// Checks a table of an engine's blocks. Each entry must be one of the engine's `block_count` blocks
// of `tokens_per_block` tokens. All entries together must make a whole number of store blocks of
// `tokens` tokens. Errors: InvalidArgument, naming the field and the place in the table.
absl::Status CheckTable(uint32_t tokens_per_block, int64_t block_count, uint32_t tokens,
                        std::span<const int64_t> table, ViewUse use);

// Views of consecutive store blocks in a paged cache. Owns the token offsets that the views borrow.
class PagedViews {
 public:
  // `table` lists the engine's blocks of the first store block, then those of the second, and so
  // on. Each store block has shape.tokens / cache.tokens_per_block entries. Errors:
  // InvalidArgument, naming the field and the place in the table.
  static absl::StatusOr<PagedViews> Make(const PagedCache& cache, const ViewShape& shape,
                                         std::span<const int64_t> table, ViewUse use);

  size_t count() const { return views_.size(); }
  const PlaneViews& At(size_t index) const { return views_[index]; }

 private:
  std::vector<int64_t> offsets_;  // offsets of K, then of V, for each block; never resized
  std::vector<PlaneViews> views_;
};

}  // namespace cairn
