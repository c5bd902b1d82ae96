// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every server counts about itself, under the same names whatever the transport.
//
// Thread-safety: Thread-safe.

#include <string_view>

#include "base/metric.h"

namespace cairn::transport {

struct TransportMetrics {
  Gauge peers;               // connections open
  Gauge arrivals_held;       // arrived, not yet received or refused
  Gauge regions_bytes;       // client memory mapped (local)
  Gauge quarantine_bytes;    // lent to transfers that are Breaking
  Counter received_bytes;    // payload, put direction, complete transfers only
  Counter sent_bytes;        // payload, get direction, complete transfers only
  Gauge loans, loan_bytes;   // in force (local)
  Counter lent, lent_bytes;  // loans that peers were told of, and their payload
  Counter loans_late;        // taken back at their deadline
  Counter peers_opened;
  Counter peers_refused;  // over a limit, or a hello that was none
  Gauge newcomers;        // connections whose hello is due (local)
  // Of peers_refused (local): no hello came in time; there were too many newcomers, and a newer one
  // took the place; what came was no hello, or with memory that is refused; peers_max are there.
  Counter newcomers_late, newcomers_gave_way, newcomers_bad_hello, newcomers_too_many;
  Counter peers_broken;        // by us: a bad message, a full socket, a deadline, Break()
  Counter arrivals_refused;    // over arrivals_held_max or the payload limit
  Counter deadlines_exceeded;  // transfers
  Counter late_transfers;      // done after they had been answered for
  Counter stuck_transfers;     // memory never given back

  // Every name once, with the label transport=`transport`.
  void Report(MetricSink& sink, std::string_view transport) const;
};

}  // namespace cairn::transport
