// SPDX-License-Identifier: Apache-2.0
#include "transport/transport_metrics.h"

namespace cairn::transport {

void TransportMetrics::Report(MetricSink& sink, std::string_view transport) const {
  const MetricLabel labels[] = {{"transport", transport}};
  const auto gauge = [&](std::string_view name, std::string_view help, const Gauge& value) {
    sink.AddGauge(name, help, labels, static_cast<double>(value.Value()));
  };
  const auto counter = [&](std::string_view name, std::string_view help, const Counter& value) {
    sink.AddCounter(name, help, labels, value.Value());
  };
  gauge("cairn_transport_peers", "Open connections.", peers);
  gauge("cairn_transport_arrivals", "Payloads announced but neither moved nor refused yet.",
        arrivals_held);
  gauge("cairn_transport_region_bytes", "Client memory mapped.", regions_bytes);
  gauge("cairn_transport_quarantine_bytes", "Memory in use by transfers that are being broken.",
        quarantine_bytes);
  counter("cairn_transport_received_bytes_total", "Payload bytes received.", received_bytes);
  counter("cairn_transport_sent_bytes_total", "Payload bytes sent.", sent_bytes);
  counter("cairn_transport_batches_total", "Messages that brought several requests.", batches);
  gauge("cairn_transport_loans", "Loans in force: payloads that clients read where they lie.",
        loans);
  gauge("cairn_transport_loan_bytes", "Payload bytes of these.", loan_bytes);
  counter("cairn_transport_loans_total", "Replies whose payload was lent instead of sent.", lent);
  counter("cairn_transport_lent_bytes_total", "Payload bytes of these.", lent_bytes);
  counter("cairn_transport_lent_places_total",
          "Places of loans whose payload was lent apart from its header.", lent_places);
  counter("cairn_transport_loans_late_total", "Loans that were taken back at their deadline.",
          loans_late);
  counter("cairn_transport_peers_opened_total", "Connections accepted.", peers_opened);
  counter("cairn_transport_peers_refused_total", "Connections refused before their first request.",
          peers_refused);
  gauge("cairn_transport_newcomers", "Connections that have not sent their hello yet.", newcomers);
  const auto dropped = [&](std::string_view reason, const Counter& value) {
    const MetricLabel both[] = {{"transport", transport}, {"reason", reason}};
    sink.AddCounter("cairn_transport_newcomers_dropped_total",
                    "Connections that ended without a session, by reason.", both, value.Value());
  };
  dropped("late", newcomers_late);
  dropped("gave_way", newcomers_gave_way);
  dropped("bad_hello", newcomers_bad_hello);
  dropped("too_many", newcomers_too_many);
  counter("cairn_transport_peers_broken_total", "Connections that the daemon broke.", peers_broken);
  counter("cairn_transport_arrivals_refused_total",
          "Requests refused because of a limit of the lane.", arrivals_refused);
  counter("cairn_transport_deadlines_exceeded_total", "Transfers that exceeded their deadline.",
          deadlines_exceeded);
  counter("cairn_transport_late_transfers_total",
          "Transfers that ended after their request was answered.", late_transfers);
  counter("cairn_transport_stuck_transfers_total", "Transfers whose memory was never returned.",
          stuck_transfers);
}

}  // namespace cairn::transport
