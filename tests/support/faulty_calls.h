// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls of the process to the file system that fail where a test says so, whoever makes them: the
// tier, or the database of its ledger. They stand in the place of the C library's, also for the
// libraries that the process has loaded. Not under a sanitizer, which does so itself.
//
//   FaultyCalls::Inject({.call = FaultyCalls::kSync, .path = "/index/"});
//   …
//   FaultyCalls::Clear();
//
// Thread-safety: Thread-safe.

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

namespace cairn {

class FaultyCalls {
 public:
  enum Call { kOpen, kRead, kWrite, kSync, kAllocate };
  // Fails calls of a file whose path has `path` in it.
  struct Fault {
    Call call = kWrite;
    std::string path;
    int error = EIO;
    uint64_t calls_max = std::numeric_limits<uint64_t>::max();
  };

  static void Inject(Fault fault);
  static void Clear();
  // Calls that failed since the last Clear().
  static uint64_t met();
};

}  // namespace cairn
