// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group of layers of a space, and its tenant. A value; borrows the tenant's name.

#include <cstdint>
#include <string_view>

namespace cairn {

struct GroupPlace {
  uint64_t space_id = 0;
  uint32_t group = 0;
  std::string_view tenant;
};

}  // namespace cairn
