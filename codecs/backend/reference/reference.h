// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reference loops, which define each operation of codecs/backend/backend.h. They are written
// for clarity. Tests compare every other backend with them. Nothing allocates. Encoding a strip
// takes 300 KiB of stack for `cairn`, and 600 KiB for `cairn-hot`.

#include "codecs/backend/backend.h"
#include "codecs/numbers/math.h"
#include "codecs/pack/elements.h"

namespace cairn::codecs::reference {

using codecs::IsRow;
using codecs::LoadElement;
using codecs::LoadParams;
using codecs::LoadPatternValue;
using codecs::StoreElement;
using codecs::StoreParams;

#define CAIRN_OPERATION(member, function) operations::function function;
CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)
#undef CAIRN_OPERATION

// Writes element `index` of a strip: joins its exponent with the bits from the strip's other parts.
void JoinElement(const StripJob& job, uint64_t index, uint32_t exponent);

}  // namespace cairn::codecs::reference
