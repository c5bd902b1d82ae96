// SPDX-License-Identifier: Apache-2.0
#include "service/put/statistics.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {
namespace {

uint64_t BytesOf(proto::Statistic kind, const codecs::ImageSpec& spec) {
  return proto::CountOf(kind, spec.tile, spec.slice, spec.tokens) * sizeof(float);
}

// Checks the values. Token scores may have any value; an invalid number counts as unknown.
absl::Status CheckValues(proto::Statistic kind, const codecs::ImageSpec& spec,
                         std::span<const float> values) {
  if (kind == proto::Statistic::kTokenScores) {
    return absl::OkStatus();
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0) {
      continue;
    }
    const size_t head = i / spec.tile.k_dim;
    return absl::InvalidArgumentError(
        absl::StrCat(proto::Name(kind), ": ", values[i], " at layer ",
                     spec.slice.layer_first + head / spec.slice.head_count, ", head ",
                     spec.slice.head_first + head % spec.slice.head_count, ", channel ",
                     i % spec.tile.k_dim, ": finite and not negative"));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t StatisticsBytes(proto::StatisticSet kinds, const codecs::ImageSpec& spec) {
  uint64_t bytes = 0;
  for (const proto::Statistic kind : proto::kStatistics) {
    bytes += kinds.Has(kind) ? BytesOf(kind, spec) : 0;
  }
  return bytes;
}

absl::StatusOr<Statistics> ReadStatistics(proto::StatisticSet kinds, const codecs::ImageSpec& spec,
                                          std::span<const std::byte> bytes) {
  CAIRN_CHECK(bytes.size() == StatisticsBytes(kinds, spec));
  Statistics statistics;
  for (const proto::Statistic kind : proto::kStatistics) {
    if (!kinds.Has(kind)) {
      continue;
    }
    const std::span<const std::byte> given = bytes.first(BytesOf(kind, spec));
    bytes = bytes.subspan(given.size());
    std::vector<float>& values = statistics.of(kind);
    values.resize(given.size() / sizeof(float));
    std::memcpy(values.data(), given.data(), given.size());
    CAIRN_RETURN_IF_ERROR(CheckValues(kind, spec, values));
  }
  return statistics;
}

bool AreCodedWith(proto::StatisticSet kinds, const codecs::Recipe& recipe) {
  for (const proto::Statistic kind : proto::kStatistics) {
    if (kinds.Has(kind) && proto::IsCodedWith(recipe, kind)) {
      return true;
    }
  }
  return false;
}

}  // namespace cairn
