// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of a daemon, as /metrics returned them at one time. Immutable.

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cairn::cli {

class Scrape {
 public:
  // Fetches /metrics from the http port at HOST:PORT. Errors: Unavailable (nobody answers),
  // DeadlineExceeded (no answer in time).
  static absl::StatusOr<Scrape> Fetch(const std::string& address, absl::Time deadline);
  // Parses lines in Prometheus' text format. Ignores other lines.
  static Scrape Parse(std::string_view text);

  // Returns the sum of the series with that name whose labels include all of `labels`, such as
  // op="get". Returns 0 if there are none.
  double Sum(std::string_view name, std::initializer_list<std::string_view> labels = {}) const;
  // Returns the value of label `key` in a series with that name. Empty: there is none.
  std::string LabelOf(std::string_view name, std::string_view key) const;

 private:
  std::multimap<std::string, std::pair<std::string, double>, std::less<>> series_;  // labels, value
};

}  // namespace cairn::cli
