// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that processes share: mapping it, and sealing it for readers.

#include <cstddef>
#include <cstdint>

#include "base/file.h"

namespace cairn {

// Maps the first `bytes` of `fd` at a multiple of 2 MiB, so that the kernel can map huge pages as
// such. `protection` is mmap()'s. Returns null, with errno set, if the kernel refuses. The caller
// unmaps `bytes` from there on.
//
// Thread-safety: Thread-safe.
std::byte* MapFile(int fd, uint64_t bytes, int protection);

// Seals a memfd for good: it keeps its size and its pages, and gets no new writable mapping.
// Existing mappings stay writable. Returns a second descriptor, which is read-only whatever the
// seals say; it is invalid, with errno set, if the kernel refuses.
//
// Thread-safety: Thread-safe.
Fd SealForReaders(int memfd);

}  // namespace cairn
