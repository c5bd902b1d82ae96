// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compares the memory that a configuration needs with the memory that the process may use. Without
// this check, the kernel kills the process when it uses too much, and no log line gives the reason.
// All functions are pure. REQUIRES: ParseCommandLine() made `config`.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/memory_room.h"
#include "service/config.h"

namespace cairn {

// Returns the bytes of host tier and staging, which are allocated in full at start.
uint64_t StartBytesOf(const Config& config);
// Returns StartBytesOf(), a full index, the write buffers of the SSD tier's ledgers, the locations
// and tables of a member of a cluster, and 64 MiB for threads, code and connections. Side objects
// and control calls are not included. They have limits of their own (docs/guides/operations.md,
// "Memory").
uint64_t BytesMaxOf(const Config& config);

// Errors: FailedPrecondition if the kernel would kill the process during the start. The message
// names the settings, the limit on memory, and the largest host-bytes that fits.
absl::Status CheckMemoryRoom(const Config& config, const MemoryRoom& room);
// Returns true if the daemon could start once the shared memory that is now in use is freed. That
// memory may belong to a dead daemon whose clients have not unmapped it yet.
bool MayWaitForRoom(const Config& config, const MemoryRoom& room);
// Returns why a running daemon could be killed once its index is full, or an empty string.
std::string MemoryWarning(const Config& config, const MemoryRoom& room);

}  // namespace cairn
