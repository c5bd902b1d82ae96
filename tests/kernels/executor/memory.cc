// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/executor/memory.h"

#include <utility>

namespace cairn::kernels::emulated {
namespace {

constexpr uintptr_t kWordBytes = 4;

}  // namespace

size_t GlobalMemory::Extent::WordAt(const uint8_t* at) const {
  return reinterpret_cast<uintptr_t>(at) / kWordBytes -
         reinterpret_cast<uintptr_t>(begin) / kWordBytes;
}

void GlobalMemory::Add(const uint8_t* begin, size_t bytes, bool is_writable) {
  Extent extent{begin, begin + bytes, nullptr};
  if (is_writable) extent.stored_by = std::make_unique<uint32_t[]>(extent.WordAt(extent.end) + 1);
  extents_.push_back(std::move(extent));
}

void GlobalMemory::Remove(const uint8_t* begin) {
  std::erase_if(extents_, [&](const Extent& extent) { return extent.begin == begin; });
}

const char* GlobalMemory::Touch(const void* at, size_t bytes, Access access) {
  const auto* first = static_cast<const uint8_t*>(at);
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) return "that are misaligned";
  for (size_t i = 0; i < extents_.size(); ++i) {
    const Extent& extent = extents_[i];
    if (first < extent.begin || first + bytes > extent.end) continue;
    uint32_t* const stored_by = extent.stored_by.get();
    if (access == Access::kStore && stored_by == nullptr) return "to store where only loads may go";
    if (access != Access::kLoad && stored_by != nullptr) {
      for (size_t word = extent.WordAt(first); word <= extent.WordAt(first + bytes - 1); ++word) {
        if (access == Access::kStore) {
          stored_by[word] = launch_;
        } else if (stored_by[word] == launch_) {
          return "by LoadGlobal() that the launch has stored";
        }
      }
    }
    if (i != 0) std::swap(extents_[i], extents_[i / 2]);  // the next is likely near
    return nullptr;
  }
  return "that are not the kernel's";
}

}  // namespace cairn::kernels::emulated
