// SPDX-License-Identifier: Apache-2.0
#pragma once
// Takes the pages of a mapping before anybody uses it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"

namespace cairn {

// Told about once a second how many bytes are there, by one thread at a time.
using FaultInProgress = std::function<void(uint64_t bytes_done)>;

// Zeroing pages takes one core about two seconds a GiB where they are small, so as many threads as
// there are processors, 16 at most, share the work. Returns when every page is there.
// ResourceExhausted: the kernel has no more memory for it (fewer huge pages than were promised,
// say); what was taken stays until the mapping goes.
// REQUIRES: nobody else writes to `mapping`, which is private and readable as zeros.
absl::Status FaultIn(std::span<std::byte> mapping, const FaultInProgress& progress);

// The same of memory that is shared (a memfd), for which the kernel gives 2 MiB pages only where it
// is asked to collapse small ones (MADV_COLLAPSE, Linux 6.1). *huge_bytes: on such pages.
// REQUIRES: `mapping` is aligned to 2 MiB.
absl::Status FaultInShared(std::span<std::byte> mapping, const FaultInProgress& progress,
                           uint64_t* huge_bytes);

}  // namespace cairn
