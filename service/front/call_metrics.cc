// SPDX-License-Identifier: Apache-2.0
#include "service/front/call_metrics.h"

#include <string_view>

namespace cairn {
namespace {

constexpr std::array<std::string_view, kCallCount> kNames = {
    "OpenSpace",  "Match",         "Release",       "Contains",        "Explain",    "Where",
    "Retain",     "Demote",        "Prefetch",      "Delete",          "Invalidate", "About",
    "Stats",      "PutSideObject", "GetSideObject", "ListSideObjects", "ListSpaces", "ListBlocks",
    "Verify",     "SetPolicy",     "ListTiers",     "SetDevice",       "Drain",      "ListMembers",
    "Hello",      "Announce",      "Locate",        "Offer",           "Profiles",   "TellPolicies",
    "HealthCheck"};

}  // namespace

void CallMetrics::Report(MetricSink& sink) const {
  for (auto i = static_cast<size_t>(first_); i <= static_cast<size_t>(last_); ++i) {
    const auto add = [&](std::string_view outcome, const Counter& counter) {
      const MetricLabel labels[] = {{"call", kNames[i]}, {"outcome", outcome}};
      sink.AddCounter("cairn_control_calls_total",
                      "Completed gRPC calls: answered, or refused with an error.", labels,
                      counter.Value());
    };
    add("answered", counts_[i].answered);
    add("refused", counts_[i].refused);
  }
}

}  // namespace cairn
