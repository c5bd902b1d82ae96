// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface that tells a put when its images are durable. Upkeep implements it.
//
// Thread-safety: Thread-safe. Called with no lock held.

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "codecs/types/shape.h"
#include "proto/frame.h"
#include "service/tier/block_name.h"

namespace cairn {

class DurableWaits {
 public:
  // A slice of a block.
  struct Images {
    BlockName block;
    uint16_t group = 0;
    codecs::Slice slice;
  };
  using Done = absl::AnyInvocable<void(proto::Durability)>;

  virtual ~DurableWaits() = default;
  // Writes the images before others, and their ancestors before them. Runs `done` exactly once,
  // without locks held, possibly before this returns: when all of them are durable, when it is
  // known that they will not be, or shortly before the deadline, so that the answer is in time.
  virtual void AwaitDurable(const Images& images, absl::Time deadline, Done done) = 0;
};

}  // namespace cairn
