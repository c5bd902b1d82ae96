// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface that tells upkeep which blocks gets read, so that it can copy frequently read
// blocks to the GPU tier.
//
// Thread-safety: Thread-safe. Called with no lock held, by threads of the path pool.

#include "service/tier/block_name.h"
#include "service/tier/image_facts.h"

namespace cairn {

class ReadNotes {
 public:
  virtual ~ReadNotes() = default;
  // A get read the block's bytes from that tier.
  virtual void NoteRead(const BlockName& block, TierId tier) = 0;
};

}  // namespace cairn
