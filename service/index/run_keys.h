// SPDX-License-Identifier: Apache-2.0
#pragma once
// The runs (proto/location.h) of the blocks of a member of a cluster, by slot. 8 bytes a block. A
// daemon without a cluster keeps none.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/location.h"

namespace cairn {

class RunKeys {
 public:
  // Keeps runs from now on. REQUIRES: no block exists.
  void Begin() { is_kept_ = true; }
  bool is_kept() const { return is_kept_; }

  // proto::kNoRun: unknown.
  uint64_t At(uint32_t slot) const {
    return slot / kChunk < chunks_.size() ? (*chunks_[slot / kChunk])[slot % kChunk]
                                          : proto::kNoRun;
  }
  // Does nothing if runs are not kept.
  void Set(uint32_t slot, uint64_t run) {
    if (!is_kept_) return;
    while (slot / kChunk >= chunks_.size()) {
      chunks_.push_back(std::make_unique<std::array<uint64_t, kChunk>>());
    }
    (*chunks_[slot / kChunk])[slot % kChunk] = run;
  }
  uint64_t bytes() const { return chunks_.size() * kChunk * sizeof(uint64_t); }

 private:
  static constexpr uint32_t kChunk = 1024;
  bool is_kept_ = false;
  std::vector<std::unique_ptr<std::array<uint64_t, kChunk>>> chunks_;
};

}  // namespace cairn
