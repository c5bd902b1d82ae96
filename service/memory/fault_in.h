// SPDX-License-Identifier: Apache-2.0
#pragma once
// Allocates the pages of a mapping before their first use.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"

namespace cairn {

// Called about once a second with the number of bytes allocated so far, by one thread at a time.
using FaultInProgress = std::function<void(uint64_t bytes_done)>;

// Allocates every page. Zeroing small pages takes one core about two seconds per GiB. Therefore up
// to 16 threads, but at most one per CPU, share the work. Errors: ResourceExhausted if the kernel
// runs out of memory, for example because it has fewer huge pages than promised. The pages
// allocated so far stay until the mapping is removed. REQUIRES: `mapping` is private and reads as
// zeros, and no other thread writes to it.
absl::Status FaultIn(std::span<std::byte> mapping, const FaultInProgress& progress);

// Does the same as FaultIn() for shared memory (a memfd). For such memory the kernel makes 2 MiB
// pages only if it is told to collapse small pages (MADV_COLLAPSE, Linux 6.1). Sets *huge_bytes to
// the number of bytes on 2 MiB pages. REQUIRES: `mapping` is aligned to 2 MiB.
absl::Status FaultInShared(std::span<std::byte> mapping, const FaultInProgress& progress,
                           uint64_t* huge_bytes);

}  // namespace cairn
