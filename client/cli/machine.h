// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks whether a machine meets the requirements of a daemon and its clients. Each check returns a
// finding and, if there is a problem, advice. Checks apply to the process that runs them: its user,
// its limits, its container.
//
// A check with `root` reads files below it, for example "/proc/meminfo"; only tests set it.

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::cli {

// kWarn: it works, but slower or with less capacity. kFail: something does not work. kAbsent: it is
// not here, and nothing needs it.
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
// `limit` is the hard RLIMIT_NOFILE, to which the daemon raises its own.
Finding CheckOpenFiles(uint64_t limit);
Finding CheckSharedMemory();
Finding CheckIoUring(const std::string& root);
Finding CheckClock(const std::string& root);
Finding CheckUcx(const std::string& root);
Finding CheckKernels();
// Checks a folder for --ssd.
Finding CheckSsdFolder(const std::string& folder);

// Returns CUDA devices that kernels support, with number and name: "0: NVIDIA H200".
std::vector<std::string> CudaDevices();

// Runs all checks except those of folders, for this process.
std::vector<Finding> CheckMachine();

}  // namespace cairn::cli
