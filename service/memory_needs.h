// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a configuration takes of the machine's memory, compared with what the process may have: the
// kernel answers a page too many with SIGKILL, which no log line explains. Pure.
// REQUIRES: ParseCommandLine() made `config`.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/memory_room.h"
#include "service/config.h"

namespace cairn {

// Host tier and staging, which are faulted in at start.
uint64_t StartBytesOf(const Config& config);
// These, the index when it is full, write buffers of the SSD tier's ledgers, and 64 MiB for
// threads, code and connections. Side objects and control calls, which have bounds of their own
// (docs/operations.md, "Memory"), are not in it.
uint64_t BytesMaxOf(const Config& config);

// FailedPrecondition: the start alone would be ended by the kernel. The message names the knobs,
// what bounds the memory, and the largest host-bytes that fits.
absl::Status CheckMemoryRoom(const Config& config, const MemoryRoom& room);
// Whether that much shared memory is in use that it would start without: the arena of a daemon that
// died, say, which clients have not let go of yet.
bool MayWaitForRoom(const Config& config, const MemoryRoom& room);
// Empty, or why a daemon that starts could be ended once its index is full.
std::string MemoryWarning(const Config& config, const MemoryRoom& room);

}  // namespace cairn
