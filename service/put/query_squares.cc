// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "service/put/steps.h"

namespace cairn {

uint64_t QuerySquareBytes(const codecs::ImageSpec& spec) {
  if (spec.tile.dtype == codecs::DType::kBytes) {
    return 0;
  }
  return uint64_t{spec.slice.layer_count} * spec.slice.head_count * spec.tile.k_dim * sizeof(float);
}

absl::StatusOr<std::vector<float>> ReadQuerySquares(const codecs::ImageSpec& spec,
                                                    std::span<const std::byte> bytes) {
  CAIRN_CHECK(bytes.size() == QuerySquareBytes(spec));
  std::vector<float> squares(bytes.size() / sizeof(float));
  std::memcpy(squares.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < squares.size(); ++i) {
    if (std::isfinite(squares[i]) && squares[i] >= 0) {
      continue;
    }
    const size_t head = i / spec.tile.k_dim;
    return absl::InvalidArgumentError(
        absl::StrCat("query_squares: ", squares[i], " at layer ",
                     spec.slice.layer_first + head / spec.slice.head_count, ", head ",
                     spec.slice.head_first + head % spec.slice.head_count, ", channel ",
                     i % spec.tile.k_dim, ": finite and not negative"));
  }
  return squares;
}

}  // namespace cairn
