// SPDX-License-Identifier: Apache-2.0
#pragma once
// The predict stage "none": values are coded as they are.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

inline constexpr PredictStage kPredictNone = nullptr;

}  // namespace cairn::codecs
