// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much of a prefix each other member of the cluster has: facts for routers.
//
// Each member is asked, and answers from its own index. What the homes of blocks say
// (service/peer/locator.h) only chooses whom to ask in a large cluster. A question fetches nothing
// and leases nothing. It does not change how the members are asked for blocks afterwards.
//
// Thread-safety: Thread-safe. Stop() is Owned by one thread. The threads are named "peer-where-N".

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/cpp/space.h"
#include "proto/block_key.h"
#include "service/members/members.h"
#include "service/peer/locator.h"
#include "service/peer/peer_reader.h"
#include "service/remote/workers.h"
#include "service/spaces.h"

namespace cairn {

class Whereabouts {
 public:
  struct Parts {  // borrowed
    const Members& members;
    Locator& locator;
    PeerReader& reader;
  };
  explicit Whereabouts(const Parts& parts);
  ~Whereabouts() { Stop(); }

  // Later questions are refused. Those that run end within their deadlines. Idempotent.
  void Stop() { workers_.Stop(); }

  // Without this daemon. Members that have more blocks come first.
  using Done = std::function<void(absl::StatusOr<WhereResult>)>;
  // Asks other members. `done` runs once: in this call if nobody is asked, otherwise on a thread of
  // this object, soon after `deadline` (on the clock of MonotonicNow()) at the latest. A member
  // that does not answer is in the result, with the reason. Errors: ResourceExhausted.
  void Find(const SpaceEntry& space, std::vector<proto::BlockKey> keys, absl::Time deadline,
            Done done);

 private:
  struct Asking;

  // Admit() returns false if too many questions are open. Leave() must follow if it does not.
  bool Admit();
  void Leave();
  // Those of `others` that are asked. The first ones have the deepest blocks, as the homes say.
  std::vector<Member> Choose(const std::vector<Member>& others, const Asking& asking);
  void Ask(const std::shared_ptr<Asking>& asking, const std::vector<Member>& others);
  void AskOne(Asking& asking, const Member& member);
  // Adds an answer. The last one of a question ends it.
  void Add(Asking& asking, MemberBlocks answer);

  const Parts parts_;
  Mutex mutex_;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // questions
  Workers workers_;
};

}  // namespace cairn
