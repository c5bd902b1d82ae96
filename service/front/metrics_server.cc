// SPDX-License-Identifier: Apache-2.0
#include "service/front/metrics_server.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {
namespace {

class Families final : public MetricSink {
 public:
  void AddCounter(std::string_view name, std::string_view help, MetricLabels labels,
                  uint64_t value) override {
    Add(name, help, prometheus::MetricType::Counter, labels).counter.value =
        static_cast<double>(value);
  }
  void AddGauge(std::string_view name, std::string_view help, MetricLabels labels,
                double value) override {
    Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
  }
  void AddHistogram(std::string_view name, std::string_view help, MetricLabels labels,
                    const HistogramSnapshot& value) override {
    auto& histogram = Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
    histogram.sample_count = value.count;
    histogram.sample_sum = value.sum;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < value.counts.size(); ++i) {
      cumulative += value.counts[i];
      prometheus::ClientMetric::Bucket bucket;
      bucket.cumulative_count = cumulative;
      bucket.upper_bound =
          i < value.bounds.size() ? value.bounds[i] : std::numeric_limits<double>::infinity();
      histogram.bucket.push_back(bucket);
    }
  }
  const std::vector<prometheus::MetricFamily>& all() const { return families_; }

 private:
  prometheus::ClientMetric& Add(std::string_view name, std::string_view help,
                                prometheus::MetricType type, MetricLabels labels) {
    const auto [position, is_new] = by_name_.emplace(std::string(name), families_.size());
    if (is_new) families_.push_back({std::string(name), std::string(help), type, {}});
    prometheus::MetricFamily& family = families_[position->second];
    CAIRN_CHECK(family.type == type, absl::StrCat(ToAbsl(name), " is of two kinds"));
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (const MetricLabel& label : labels) {
      metric.label.push_back({std::string(label.name), std::string(label.value)});
    }
    return metric;
  }

  std::vector<prometheus::MetricFamily> families_;
  absl::flat_hash_map<std::string, size_t> by_name_;
};

}  // namespace

std::string MetricsText(const std::function<void(MetricSink&)>& report) {
  Families families;
  report(families);
  return prometheus::TextSerializer().Serialize(families.all());
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const HostPort& address,
                                                                    Sources sources) {
  CAIRN_ASSIGN_OR_RETURN(auto http, HttpServer::Bind(address));
  auto server =
      std::unique_ptr<MetricsServer>(new MetricsServer(std::move(sources), std::move(http)));
  server->http_->Start([raw = server.get()](std::string_view path) { return raw->Respond(path); });
  return server;
}

HttpServer::Response MetricsServer::Respond(std::string_view path) const {
  if (path == "/healthz") return {.body = "ok\n"};
  if (path == "/readyz") {
    const absl::Status status = sources_.readiness();
    if (status.ok()) return {.body = absl::StrCat("ready\n", sources_.remarks())};
    return {.status = 503, .body = absl::StrCat(status.message(), "\n")};
  }
  if (path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
            .body = MetricsText([this](MetricSink& sink) {
              sources_.report(sink);
              http_->Report(sink);
            })};
  }
  return {.status = 404, .body = "there are /metrics, /healthz and /readyz\n"};
}

}  // namespace cairn
