// SPDX-License-Identifier: Apache-2.0
#pragma once
// Offers the blocks of this daemon to other members once it drains: does what OfferPlan decides.
//
// A member is greeted first, on a connection of its own. With TLS, its certificate says which
// tenants it may see. A member that does not know the call, fails or is late is offered nothing
// more, and the second choice gets its blocks.
//
// Thread-safety: Thread-safe. Stop() is Owned by one thread. The thread is named "offers". It waits
// for no member past the deadline.

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "service/members/members.h"
#include "service/peer/offer_plan.h"
#include "service/peer/peer_channels.h"

namespace cairn {

// How many offered blocks had which outcome, on the side that offers ("given") or on the other one
// ("received").
void ReportOffers(MetricSink& sink, std::string_view side, std::string_view outcome,
                  const Counter& count);

class Offers {
 public:
  struct Parts {
    const Members& members;  // must outlive the object
    PeerDial dial;
    std::string daemon_version;
    // Called on the thread, once.
    std::function<OfferableBlocks()> collect;
    // Whether the member with that identity may see blocks of the tenant.
    std::function<bool(const PeerIdentity&, std::string_view tenant)> may_see;
    // Called when all is over, before is_over(): on the thread, or in Begin() without time left.
    std::function<void()> over;
  };
  struct Options {
    OfferPlan::Options plan = {};
    absl::Duration call_time = absl::Seconds(5);  // for an answer
    size_t calls_max = 16;                        // to different members at once
  };
  Offers(Parts parts, Options options) : parts_(std::move(parts)), options_(options) {}
  ~Offers() { Stop(); }

  // Begins to offer. It ends by itself, at the deadline (on the clock of MonotonicNow()) at the
  // latest. Does nothing if it has begun already, or after Stop().
  void Begin(absl::Time deadline);
  // It has begun and is over.
  bool is_over() const { return is_over_.load(std::memory_order_relaxed); }
  void Stop();  // cancels what is under way; idempotent

  void Report(MetricSink& sink) const;

 private:
  class Loop;

  void Run(absl::Time deadline);

  const Parts parts_;
  const Options options_;
  std::atomic<bool> is_over_{false}, is_stopping_{false};
  Counter taken_, had_, open_;
  Mutex mutex_;
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
