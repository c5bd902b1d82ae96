// SPDX-License-Identifier: Apache-2.0
#pragma once
// The backend tables of the ISA files, on x86-64, and the checks whether this CPU supports them.
// The checks are not in the ISA files, because code compiled for an ISA must not run before the
// check.

#include "codecs/backend/backend.h"

namespace cairn::codecs {

extern const Backend kAvx2Backend;
extern const Backend kAvx512Backend;

bool SupportsAvx2();
bool SupportsAvx512();

}  // namespace cairn::codecs
