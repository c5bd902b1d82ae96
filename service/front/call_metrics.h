// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts the unary calls of a gRPC service. Thread-safety: Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/metric.h"

namespace cairn {

enum class Call : uint8_t {
  kOpenSpace,
  kMatch,
  kRelease,
  kContains,
  kExplain,
  kWhere,
  kRetain,
  kDemote,
  kPrefetch,
  kDelete,
  kInvalidate,
  kAbout,
  kStats,
  kPutSideObject,
  kGetSideObject,
  kListSideObjects,
  kListSpaces,
  kListBlocks,
  kVerify,
  kSetPolicy,
  kListTiers,
  kSetDevice,
  kDrain,
  kListMembers,
  kHello,
  kAnnounce,
  kLocate,
  kOffer,
  kProfiles,
  kTellPolicies,
  kHealthCheck,
};
inline constexpr size_t kCallCount = 31;

class CallMetrics {
 public:
  // Counts the calls of one service, which are the calls from `first` to `last`.
  CallMetrics(Call first, Call last) : first_(first), last_(last) {}

  void Count(Call call, const absl::Status& status) {
    Counts& counts = counts_[static_cast<size_t>(call)];
    (status.ok() ? counts.answered : counts.refused).Add();
  }
  void Report(MetricSink& sink) const;

 private:
  struct Counts {
    Counter answered, refused;
  };
  const Call first_, last_;
  std::array<Counts, kCallCount> counts_;
};

}  // namespace cairn
