// SPDX-License-Identifier: Apache-2.0
#pragma once
// The engine that works everywhere: threads that call preadv() and pwritev(). A transfer that the
// kernel has holds a thread. Threads are named "io-read-0", "io-write-0", …, and "io-late", which
// ends what did not begin by its deadline.

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>

#include "service/tier/ssd/io_engine.h"

namespace cairn {

// Moves bytes as preadv() and pwritev() do, errno included.
using IoCall = absl::AnyInvocable<ssize_t(IoKind kind, int fd, const iovec* parts, int parts_count,
                                          off_t offset) const>;

// The kernel's.
ssize_t CallKernel(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset);

// `call` runs on several threads at once.
std::unique_ptr<IoEngine> MakeThreadEngine(const IoLimits& limits, IoCall call = CallKernel);

}  // namespace cairn
