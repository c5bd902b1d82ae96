// SPDX-License-Identifier: Apache-2.0
#pragma once
// Announces the blocks of this daemon to their homes: does what AnnouncePlan decides.
//
// Thread-safety: Start() and Stop() are Owned by one thread. The others are Thread-safe. The thread
// is named "announcer". It waits for no home: its calls have a deadline, and run while it goes on.
// While no home lacks anything, it sleeps until a block changes.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "service/members/members.h"
#include "service/peer/announced.h"
#include "service/peer/block_feed.h"
#include "service/peer/peer_channels.h"

namespace cairn {

class Announcer {
 public:
  // Must outlive the object.
  struct Parts {
    const Members& members;
    PeerChannels& channels;
    Announced& announced;  // to this daemon, which is a home, too
    BlockFeed& blocks;
    std::string daemon_version;
  };
  explicit Announcer(Parts parts) : parts_(std::move(parts)) {}
  ~Announcer() { Stop(); }

  void Start();
  void Stop();  // idempotent
  // Looks at the view now.
  void Wake() { parts_.blocks.Wake(); }

  void Report(MetricSink& sink) const;

 private:
  class Loop;

  const Parts parts_;
  std::atomic<bool> is_stopping_{false};
  Gauge lag_us_, resets_;
  std::thread thread_;
};

}  // namespace cairn
