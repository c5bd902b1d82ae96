// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes that each tenant takes of something, and all of them together.
//
// Thread-safety: Thread-compatible.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {

class TenantBytes {
 public:
  [[nodiscard]] uint64_t total() const { return total_; }
  [[nodiscard]] uint64_t Of(std::string_view tenant) const {
    const auto found = of_.find(ToAbsl(tenant));
    return found == of_.end() ? 0 : found->second;
  }
  void Add(std::string_view tenant, uint64_t bytes) {
    of_[ToAbsl(tenant)] += bytes;
    total_ += bytes;
  }
  // Of what was added. A tenant with none left is forgotten.
  void Remove(std::string_view tenant, uint64_t bytes) {
    const auto found = of_.find(ToAbsl(tenant));
    CAIRN_CHECK(found != of_.end() && found->second >= bytes);
    found->second -= bytes;
    if (found->second == 0) {
      of_.erase(found);
    }
    total_ -= bytes;
  }

 private:
  absl::flat_hash_map<std::string, uint64_t> of_;
  uint64_t total_ = 0;
};

}  // namespace cairn
