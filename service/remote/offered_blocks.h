// SPDX-License-Identifier: Apache-2.0
#pragma once
// Takes the blocks that members offer before they stop (service/peer/offers.h).
//
// A block that is not here, and for which there is room, is leased by the member and fetched like
// one that a client asks for (remote_blocks.h): checked as a put is, and in one read if a client
// wants it at the same time. It is then a block like any other.
//
// Room is what the host tier has free, and a share of it (kOfferedPercentMax) that may be evicted
// for offered blocks.
//
// Thread-safety: Thread-safe. Stop() is Owned by one thread. The thread is named "peer-offer-0": it
// takes one offer at a time. It waits for the network until the deadline of the offer.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "service/index/block_index.h"
#include "service/limits.h"
#include "service/members/view.h"
#include "service/peer/offer.h"
#include "service/peer/peer_reader.h"
#include "service/remote/remote_blocks.h"
#include "service/remote/workers.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/host_tier.h"

namespace cairn {

// How many more bytes may be stored for offers. Thread-safety: Thread-compatible.
class OfferedRoom {
 public:
  // Returns whether there is room for an image, and counts it. What is evicted counts for
  // kOfferedUsedSeconds.
  bool Take(uint64_t bytes, uint64_t used_bytes, uint64_t capacity_bytes, absl::Time now);
  // The images that were counted are stored, or failed: used_bytes has them from now on.
  void Settle() { coming_ = 0; }

 private:
  uint64_t coming_ = 0, evicted_ = 0;
  absl::Time since_ = absl::InfinitePast();
};

class OfferedBlocks {
 public:
  struct Parts {  // borrowed
    Sessions& sessions;
    Spaces& spaces;
    BlockIndex& index;
    const HostTier& host;
    PeerReader& reader;
    RemoteBlocks& remote;
    const Clock& clock;
  };
  explicit OfferedBlocks(const Parts& parts);
  ~OfferedBlocks() { Stop(); }

  // Ends what is under way, and refuses later offers. Idempotent.
  void Stop();

  using Answers = absl::StatusOr<std::vector<OfferAnswer>>;
  using Done = std::function<void(Answers)>;
  // `done` runs once: in this call after an error, otherwise on the thread, soon after `deadline`
  // (on the clock of MonotonicNow()) at the latest. `from` offers with `identity`, which must be
  // allowed to use the tenant. Errors: Unavailable (this daemon drains), ResourceExhausted (too
  // many offers wait), those of Sessions::Open(), Spaces::Open() and PeerReader::Match().
  void Take(const Member& from, const PeerIdentity& identity, BlockOffer offer, absl::Time deadline,
            Done done);

  void Report(MetricSink& sink) const;

 private:
  struct Taking;  // of one offer
  struct Round;   // of images that are read at once

  Answers Run(const Member& from, const PeerIdentity& identity, const BlockOffer& offer,
              absl::Time deadline);
  // Answers for the blocks that are here, and for those without room. Returns the others.
  std::vector<size_t> Choose(Taking& taking);
  // Leases the wanted blocks at the member, and reads them. Returns the number that it had.
  absl::StatusOr<size_t> Read(Taking& taking, std::span<const size_t> wanted);
  void Fetch(Taking& taking, const RemoteRun& run);
  std::vector<bool> Have(const Taking& taking) const;

  const Parts parts_;
  std::atomic<bool> is_stopping_{false};
  OfferedRoom room_;                             // used on the thread only
  absl::Time next_read_ = absl::InfinitePast();  // likewise
  Counter taken_, had_, declined_, failed_;
  Workers workers_;
};

}  // namespace cairn
