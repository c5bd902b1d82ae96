// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collects the metrics that a component reports, by name{label="value",…}.
//
//   MetricCapture metrics;
//   index.Report(metrics);
//   EXPECT_EQ(metrics.Value("cairn_index_blocks{tier=\"host\"}"), 3);
//
// Thread-safety: Thread-compatible.
#include <map>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/metric.h"
#include "base/text.h"

namespace cairn {

class MetricCapture final : public MetricSink {
 public:
  void AddCounter(std::string_view name, std::string_view, MetricLabels labels,
                  std::uint64_t value) override {
    values_[Series(name, labels)] += static_cast<double>(value);
  }
  void AddGauge(std::string_view name, std::string_view, MetricLabels labels,
                double value) override {
    values_[Series(name, labels)] += value;
  }
  // Stores a histogram as its count, and its sum as NAME_sum.
  void AddHistogram(std::string_view name, std::string_view, MetricLabels labels,
                    const HistogramSnapshot& value) override {
    values_[Series(name, labels)] += static_cast<double>(value.count);
    values_[Series(std::string(name) + "_sum", labels)] += value.sum;
  }

  bool Has(const std::string& series) const { return values_.count(series) != 0; }
  double Value(const std::string& series) const {
    const auto found = values_.find(series);
    CAIRN_CHECK(found != values_.end(), series);
    return found->second;
  }
  const std::map<std::string, double>& values() const { return values_; }

 private:
  static std::string Series(std::string_view name, MetricLabels labels) {
    std::string series(name);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      absl::StrAppend(&series, i == 0 ? "{" : ",", ToAbsl(labels[i].name), "=\"",
                      ToAbsl(labels[i].value), "\"");
    }
    return labels.empty() ? series : series + "}";
  }

  std::map<std::string, double> values_;
};

}  // namespace cairn
