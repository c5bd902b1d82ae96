// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plays a trace against a space, at one daemon or at several. Each request matches its chain, gets
// the matched blocks, checks every byte, and puts the missing blocks, parents first. All calls of a
// request go to one daemon.
//
// Thread-safety: for one caller. Play() starts threads, which end before it returns.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/cli/replay/content.h"
#include "client/cli/replay/tally.h"
#include "client/cli/replay/trace.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"

namespace cairn::replay {

struct PlayOptions {
  double rate = 0;                             // 2: twice the speed of the trace; 0: no pauses
  uint32_t parallel = 1;                       // requests at once; 1 keeps the trace's order
  absl::Duration deadline = absl::Seconds(2);  // for each call
  bool is_lossless = true;                     // for Content::WrongBytes()
  bool sends_hints = false;                    // the hints of TurnEndsOf()
};

// A daemon, and the replay's space there.
struct PlayTarget {
  Client* client = nullptr;
  Space* space = nullptr;
};

struct PlayProgress {
  uint64_t requests = 0, blocks = 0, hit_blocks = 0, wrong_bytes = 0;
};

class Player {
 public:
  // Borrows the trace, the ceiling, the content, and what the targets point to. `routes` has the
  // index of a target for each request. REQUIRES: the space has one fingerprint at all targets.
  Player(const Trace& trace, const Ceiling& ceiling, const Content& content,
         std::vector<PlayTarget> targets, std::vector<uint32_t> routes, const PlayOptions& options);

  // Plays the whole trace. Returns one tally per target. Calls that fail do not stop the play.
  // Calls `watch` about once a second. If `watch` returns false, starts no more requests and
  // finishes the running ones.
  std::vector<Tally> Play(absl::FunctionRef<bool(const PlayProgress& progress)> watch);

 private:
  // The state of one of the threads that play requests.
  struct Hand {
    std::vector<Tally> tallies;  // one per target
    uint32_t target = 0;         // of the current request
    std::vector<BlockKey> keys;
    std::vector<std::byte> got, expected;

    Tally& tally() { return tallies[target]; }
  };

  void Run(Hand& hand);
  void PlayRequest(size_t index, Hand& hand);
  // Gets blocks. Returns the number that were received.
  uint32_t Fetch(const TraceRequest& request, size_t window, Hand& hand);
  bool GetBlock(const TraceRequest& request, uint32_t at, const MatchResult& match, size_t window,
                Hand& hand);
  void PutFrom(uint32_t first, size_t window, Hand& hand);
  // Retains the prefix that the session continues later, or demotes the session's own blocks.
  void SendHint(size_t index, Hand& hand);
  // Waits until the request is due. Returns false if the play was stopped meanwhile.
  bool WaitFor(const TraceRequest& request, Hand& hand);
  size_t WindowOf(size_t index) const;
  Space& SpaceOf(const Hand& hand) const { return *targets_[hand.target].space; }

  const Trace& trace_;
  const Ceiling& ceiling_;
  const Content& content_;
  const std::vector<PlayTarget> targets_;
  const std::vector<uint32_t> routes_;  // by request
  const PlayOptions options_;
  const std::vector<TurnEnd> turn_ends_;  // empty: no hints are sent
  const size_t window_count_;
  absl::Time started_;
  Mutex mutex_;
  CondVar changed_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // number of running threads
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> requests_{0}, blocks_{0}, hit_blocks_{0}, wrong_bytes_{0};
};

}  // namespace cairn::replay
