// SPDX-License-Identifier: Apache-2.0
#include "service/index/image_kinds.h"

#include "base/check.h"

namespace cairn {

uint32_t ImageKinds::Ref(const ImageKind& kind, SideObjectRef& side_object) {
  const auto [found, is_new] = numbers_.try_emplace(kind, 0);
  if (is_new) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(entries_.size()));
      entries_.emplace_back();
    }
    found->second = free_.back();
    free_.pop_back();
    Entry& entry = entries_[found->second];
    entry.kind = kind;
    entry.side_object = std::move(side_object);
  }
  ++entries_[found->second].image_count;
  return found->second;
}

void ImageKinds::Unref(uint32_t number) {
  Entry& entry = entries_[number];
  CAIRN_CHECK(entry.image_count > 0);
  if (--entry.image_count > 0) {
    return;
  }
  entry.side_object.Reset();
  numbers_.erase(entry.kind);
  free_.push_back(number);
}

uint64_t ImageKinds::bytes() const {
  return entries_.capacity() * sizeof(Entry) + free_.capacity() * sizeof(uint32_t) +
         numbers_.capacity() * (sizeof(ImageKind) + sizeof(uint64_t) + 1);
}

}  // namespace cairn
