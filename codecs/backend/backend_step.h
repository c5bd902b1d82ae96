// SPDX-License-Identifier: Apache-2.0
#pragma once
// A backend's step, or the reference's where the backend has none.

#include "codecs/backend/backends.h"

namespace cairn::codecs {

// StepOf<&Backend::select_rows>(backend)(tile, source, rows);
template <auto kStep>
[[nodiscard]] auto StepOf(const Backend& backend) {
  return backend.*kStep != nullptr ? backend.*kStep : ReferenceBackend().*kStep;
}

}  // namespace cairn::codecs
