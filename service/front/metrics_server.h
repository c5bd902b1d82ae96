// SPDX-License-Identifier: Apache-2.0
#pragma once
// Serves /metrics, /healthz and /readyz. The only user of prometheus-cpp.
//
//   /metrics   200, Prometheus text format: the current metrics of every component
//   /healthz   200 while the process runs
//   /readyz    200 while new work is accepted, else 503 with the reason (starting, draining)
//
// A 200 of /readyz may have remarks, one per line. They name problems that do not affect readiness.
//
// Thread-safety: Thread-safe.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "service/config_value.h"
#include "service/front/http_server.h"

namespace cairn {

// Returns the metrics that `report` adds to its sink, as Prometheus text. Families are in the order
// of their first use.
std::string MetricsText(const std::function<void(MetricSink&)>& report);

class MetricsServer {
 public:
  struct Sources {
    std::function<void(MetricSink&)> report;  // reports all components; runs on the http thread
    std::function<absl::Status()> readiness;  // OK if ready
    std::function<std::string()> remarks = [] { return std::string(); };
  };
  // Errors: those of HttpServer::Bind().
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const HostPort& address,
                                                              Sources sources);

  HostPort address() const { return http_->address(); }
  void Stop() { http_->Stop(); }

 private:
  MetricsServer(Sources sources, std::unique_ptr<HttpServer> http)
      : sources_(std::move(sources)), http_(std::move(http)) {}
  HttpServer::Response Respond(std::string_view path) const;

  const Sources sources_;
  const std::unique_ptr<HttpServer> http_;  // last: its thread uses the members above
};

}  // namespace cairn
