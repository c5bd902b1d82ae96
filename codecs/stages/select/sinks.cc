// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/select/select.h"

namespace cairn::codecs {

void SelectSinks(const Backend& backend, const TileSource& source, TilePlan* plan) {
  SelectNone(backend, source, plan);
  if (source.first_position == 0) plan->AddRow(0);
}

}  // namespace cairn::codecs
