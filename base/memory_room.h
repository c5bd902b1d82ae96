// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds how much more memory this process can use before the kernel kills a process.

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

struct MemoryRoom {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: no limit was found
  std::string bound;            // the name of the limit; empty: no limit
  // Free huge pages (HugePages_Free), in addition to `bytes`: neither MemAvailable nor a memory
  // cgroup counts them.
  uint64_t huge_page_bytes = 0;
  // The lowest limit of the cgroups, even if less memory is available. UINT64_MAX: none.
  uint64_t cgroup_limit_bytes = UINT64_MAX;
  // Shared memory in use (Shmem). It may include memory of a process that has died.
  uint64_t shared_bytes = 0;
};

// Returns the smallest of these: MemAvailable in /proc/meminfo; and for each memory cgroup (v1 or
// v2) of this process, its limit minus its usage. The inactive page cache does not count as usage,
// because the kernel frees it on demand. A file that cannot be read sets no limit. Only tests set
// `root`, the folder that contains proc and sys.
MemoryRoom FindMemoryRoom(const std::string& root = "");

// Returns the number in the line of `text` that begins with `name`, as in "name 123" or "Name:
// 123 kB". `name` includes the colon. Returns 0 if there is no such line.
uint64_t NumberOf(const std::string& text, std::string_view name);

}  // namespace cairn
