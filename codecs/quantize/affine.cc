// SPDX-License-Identifier: Apache-2.0
#include "codecs/quantize/affine.h"

#include "codecs/backend_step.h"
#include "codecs/reference/reference.h"

namespace cairn::codecs {

bool QuantizeAffine(const Backend& backend, const TileSource& source, TilePlan* plan,
                    uint8_t* codes, uint8_t* params) {
  uint64_t* rows = plan->rows.data();
  if (source.geometry.IsPerChannel()) {
    return StepOf<&Backend::encode_per_channel>(backend)(plan->affine, source.bytes, rows, codes,
                                                         params);
  }
  StepOf<&Backend::encode_per_token>(backend)(plan->affine, source.bytes, rows, codes, params);
  return true;
}

bool QuantizePredicted(const Backend& /*backend*/, const TileSource& source, TilePlan* plan,
                       uint8_t* codes, uint8_t* params) {
  const reference::Prediction prediction{plan->patterns, plan->pattern.data(),
                                         plan->predicted.data()};
  uint64_t* rows = plan->rows.data();
  if (source.geometry.IsPerChannel()) {
    return reference::EncodePerChannel(plan->affine, prediction, source.bytes, rows, codes, params);
  }
  reference::EncodePerToken(plan->affine, prediction, source.bytes, rows, codes, params);
  return true;
}

}  // namespace cairn::codecs
