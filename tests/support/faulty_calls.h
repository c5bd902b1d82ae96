// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes file-system calls of the process fail. The faults apply to all callers, such as the tier
// and the database of its ledger. The functions replace those of the C library, also for the
// libraries that the process has loaded. Sanitizers replace the functions as well, so this does not
// work with them.
//
//   FaultyCalls::Inject({.call = FaultyCalls::kSync, .path = "/index/"});
//   …
//   FaultyCalls::Clear();
//
// A daemon that a test starts can have the same faults. LD_PRELOAD must load cairn_faulty_calls
// before the C library, and the daemon and the test must share a file:
//
//   FaultyCalls::Share(folder.File("faults"));
//   ::setenv(FaultyCalls::kFileVariable, folder.File("faults").c_str(), 1);
//
// Thread-safety: Thread-safe. Call Share() before all other functions.

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

namespace cairn {

class FaultyCalls {
 public:
  static constexpr char kFileVariable[] = "CAIRN_TEST_FAULTS";
  enum Call { kOpen, kRead, kWrite, kSync, kAllocate };
  // Used as an error number. The call does not return before Clear().
  static constexpr int kHang = -1;
  // Makes calls fail on files whose path contains `path`.
  struct Fault {
    Call call = kWrite;
    std::string path;  // at most 255 bytes
    int error = EIO;
    uint64_t calls_max = std::numeric_limits<uint64_t>::max();
  };

  // Makes the file. After this, all processes that share the file have the same faults.
  static void Share(const std::string& path);
  static void Inject(const Fault& fault);
  static void Clear();
  // Returns the number of calls that failed or hung since the last Clear().
  static uint64_t met();
};

}  // namespace cairn
