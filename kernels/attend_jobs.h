// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks attention jobs and computes the numbers that their plans need.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "codecs/types/error.h"
#include "kernels/attend_plan.h"

namespace cairn::kernels {

// Errors: those of MakeAttendPlan(). REQUIRES for the other functions: CheckAttend() is kOk.
codecs::Error CheckAttend(const AttendJob& job);

// Returns the number of channels of V.
[[nodiscard]] uint32_t VDim(const AttendJob& job);

// Returns the number of query rows of a KV head.
[[nodiscard]] uint32_t RowsOf(const AttendJob& job);

// Returns a spec of a raw image with the tail's layer and heads.
[[nodiscard]] codecs::ImageSpec TailSpec(const AttendJob& job);

}  // namespace cairn::kernels
