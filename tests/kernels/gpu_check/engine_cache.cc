// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/gpu_check/engine_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/check.h"

namespace cairn::kernels {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kPlanes = 2;

}  // namespace

Room MakeRoom(size_t bytes) {
  Room room(device::Allocate(bytes, true));
  CAIRN_CHECK(room != nullptr, device::Finish());
  return room;
}

Room MakeRoom(std::span<const std::byte> content) {
  Room room = MakeRoom(content.size());
  device::CopyIn(room.get(), content.data(), content.size());
  return room;
}

EngineCache::EngineCache(const Scale& scale)
    : scale_(scale),
      pages_of_image_((scale.tokens + kPageTokens - 1) / kPageTokens),
      layer_bytes_(uint64_t{scale.images} * pages_of_image_ * kPageTokens * scale.heads *
                   RowBytes()),
      pages_(size_t{scale.images} * pages_of_image_) {
  std::iota(pages_.begin(), pages_.end(), 0);
  std::mt19937_64 random(1);
  std::ranges::shuffle(pages_, random);
  table_ = MakeRoom(std::as_bytes(std::span(pages_)));
  for (uint32_t layer = 0; layer < scale.layers; ++layer) {
    for (std::vector<std::byte*>& layers : layers_) {
      tensors_.push_back(MakeRoom(layer_bytes_));
      layers.push_back(tensors_.back().get());
    }
  }
}

PagedView EngineCache::ViewOf(uint32_t image) const {
  PagedView view;
  PagedPlane* const planes[] = {&view.k, &view.v};
  for (uint32_t i = 0; i < kPlanes; ++i) {
    *planes[i] = {.layers = layers_[i],
                  .layer_bytes = layer_bytes_,
                  .page_stride = kPageTokens * scale_.heads * RowBytes(),
                  .token_stride = scale_.heads * RowBytes(),
                  .head_stride = RowBytes()};
  }
  view.pages = reinterpret_cast<const int32_t*>(table_.get()) + image * pages_of_image_;
  view.page_entries = pages_of_image_;
  view.page_count = static_cast<uint32_t>(pages_.size());
  view.page_tokens = kPageTokens;
  return view;
}

uint64_t EngineCache::PlaceOf(uint32_t image, uint32_t head, uint32_t token) const {
  const auto page = static_cast<uint64_t>(pages_[image * pages_of_image_ + token / kPageTokens]);
  return ((page * kPageTokens + token % kPageTokens) * scale_.heads + head) * RowBytes();
}

uint64_t EngineCache::SourceOf(uint32_t layer, uint32_t head, uint32_t plane,
                               uint32_t token) const {
  const uint64_t tile = (uint64_t{layer} * scale_.heads + head) * kPlanes + plane;
  return (tile * scale_.tokens + token) * RowBytes();
}

void EngineCache::Fill(std::span<const std::byte> payload) {
  std::vector<std::byte> tensor(layer_bytes_);
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    for (uint32_t image = 0; image < scale_.images; ++image) {
      for (uint32_t head = 0; head < scale_.heads; ++head) {
        for (uint32_t token = 0; token < scale_.tokens; ++token) {
          std::memcpy(tensor.data() + PlaceOf(image, head, token),
                      payload.data() + SourceOf(i / kPlanes, head, i % kPlanes, token), RowBytes());
        }
      }
    }
    device::CopyIn(tensors_[i].get(), tensor.data(), tensor.size());
  }
}

void EngineCache::Clear() {
  for (const Room& tensor : tensors_) device::Fill(tensor.get(), 0xAB, layer_bytes_);
}

std::vector<std::byte> EngineCache::PayloadOf(uint32_t image) const {
  const uint64_t token_bytes = scale_.heads * RowBytes();
  std::vector<std::byte> payload(SourceOf(scale_.layers, 0, 0, 0));
  std::vector<std::byte> page(kPageTokens * token_bytes);
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    for (uint32_t token = 0; token < scale_.tokens; ++token) {
      if (token % kPageTokens == 0) {
        device::CopyOut(page.data(), tensors_[i].get() + PlaceOf(image, 0, token), page.size());
      }
      for (uint32_t head = 0; head < scale_.heads; ++head) {
        std::memcpy(payload.data() + SourceOf(i / kPlanes, head, i % kPlanes, token),
                    page.data() + token % kPageTokens * token_bytes + head * RowBytes(),
                    RowBytes());
      }
    }
  }
  return payload;
}

}  // namespace cairn::kernels
