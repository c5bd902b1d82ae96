// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tables of the ISA files, compiled in where the compiler targets x86-64, and what each needs
// of the CPU. The questions live outside the ISA files: code compiled for an ISA must not run to
// ask for it.

#include "codecs/backend/backend.h"

namespace cairn::codecs {

extern const Backend kAvx2Backend;
extern const Backend kAvx512Backend;

bool SupportsAvx2();
bool SupportsAvx512();

}  // namespace cairn::codecs
