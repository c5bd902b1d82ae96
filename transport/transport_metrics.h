// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of a server, with the same names for all transports.
//
// Thread-safety: Thread-safe.

#include <string_view>

#include "base/metric.h"

namespace cairn::transport {

struct TransportMetrics {
  Gauge peers;               // open connections
  Gauge arrivals_held;       // arrivals that are neither received nor refused
  Gauge regions_bytes;       // client memory that is mapped (local)
  Gauge quarantine_bytes;    // memory of transfers that are Breaking
  Counter received_bytes;    // payload of complete puts
  Counter sent_bytes;        // payload of complete gets
  Counter batches;           // messages with several requests
  Gauge loans, loan_bytes;   // loans in force (local)
  Counter lent, lent_bytes;  // loans that were sent to peers, and their payload
  Counter lent_places;       // the places of loans that have several
  Counter loans_late;        // loans that ended at their deadline
  Counter peers_opened;
  Counter peers_refused;  // refused because of a limit, or without a valid hello
  Gauge newcomers;        // connections without a hello yet (local)
  // The reasons in peers_refused (local): no hello came in time; the connection was closed to make
  // room for a newer one; the hello or the memory with it was refused; there are peers_max
  // connections.
  Counter newcomers_late, newcomers_gave_way, newcomers_bad_hello, newcomers_too_many;
  Counter peers_broken;        // broken by the daemon: bad message, full socket, deadline, Break()
  Counter arrivals_refused;    // refused because of arrivals_held_max or the payload limit
  Counter deadlines_exceeded;  // transfers past their deadline
  Counter late_transfers;      // transfers that completed after they were answered
  Counter stuck_transfers;     // transfers whose memory was never returned

  // Reports every metric once, with the label transport=`transport`.
  void Report(MetricSink& sink, std::string_view transport) const;
};

}  // namespace cairn::transport
