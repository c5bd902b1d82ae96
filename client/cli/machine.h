// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a machine has of what a daemon and its clients want. Each check says what it found and,
// where that is not as it should be, what to change. They hold for the process that asks: its user,
// its limits, its container.
//
// Where a check takes `root`, it reads files below it, "/proc/meminfo" say; empty but in tests.

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::cli {

// kWarn: it works, slower or with less. kFail: something does not work.
enum class Verdict : uint8_t { kOk, kWarn, kFail };

struct Finding {
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string found;
  std::string advice;  // empty where all is well
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
// A folder that is to be named by --ssd.
Finding CheckSsdFolder(const std::string& folder);

// CUDA devices that kernels run on, by number and name: "0: NVIDIA H200".
std::vector<std::string> CudaDevices();

// All but folders, of this process.
std::vector<Finding> CheckMachine();

}  // namespace cairn::cli
