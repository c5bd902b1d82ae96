// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/device_side_objects.h"

#include <algorithm>

#include "base/status.h"
#include "codecs/image/settle.h"

namespace cairn {

absl::StatusOr<const DeviceSideObjects::OnDevice*> DeviceSideObjects::Of(
    const codecs::ImageSpec& image, absl::Time deadline) {
  if (!image.recipe.NeedsSideObject() || image.side_object_count == 0) {
    return nullptr;
  }
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  const auto known = known_.find(image.side_objects[0]);
  SideObjectHandle held = known == known_.end() ? nullptr : known->second.held;
  if (held == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(held, space_.GetSideObject(image.side_objects[0], left));
  }
  if (codecs::CheckCodableWith(image, InputsOf(held)) != codecs::Error::kOk) {
    return absl::NotFoundError("the image is not one of the side object that it names");
  }
  return Upload(held);
}

absl::StatusOr<const DeviceSideObjects::OnDevice*> DeviceSideObjects::Upload(
    const SideObjectHandle& held) {
  auto [place, is_new] = known_.try_emplace(held->id());
  OnDevice& kept = place->second;
  kept.used = ++uses_;
  if (is_new) {
    const uint64_t bytes = held->bytes().size();
    kept.held = held;
    kept.memory = DeviceMemory(calls_.device(), /*is_host=*/false, bytes);
    kept.staged = DeviceMemory(calls_.device(), /*is_host=*/true, bytes);
    if (kept.memory.data() == nullptr || kept.staged.data() == nullptr) {
      known_.erase(place);
      return calls_.NoRoom("side objects", 2 * bytes);
    }
    std::ranges::copy(held->bytes(), kept.staged.data());
    CAIRN_RETURN_IF_ERROR(calls_.Took(
        calls_.device().CopyIn(kept.memory.data(), kept.staged.data(), bytes, calls_.stream())));
  }
  return &kept;
}

void DeviceSideObjects::DropStaged() {
  for (auto& [id, kept] : known_) {
    kept.staged = DeviceMemory();
  }
}

void DeviceSideObjects::DropOldest(size_t count_max) {
  while (known_.size() > count_max) {
    known_.erase(
        std::ranges::min_element(known_, {}, [](const auto& entry) { return entry.second.used; }));
  }
}

}  // namespace cairn
