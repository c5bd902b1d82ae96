// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tries a backend on a few small tiles before it is trusted with blocks: a compiler, a CPU or a
// hypervisor that gets one instruction wrong costs speed then, and no bytes.
//
// Thread-safety: Thread-safe. Allocates; takes a few milliseconds.

#include "codecs/backend/backend.h"

namespace cairn::codecs {

// Returns the name of the first operation of `backend` whose bytes are not the reference's; null
// where all are. REQUIRES: this CPU runs the backend.
[[nodiscard]] const char* FailedOperation(const Backend& backend);

}  // namespace cairn::codecs
