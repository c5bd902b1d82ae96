// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures of a daemon, as its /metrics had them at one time. Immutable.

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
  // Of the http port at HOST:PORT. Unavailable when nobody answers there, DeadlineExceeded when it
  // does not in time.
  static absl::StatusOr<Scrape> Fetch(const std::string& address, absl::Time deadline);
  // Lines of Prometheus' text format. What is none is left out.
  static Scrape Parse(std::string_view text);

  // Over the series of that name whose labels hold all of `labels`, as in op="get". 0: there is
  // none.
  double Sum(std::string_view name, std::initializer_list<std::string_view> labels = {}) const;
  // The value of label `key` in some series of that name; empty: there is none.
  std::string LabelOf(std::string_view name, std::string_view key) const;

 private:
  std::multimap<std::string, std::pair<std::string, double>, std::less<>> series_;  // labels, value
};

}  // namespace cairn::cli
