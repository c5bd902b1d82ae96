// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects an operation of a backend, or the reference's if the backend has none of its own.

#include "codecs/backend/backends.h"

namespace cairn::codecs {

// Example: OperationOf<&Backend::select_rows>(backend)(tile, source, rows).
template <auto kOperation>
[[nodiscard]] auto OperationOf(const Backend& backend) {
  return backend.*kOperation != nullptr ? backend.*kOperation : ReferenceBackend().*kOperation;
}

}  // namespace cairn::codecs
