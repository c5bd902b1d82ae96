// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"
#include "service/get/steps.h"
#include "service/step_timer.h"

namespace cairn {

absl::StatusOr<Found> Lookup(GetContext& context) {
  const StepTimer timer(context.path.seconds(GetPath::Step::kLookup));
  Found found = {.pins = context.path.index.Lookup({context.get.space_id, context.get.key},
                                                   context.get.group, context.slice)};
  if (found.pins.empty()) {
    // A code without a text: a miss does not allocate.
    return absl::Status(absl::StatusCode::kNotFound, "");
  }
  return found;
}

}  // namespace cairn
