// SPDX-License-Identifier: Apache-2.0
#include "service/data_metrics.h"

namespace cairn {
namespace {

constexpr std::array<std::string_view, kDataOpCount> kOpNames = {"hello", "get",     "put",
                                                                 "ping",  "goodbye", "other"};
// The codes of data-plane answers. Other codes are counted as internal.
constexpr std::pair<absl::StatusCode, std::string_view> kCodes[] = {
    {absl::StatusCode::kOk, "ok"},
    {absl::StatusCode::kInvalidArgument, "invalid_argument"},
    {absl::StatusCode::kDeadlineExceeded, "deadline_exceeded"},
    {absl::StatusCode::kNotFound, "not_found"},
    {absl::StatusCode::kPermissionDenied, "permission_denied"},
    {absl::StatusCode::kResourceExhausted, "resource_exhausted"},
    {absl::StatusCode::kFailedPrecondition, "failed_precondition"},
    {absl::StatusCode::kUnavailable, "unavailable"},
    {absl::StatusCode::kDataLoss, "data_loss"},
    {absl::StatusCode::kInternal, "internal"},
};

}  // namespace

DataOp OpOf(proto::FrameKind kind) {
  switch (kind) {
    case proto::FrameKind::kHello:
      return DataOp::kHello;
    case proto::FrameKind::kGet:
      return DataOp::kGet;
    case proto::FrameKind::kPut:
      return DataOp::kPut;
    case proto::FrameKind::kPing:
      return DataOp::kPing;
    case proto::FrameKind::kGoodbye:
      return DataOp::kGoodbye;
    default:
      return DataOp::kOther;
  }
}

void DataMetrics::Count(DataOp op, absl::StatusCode code, absl::Duration took) {
  static_assert(std::size(kCodes) == kCodeCount);
  size_t index = kCodeCount - 1;
  for (size_t i = 0; i < kCodeCount; ++i) {
    if (kCodes[i].first == code) index = i;
  }
  requests_[static_cast<size_t>(op)][index].Add();
  if (op == DataOp::kGet) get_seconds_.Observe(took);
  if (op == DataOp::kPut) put_seconds_.Observe(took);
}

void DataMetrics::Report(MetricSink& sink) const {
  const MetricLabel transport{"transport", transport_};
  const MetricLabels only_transport(&transport, 1);
  for (size_t op = 0; op < kDataOpCount; ++op) {
    for (size_t code = 0; code < kCodeCount; ++code) {
      const MetricLabel labels[] = {transport, {"op", kOpNames[op]}, {"code", kCodes[code].second}};
      sink.AddCounter("cairn_data_requests_total", "Completed data-plane requests, by outcome.",
                      labels, requests_[op][code].Value());
    }
  }
  const auto seconds = [&](std::string_view op, const Histogram& histogram) {
    const MetricLabel labels[] = {transport, {"op", op}};
    sink.AddHistogram(
        "cairn_data_request_seconds",
        "Time from the arrival of a request until its reply is sent and its memory free.", labels,
        histogram.Snapshot());
  };
  seconds("get", get_seconds_);
  seconds("put", put_seconds_);
  sink.AddGauge("cairn_data_requests_in_flight", "Requests that have arrived and are not complete.",
                only_transport, static_cast<double>(in_flight.Value()));
  sink.AddGauge("cairn_data_peers", "Data-plane connections that have sent a frame.",
                only_transport, static_cast<double>(peers.Value()));
  sink.AddCounter("cairn_data_bad_frames_total", "Frames that broke the protocol.", only_transport,
                  bad_frames.Value());
  sink.AddCounter("cairn_data_bad_tickets_total", "Frames whose ticket names no open session.",
                  only_transport, bad_tickets.Value());
  sink.AddCounter("cairn_data_peers_broken_total",
                  "Peers disconnected because they broke the protocol.", only_transport,
                  peers_broken.Value());
}

}  // namespace cairn
