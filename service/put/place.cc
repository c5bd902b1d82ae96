// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/metric.h"
#include "base/status.h"
#include "service/put/steps.h"

namespace cairn {

absl::StatusOr<Placed> Place(OwnedPut& put, Encoded encoded) {
  const StepTimer timer(put.path->seconds(PutPath::Step::kPlace));
  if (!encoded.is_placed) {
    const BlockName block = {put.put.space_id, put.put.key};
    CAIRN_RETURN_IF_ERROR(put.path->tiers.host().PlaceStaged(encoded.image, &block));
  }
  return Placed{.image = std::move(encoded.image),
                .recipe = encoded.recipe,
                .side_object = std::move(encoded.side_object),
                .is_encode_pending = encoded.is_encode_pending};
}

}  // namespace cairn
