// SPDX-License-Identifier: Apache-2.0
#pragma once
// Properties that most images of a space share: group, slice, recipe, side object. Images of blocks
// at rest refer to them by number. An entry lives while an image refers to it.
//
// Thread-safety: Thread-compatible (the index's lock).
// Locks:         index < side objects.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "service/index/side_objects.h"

namespace cairn {

struct ImageKind {
  uint64_t space_id = 0;
  uint64_t source_bytes = 0;
  const SideObject* side_object = nullptr;
  codecs::Recipe recipe;
  codecs::Slice slice;
  uint16_t tokens = 0;
  uint16_t group = 0;

  friend bool operator==(const ImageKind&, const ImageKind&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ImageKind& kind) {  // of the most distinctive fields
    return H::combine(std::move(state), kind.space_id, kind.source_bytes, kind.side_object,
                      kind.recipe.id, kind.recipe.bits, kind.recipe.multiplier,
                      kind.slice.layer_first, kind.slice.head_first, kind.group);
  }
};

class ImageKinds {
 public:
  // Adds an image of that kind. Takes the reference to the kind's side object if it is the first.
  uint32_t Ref(const ImageKind& kind, SideObjectRef& side_object);
  // Removes an image of it.
  void Unref(uint32_t number);

  // REQUIRES, like the next: an image is of that kind.
  const ImageKind& At(uint32_t number) const { return entries_[number].kind; }
  const SideObjectRef& SideObjectOf(uint32_t number) const { return entries_[number].side_object; }

  uint64_t count() const { return numbers_.size(); }
  uint64_t bytes() const;

 private:
  struct Entry {
    ImageKind kind;
    SideObjectRef side_object;
    uint64_t image_count = 0;
  };
  std::vector<Entry> entries_;  // by number
  std::vector<uint32_t> free_;
  absl::flat_hash_map<ImageKind, uint32_t> numbers_;
};

}  // namespace cairn
