// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/backend_step.h"
#include "codecs/stages/select/select.h"

namespace cairn::codecs {

void SelectNone(const Backend& backend, const TileSource& source, TilePlan* plan) {
  StepOf<&Backend::select_rows>(backend)(plan->affine, source.bytes, plan->rows.data());
}

}  // namespace cairn::codecs
