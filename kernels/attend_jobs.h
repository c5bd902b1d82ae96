// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks attention jobs and computes what their plans need to know.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/types/error.h"
#include "kernels/attend_plan.h"

namespace cairn::kernels {

// Errors as MakeAttendPlan(); the other functions require that there are none.
codecs::Error CheckAttend(const AttendJob& job);

// Channels of V.
[[nodiscard]] uint32_t VDim(const AttendJob& job);

// Query rows of a KV head.
[[nodiscard]] uint32_t RowsOf(const AttendJob& job);

// A spec of what the tail is: its layer and heads, raw.
[[nodiscard]] codecs::ImageSpec TailSpec(const AttendJob& job);

}  // namespace cairn::kernels
