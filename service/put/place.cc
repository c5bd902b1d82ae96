// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/status.h"
#include "service/put/steps.h"
#include "service/step_timer.h"

namespace cairn {

absl::StatusOr<Placed> Place(PutContext& context, Encoded encoded) {
  const StepTimer timer(context.path_->seconds(PutPath::Step::kPlace));
  if (!encoded.is_placed) {
    CAIRN_RETURN_IF_ERROR(context.path_->host.Place(encoded.image));
  }
  return Placed{.image = std::move(encoded.image),
                .recipe = encoded.recipe,
                .side_object = std::move(encoded.side_object),
                .is_encode_pending = encoded.is_encode_pending};
}

}  // namespace cairn
