// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared mappings of files in memory.

#include <cstddef>
#include <cstdint>

namespace cairn {

// Maps the first `bytes` of `fd` at a multiple of 2 MiB, so that the kernel can map huge pages as
// such. `protection` is mmap()'s. Returns null, with errno set, if the kernel refuses. The caller
// unmaps `bytes` from there on.
//
// Thread-safety: Thread-safe.
std::byte* MapFile(int fd, uint64_t bytes, int protection);

}  // namespace cairn
