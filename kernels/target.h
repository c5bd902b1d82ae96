// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view of an engine's KV on a device. It covers paged caches: NHD and HND, K and V in one tensor
// or in two, one tensor per layer, pages of any number of tokens. A contiguous array is one page,
// or has no page table.
//
// Thread-safety: values. They borrow all memory. Addresses are device addresses, which the host
// never reads.

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::kernels {

// K, V or a latent of a slice. Elements of a token's row are adjacent. Element d of a layer, head
// and token is at
//
//   layers[layer] + page * page_stride + (slot mod page_tokens) * token_stride
//     + head * head_stride + d * element bytes
struct PagedPlane {
  std::span<std::byte* const> layers;  // one per layer of the slice
  uint64_t layer_bytes = 0;            // size of each layer's memory; nothing outside is accessed
  uint64_t page_stride = 0, token_stride = 0, head_stride = 0;  // bytes
};

// Token t of the block has slot first_slot + t, which lies in page pages[slot / page_tokens].
// `pages` is one row of an engine's block table. The device checks page tables. A page at or above
// page_count is an error of the whole image. A negative page is a hole, whose tokens are skipped.
struct PagedView {
  PagedPlane k, v;                 // v: only for kinds with two planes
  const int32_t* pages = nullptr;  // on the device, at a multiple of 4; null: the identity
  uint32_t page_entries = 0;       // entries of the page table; unused without one
  uint32_t page_count = 0;         // number of pages in the cache
  uint32_t page_tokens = 0;        // at least 1
  uint32_t first_slot = 0;

  [[nodiscard]] const PagedPlane& At(uint32_t plane) const { return plane == 0 ? k : v; }
};

}  // namespace cairn::kernels
