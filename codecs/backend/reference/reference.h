// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops: what each operation of codecs/backend/backend.h means. They are written to be
// read, and every other backend is tested against them. Nothing allocates; encoding a strip of
// `cairn` takes 300 KiB of stack, one of `cairn-hot` 600 KiB.

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

// Writes element `index` of a strip: its exponent, and what the strip has of it besides.
void JoinElement(const StripJob& job, uint64_t index, uint32_t exponent);

}  // namespace cairn::codecs::reference
