// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the members that have blocks: asks the homes of their runs.
//
// The first home of a run is asked. The second one is asked, too, if the first one has not answered
// after 5 ms, has failed, or runs for less than a minute as far as this daemon knows: it may not
// have been told everything yet. What such a home says is enough after 20 ms.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/block_key.h"
#include "service/members/members.h"
#include "service/peer/located.h"
#include "service/peer/location_table.h"
#include "service/peer/peer_channels.h"

namespace cairn {

// If a cluster has more other members, the homes say whom to ask for blocks. Otherwise all are
// asked.
inline constexpr size_t kAllAskedMax = 4;

class Locator {
 public:
  struct Parts {  // must outlive the object
    const Members& members;
    PeerChannels& channels;
    const LocationTable& table;  // of this daemon, which is a home, too
    std::string daemon_version;
  };
  struct Options {
    absl::Duration patience = absl::Milliseconds(5);  // with the first home
    absl::Duration young = absl::Seconds(60);
  };
  Locator(Parts parts, Options options);

  // `keys` are those of a chain, from its first block on. Returns the holders of each key from the
  // index `first` on, without this daemon. Members that have joined come before others. It blocks
  // until the homes have answered, but not after `deadline`; then some keys may lack holders. An
  // answer may be out of date. REQUIRES: at most kNamesPerLocateMax keys.
  Located Locate(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys,
                 size_t first, absl::Time deadline);

 private:
  class Question;

  // Notes the processes of the view.
  void LookAtView(const View& view);
  bool IsYoung(uint32_t number) const;

  const Parts parts_;
  const Options options_;
  struct Process {
    uint64_t incarnation = 0;
    absl::Time since;  // this daemon knows of it
  };
  mutable Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // of the view that was looked at last
  std::map<uint32_t, Process> processes_ ABSL_GUARDED_BY(mutex_);  // by the member's number
};

}  // namespace cairn
