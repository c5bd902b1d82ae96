// SPDX-License-Identifier: Apache-2.0
#pragma once
// Allocates the pages of a mapping before its first use.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"

namespace cairn {

// Called about once a second with the bytes allocated so far, by one thread at a time.
using FaultInProgress = std::function<void(uint64_t bytes_done)>;

// Allocates every page. Zeroing small pages takes one core about two seconds per GiB, so up to 16
// threads, one per processor, share the work. Errors: ResourceExhausted if the kernel runs out of
// memory, for example with fewer huge pages than promised; pages allocated so far stay until the
// mapping is removed.
// REQUIRES: no other thread writes to `mapping`, which is private and readable as zeros.
absl::Status FaultIn(std::span<std::byte> mapping, const FaultInProgress& progress);

// Like FaultIn(), but for shared memory (a memfd). For it the kernel provides 2 MiB pages only when
// it is asked to collapse small ones (MADV_COLLAPSE, Linux 6.1). Sets *huge_bytes to the bytes on
// 2 MiB pages.
// REQUIRES: `mapping` is aligned to 2 MiB.
absl::Status FaultInShared(std::span<std::byte> mapping, const FaultInProgress& progress,
                           uint64_t* huge_bytes);

}  // namespace cairn
