// SPDX-License-Identifier: Apache-2.0
#pragma once
// Returns an operation of a backend. If the backend does not implement it, returns the reference's.

#include "codecs/backend/backends.h"

namespace cairn::codecs {

// Example: OperationOf<&Backend::select_rows>(backend)(tile, source, rows).
template <auto kOperation>
[[nodiscard]] auto OperationOf(const Backend& backend) {
  return backend.*kOperation != nullptr ? backend.*kOperation : ReferenceBackend().*kOperation;
}

}  // namespace cairn::codecs
