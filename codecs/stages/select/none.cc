// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/backend_operation.h"
#include "codecs/stages/select/select.h"

namespace cairn::codecs {

void SelectNone(const Backend& backend, const TileSource& source, TilePlan* plan) {
  OperationOf<&Backend::select_rows>(backend)(plan->affine, source.bytes, plan->rows.data());
}

}  // namespace cairn::codecs
