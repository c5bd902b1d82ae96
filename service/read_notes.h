// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam by which gets say which blocks they read. Upkeep implements it, where a tier takes
// copies of those that are read often.
//
// Thread-safety: Thread-safe. Called with no lock held, by threads of the path pool.

#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"

namespace cairn {

class ReadNotes {
 public:
  virtual ~ReadNotes() = default;
  // A get had the block's bytes out of that tier.
  virtual void NoteRead(const BlockName& block, TierId tier) = 0;
};

}  // namespace cairn
