// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory this process may still take before the kernel runs out of it and kills a process.

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

struct MemoryRoom {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: no bound was found
  std::string bound;            // what bounds it, for a message; empty where nothing does
  // Of free huge pages (HugePages_Free). They come on top: neither MemAvailable nor a memory cgroup
  // counts them.
  uint64_t huge_page_bytes = 0;
  // The lowest limit of the cgroups, used or not; UINT64_MAX: none.
  uint64_t cgroup_limit_bytes = UINT64_MAX;
  uint64_t shared_bytes =
      0;  // shared memory in use (Shmem): what a process that died shared may be
};

// The room is the least of these: MemAvailable of /proc/meminfo; of each memory cgroup that this
// process is in, of version 1 or 2, the limit less the use. The inactive part of the page cache
// does not count as use, for the kernel frees it on demand. A file that cannot be read bounds
// nothing. Files are read below `root`, which only tests set.
MemoryRoom FindMemoryRoom(const std::string& root = "");

// The number in the line of `text` that begins with `name`, as in "name 123" or "Name:   123 kB";
// `name` has the colon. 0: there is no such line.
uint64_t NumberOf(const std::string& text, std::string_view name);

}  // namespace cairn
