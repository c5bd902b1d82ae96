// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/quantize/affine.h"

#include "codecs/backend/backend_operation.h"

namespace cairn::codecs {

bool QuantizeAffine(const Backend& backend, const TileSource& source, TilePlan* plan,
                    uint8_t* codes, uint8_t* params) {
  uint64_t* rows = plan->rows.data();
  if (source.geometry.IsPerChannel()) {
    return OperationOf<&Backend::encode_per_channel>(backend)(plan->affine, source.bytes, rows,
                                                              codes, params);
  }
  OperationOf<&Backend::encode_per_token>(backend)(plan->affine, source.bytes, rows, codes, params);
  return true;
}

bool QuantizePredicted(const Backend& backend, const TileSource& source, TilePlan* plan,
                       uint8_t* codes, uint8_t* params) {
  const Prediction prediction{plan->patterns, plan->pattern.data(), plan->predicted.data(),
                              plan->Spans()};
  plan->affine.prediction = &prediction;
  const bool is_coded = QuantizeAffine(backend, source, plan, codes, params);
  plan->affine.prediction = nullptr;
  return is_coded;
}

void DecodeAffine(const Backend& backend, const AffineTile& tile, const TileGeometry& geometry,
                  const TileLayout& layout, const uint8_t* content, uint8_t* target) {
  const auto step = geometry.IsPerChannel() ? OperationOf<&Backend::decode_per_channel>(backend)
                                            : OperationOf<&Backend::decode_per_token>(backend);
  step(tile, content, content + layout.params.offset, target);
}

}  // namespace cairn::codecs
