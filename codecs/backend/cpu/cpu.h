// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tables of the x86-64 backends, and functions that check whether this CPU supports them. These
// checks are not in the files that are compiled for an ISA, because code of those files must not
// run before the check.

#include "codecs/backend/backend.h"

namespace cairn::codecs {

extern const Backend kAvx2Backend;
extern const Backend kAvx512Backend;

bool SupportsAvx2();
bool SupportsAvx512();

}  // namespace cairn::codecs
