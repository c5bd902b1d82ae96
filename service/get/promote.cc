// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/check.h"
#include "service/get/steps.h"
#include "service/step_timer.h"

namespace cairn {

absl::StatusOr<Promoted> Promote(GetContext& context, Found found) {
  const StepTimer timer(context.path.seconds(GetPath::Step::kPromote));
  for (const Pin& pin : found.pins) {
    // The one tier there is can be sent from.
    CAIRN_CHECK(pin.facts().tier == TierId::kHost);
  }
  return Promoted{.pins = std::move(found.pins)};
}

}  // namespace cairn
