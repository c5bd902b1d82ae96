// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/paged_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/check.h"

namespace cairn::kernels {
namespace {

constexpr uint8_t kUntouched = 0xAB;
constexpr uint32_t kSparePages = 3;

}  // namespace

PagedCache::PagedCache(const codecs::ImageSpec& spec, const codecs::Slice& slice,
                       const CacheShape& shape, std::mt19937_64& random)
    : spec_(spec),
      slice_(slice),
      shape_(shape),
      plane_count_(codecs::PlaneCount(spec.tile.kind)),
      tokens_(codecs::TileRows(spec.tile.kind, spec.tokens)),
      entries_((shape.first_slot + tokens_ - 1) / shape.page_tokens + 1),
      page_count_(entries_ + kSparePages) {
  Stride(shape);
  const bool is_apart = shape.packing == Packing::kApart;
  for (uint32_t layer = 0; layer < slice.layer_count; ++layer) {
    for (uint32_t plane = 0; plane < plane_count_; ++plane) {
      if (plane == 0 || is_apart) {
        tensors_.push_back(std::make_unique<DeviceBytes>(layer_bytes_, true, shape.misalignment));
        std::memset(tensors_.back()->data(), kUntouched, layer_bytes_);
      }
      layers_[plane].push_back(tensors_.back()->data() + planes_[plane].offset);
      addresses_[plane].push_back(tensors_.back()->address() + planes_[plane].offset);
    }
  }
  table_ = std::make_unique<DeviceBytes>(entries_ * sizeof(int32_t), false);
  std::vector<int32_t> order(page_count_);
  std::iota(order.begin(), order.end(), 0);
  if (shape.has_table) std::ranges::shuffle(order, random);
  for (uint32_t i = 0; i < entries_; ++i) {
    const bool is_hole = shape.hole_every != 0 && i % shape.hole_every == 0;
    pages()[i] = is_hole ? -1 - static_cast<int32_t>(i % 3) : order[i];
  }
}

void PagedCache::Stride(const CacheShape& shape) {
  const uint64_t heads = slice_.head_count, page_tokens = shape.page_tokens;
  uint64_t both = 0;
  for (uint32_t i = 0; i < plane_count_; ++i) {
    const codecs::Plane plane = codecs::PlaneAt(spec_.tile.kind, i);
    planes_[i].row_bytes =
        codecs::PlaneDim(spec_.tile, plane) * codecs::ElementBytes(spec_.tile.dtype);
    both += planes_[i].row_bytes;
  }
  uint64_t offset = 0;
  for (uint32_t i = 0; i < plane_count_; ++i) {
    PlaneShape& plane = planes_[i];
    const bool is_in_rows = shape.packing == Packing::kInRows;
    const uint64_t step = is_in_rows ? both : plane.row_bytes;
    const uint64_t page = page_tokens * heads * step;
    plane.strides.token_stride = shape.order == HeadOrder::kNhd ? heads * step : step;
    plane.strides.head_stride = shape.order == HeadOrder::kNhd ? step : page_tokens * step;
    plane.strides.page_stride =
        shape.packing == Packing::kInPages ? page_tokens * heads * both : page;
    plane.offset = offset;
    if (is_in_rows) offset += plane.row_bytes;
    if (shape.packing == Packing::kInPages) offset += page;
    if (shape.packing == Packing::kPlanes) offset += page_count_ * page;
    layer_bytes_ = shape.packing == Packing::kApart
                       ? std::max(layer_bytes_, page_count_ * page)
                       : uint64_t{page_count_} * page_tokens * heads * both;
  }
}

PagedView PagedCache::view() const {
  PagedView view;
  PagedPlane* const planes[] = {&view.k, &view.v};
  for (uint32_t i = 0; i < plane_count_; ++i) {
    *planes[i] = planes_[i].strides;
    planes[i]->layers = addresses_[i];
    planes[i]->layer_bytes = layer_bytes_ - planes_[i].offset;
  }
  view.pages = shape_.has_table ? reinterpret_cast<const int32_t*>(table_->address()) : nullptr;
  view.page_entries = entries_;
  view.page_count = page_count_;
  view.page_tokens = shape_.page_tokens;
  view.first_slot = shape_.first_slot;
  return view;
}

std::byte* PagedCache::Row(uint32_t layer, uint32_t head, uint32_t plane, uint32_t token) {
  const uint32_t slot = shape_.first_slot + token;
  const int32_t page = pages()[slot / shape_.page_tokens];
  if (page < 0) return nullptr;
  const PagedPlane& strides = planes_[plane].strides;
  return layers_[plane][layer] + static_cast<uint64_t>(page) * strides.page_stride +
         slot % shape_.page_tokens * strides.token_stride + head * strides.head_stride;
}

void PagedCache::Fill(std::span<const std::byte> payload) {
  const std::byte* from = payload.data();
  for (uint32_t layer = 0; layer < slice_.layer_count; ++layer) {
    for (uint32_t head = 0; head < slice_.head_count; ++head) {
      for (uint32_t plane = 0; plane < plane_count_; ++plane) {
        for (uint32_t token = 0; token < tokens_; ++token, from += row_bytes(plane)) {
          std::memcpy(Row(layer, head, plane, token), from, row_bytes(plane));
        }
      }
    }
  }
}

std::string PagedCache::Compare(std::span<const std::byte> payload) {
  const std::byte* want = payload.data();
  for (uint32_t layer = 0; layer < slice_.layer_count; ++layer) {
    for (uint32_t head = 0; head < slice_.head_count; ++head) {
      for (uint32_t plane = 0; plane < plane_count_; ++plane) {
        for (uint32_t token = 0; token < tokens_; ++token, want += row_bytes(plane)) {
          std::byte* row = Row(layer, head, plane, token);
          if (row == nullptr) continue;
          if (std::memcmp(row, want, row_bytes(plane)) != 0) {
            return "layer " + std::to_string(layer) + " head " + std::to_string(head) + " plane " +
                   std::to_string(plane) + " token " + std::to_string(token) + " differs";
          }
          std::memset(row, kUntouched, row_bytes(plane));
        }
      }
    }
  }
  CAIRN_CHECK(want == payload.data() + payload.size());
  for (const auto& tensor : tensors_) {
    const auto is_untouched = [](std::byte byte) { return byte == std::byte{kUntouched}; };
    if (!std::ranges::all_of(tensor->span(), is_untouched)) return "other bytes are touched";
  }
  return {};
}

}  // namespace cairn::kernels
