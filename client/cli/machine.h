// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks whether a machine meets the requirements of a daemon and its clients. Each check returns a
// finding and, if there is a problem, advice. A check describes the process that runs it: its user,
// its limits, its container.
//
// A check with a parameter `root` reads files such as "/proc/meminfo" below that folder. Only tests
// set it.

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::cli {

// kWarn: it works, but slower or with less capacity. kFail: something does not work. kAbsent: the
// machine does not have it, and nothing needs it.
enum class Verdict : uint8_t { kOk, kWarn, kFail, kAbsent };

struct Finding {
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string advice;  // empty: no problem
};

Finding CheckProcessor();
Finding CheckMemory(const std::string& root);
Finding CheckHugePages(const std::string& root);
// `limit_bytes` is RLIMIT_MEMLOCK.
Finding CheckLockedMemory(uint64_t limit_bytes);
// `limit` is the hard RLIMIT_NOFILE. The daemon raises its soft limit to it.
Finding CheckOpenFiles(uint64_t limit);
Finding CheckSharedMemory();
Finding CheckIoUring(const std::string& root);
Finding CheckClock(const std::string& root);
Finding CheckUcx(const std::string& root);
Finding CheckKernels();
// Checks a folder for --ssd.
Finding CheckSsdFolder(const std::string& folder);

// Returns the CUDA devices that the kernels support, with number and name: "0: NVIDIA H200".
std::vector<std::string> CudaDevices();

// Runs all checks for this process, except CheckSsdFolder().
std::vector<Finding> CheckMachine();

}  // namespace cairn::cli
