// SPDX-License-Identifier: Apache-2.0
#include "codecs/mine/strip_values.h"

#include <algorithm>

#include "codecs/backend/reference/reference.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {

void StripValues::FindRotations(uint64_t first_position) {
  if (rotations_at_ == first_position) return;
  rotations_at_ = first_position;
  rotations_.resize(turns_.size() * kStripTokens);
  for (size_t i = 0; i < rotations_.size(); ++i) {
    rotations_[i] = RotationAt(turns_[i % turns_.size()], first_position + i / turns_.size());
  }
}

void StripValues::RemoveRopeAt(uint32_t token, float* values) const {
  const Rotation* rotations = rotations_.data() + size_t{token} * pairs_.Count();
  for (uint32_t i = 0; i < pairs_.Count(); ++i) {
    float& first = values[pairs_.First(i)];
    float& second = values[pairs_.Second(i)];
    const Pair turned = RemoveRope({first, second}, rotations[i]);
    first = turned.first;
    second = turned.second;
  }
}

void StripValues::LoadTokens(const StripShape& shape, const MinedStrip& strip, bool is_strided) {
  float token_values[kProfileDimMax];
  for (uint32_t token = 0; token < strip.tokens; ++token) {
    const uint64_t position = strip.first_position + token;
    if (position < kTokensSkipped || (position % kFindStride == 0) != is_strided) continue;
    bool is_codable = true;
    for (uint32_t c = 0; c < shape.dim; ++c) {
      token_values[c] = reference::LoadElement(shape.dtype, U8(strip.source.data()),
                                               uint64_t{token} * shape.dim + c);
      is_codable &= !IsRowValue(token_values[c]);
    }
    if (!is_codable) continue;
    if (strip.plane == 0) RemoveRopeAt(token, token_values);
    for (uint32_t c = 0; c < shape.dim; ++c) {
      values_[size_t{c} * kStripTokens + count_] = token_values[c];
    }
    ++count_;
  }
}

void StripValues::Load(const StripShape& shape, const MinedStrip& strip, bool only_strided) {
  values_.resize(std::max(values_.size(), size_t{shape.dim} * kStripTokens));
  if (strip.plane == 0) FindRotations(strip.first_position);
  count_ = 0;
  LoadTokens(shape, strip, true);
  strided_count_ = count_;
  if (!only_strided) LoadTokens(shape, strip, false);
}

}  // namespace cairn::codecs
