// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which member of a cluster mines the profiles of a space. Upkeep asks it; a daemon that
// belongs to no cluster has none, and mines for itself.
//
// Thread-safety: Thread-safe. No function waits.

#include <cstdint>

#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "service/spaces.h"

namespace cairn {

class MiningTurns {
 public:
  virtual ~MiningTurns() = default;

  struct Need {
    bool wants = false;     // the group has no profile that its recipe can use
    bool can_mine = false;  // its blocks are enough to mine one
  };
  // Returns whether this daemon may mine a profile for the group now. It may also make a profile of
  // another member the current one, later. Called about once a second for each group whose recipe
  // needs a profile.
  virtual bool IsOurs(const SpaceRef& space, uint16_t group, Need need, absl::Time now) = 0;
  // This daemon has mined the group's current profile.
  virtual void Mined(uint64_t space_id, uint16_t group) = 0;
  // The profile was current, and is not to be used for the group again.
  virtual void GaveUp(uint64_t space_id, uint16_t group, const codecs::Digest& id) = 0;
};

}  // namespace cairn
