// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of a server, with the same names for all transports.
//
// Thread-safety: Thread-safe.

#include <string_view>

#include "base/metric.h"

namespace cairn::transport {

struct TransportMetrics {
  Gauge peers;               // connections open
  Gauge arrivals_held;       // arrived, neither received nor refused
  Gauge regions_bytes;       // client memory mapped (local)
  Gauge quarantine_bytes;    // lent to transfers that are Breaking
  Counter received_bytes;    // payload, put direction, complete transfers only
  Counter sent_bytes;        // payload, get direction, complete transfers only
  Counter batches;           // messages with several requests
  Gauge loans, loan_bytes;   // in force (local)
  Counter lent, lent_bytes;  // loans that were sent to peers, and their payload
  Counter loans_late;        // loans that ended at their deadline
  Counter peers_opened;
  Counter peers_refused;  // because of a limit, or without a valid hello
  Gauge newcomers;        // connections without a hello yet (local)
  // The reasons in peers_refused (local): no hello came in time; a newer connection took the place
  // of this one, because there were too many; the hello or the memory with it was refused; there
  // are peers_max connections.
  Counter newcomers_late, newcomers_gave_way, newcomers_bad_hello, newcomers_too_many;
  Counter peers_broken;        // broken by us: bad message, full socket, deadline, Break()
  Counter arrivals_refused;    // because of arrivals_held_max or the payload limit
  Counter deadlines_exceeded;  // transfers past their deadline
  Counter late_transfers;      // transfers that completed after they were answered
  Counter stuck_transfers;     // transfers whose memory was never returned

  // Reports every metric once, with the label transport=`transport`.
  void Report(MetricSink& sink, std::string_view transport) const;
};

}  // namespace cairn::transport
