// SPDX-License-Identifier: Apache-2.0
#pragma once
// The I/O engine that works everywhere: threads that call preadv() and pwritev(). A running
// transfer occupies a thread. Threads are named "io-read-0", "io-write-0", …, and "io-late", which
// ends transfers that did not begin by their deadline.

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>

#include "service/tier/ssd/io_engine.h"

namespace cairn {

// Moves bytes like preadv() and pwritev(), including errno.
using IoCall = absl::AnyInvocable<ssize_t(IoKind kind, int fd, const iovec* parts, int parts_count,
                                          off_t offset) const>;

// Calls the kernel.
ssize_t CallKernel(IoKind kind, int fd, const iovec* parts, int parts_count, off_t offset);

// `call` runs on several threads at once.
std::unique_ptr<IoEngine> MakeThreadEngine(const IoLimits& limits, IoCall call = CallKernel);

}  // namespace cairn
