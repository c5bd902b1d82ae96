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
// A daemon that a test starts has them too, where these calls are loaded ahead of its C library
// (cairn_faulty_calls, by LD_PRELOAD) and both share a file:
//
//   FaultyCalls::Share(folder.File("faults"));
//   ::setenv(FaultyCalls::kFileVariable, folder.File("faults").c_str(), 1);
//
// Thread-safety: Thread-safe; Share() before all others.

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

namespace cairn {

class FaultyCalls {
 public:
  static constexpr char kFileVariable[] = "CAIRN_TEST_FAULTS";
  enum Call { kOpen, kRead, kWrite, kSync, kAllocate };
  // In the place of an error: the call does not return before Clear().
  static constexpr int kHang = -1;
  // Fails calls of a file whose path has `path` in it.
  struct Fault {
    Call call = kWrite;
    std::string path;  // short: 255 bytes at most
    int error = EIO;
    uint64_t calls_max = std::numeric_limits<uint64_t>::max();
  };

  // Makes the file. From now on the faults are those of all processes that share it.
  static void Share(const std::string& path);
  static void Inject(const Fault& fault);
  static void Clear();
  // Calls that failed or hung since the last Clear().
  static uint64_t met();
};

}  // namespace cairn
