// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/predict/pattern.h"

#include "codecs/backend/backend_operation.h"

namespace cairn::codecs {
namespace {

void Predict(const Backend& backend, const TileSource& source, bool is_nearest, TilePlan* plan) {
  const TileGeometry& geometry = source.geometry;
  const bool is_v = !geometry.IsPerChannel();
  plan->patterns = source.bank->PatternsOf(geometry.PlaneIndex(), source.at);
  const uint32_t group = is_v ? plan->affine.group : 0;
  plan->has_spans =
      is_v && geometry.rows * ((geometry.dim + group - 1) / group) <= plan->spans.size();
  const PatternedTile tile{geometry.rows,           geometry.dim, group,
                           geometry.dtype,          is_nearest,   plan->patterns,
                           source.bank->patterns(), plan->Spans()};
  OperationOf<&Backend::choose_patterns>(backend)(tile, source.bytes, plan->rows.data(),
                                                  plan->pattern.data(), plan->predicted.data());
}

}  // namespace

void PredictMinMax(const Backend& backend, const TileSource& source, TilePlan* plan) {
  Predict(backend, source, false, plan);
}

void PredictNearest(const Backend& backend, const TileSource& source, TilePlan* plan) {
  Predict(backend, source, true, plan);
}

}  // namespace cairn::codecs
