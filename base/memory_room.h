// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory this process may still take before the kernel ends it, or another one.

#include <cstdint>
#include <string>

namespace cairn {

struct MemoryRoom {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: no bound was found
  std::string bound;            // what bounds it, for a message; empty where nothing does
  // Of huge pages that are set aside, which neither MemAvailable nor a memory cgroup counts.
  uint64_t huge_page_bytes = 0;
  // The lowest limit of the cgroups, used or not; UINT64_MAX: none.
  uint64_t cgroup_limit_bytes = UINT64_MAX;
};

// The least of MemAvailable and of what each memory cgroup around this process, of version 1 or 2,
// leaves: its limit less its use, where pages of files that were not used lately count as free. A
// file that cannot be read bounds nothing. Reads files below `root`; empty but in tests.
MemoryRoom FindMemoryRoom(const std::string& root = "");

}  // namespace cairn
