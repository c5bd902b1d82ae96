// SPDX-License-Identifier: Apache-2.0
#pragma once
// The predict stage "none": nothing is subtracted from values before they are coded.

#include "codecs/stages/stages.h"

namespace cairn::codecs {

inline constexpr PredictStage kPredictNone = nullptr;

}  // namespace cairn::codecs
