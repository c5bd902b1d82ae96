// SPDX-License-Identifier: Apache-2.0
#pragma once
// Offsets of the parts of a batch that do not depend on its images, equal in host and device
// memory. Private to service/codec/.
//
// Thread-safety: Immutable.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/encode_plan.h"
#include "kernels/plan.h"
#include "kernels/records.h"

namespace cairn {

struct BatchLayout {
  static constexpr uint64_t kAlignment = 256;
  static constexpr uint64_t Rounded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static constexpr uint64_t kStatus = 0;
  static constexpr uint64_t kResults = kAlignment * 4;
  // A plan has at most as many tiles as tasks.
  static constexpr uint64_t kPlan =
      kResults + uint64_t{kernels::kPlanTasksMax} * sizeof(kernels::TileResult);
  static_assert(kernels::kPlanImagesMax * sizeof(uint32_t) <= kResults && kPlan % kAlignment == 0);
  static uint64_t PlanBytes() {
    return Rounded(std::max(kernels::EncodePlanBytesMax(), kernels::DecodePlanBytesMax()));
  }
  static uint64_t Bytes() { return kPlan + PlanBytes(); }
};

}  // namespace cairn
