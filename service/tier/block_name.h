// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "proto/frame.h"

namespace cairn {

// Names a block.
struct BlockName {
  uint64_t space_id = 0;
  proto::BlockKey key{};
  friend bool operator==(const BlockName&, const BlockName&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const BlockName& name) {
    return H::combine_contiguous(H::combine(std::move(state), name.space_id), name.key.data(),
                                 name.key.size());
  }
};

}  // namespace cairn
