// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory and descriptors of a process, as the kernel counts them.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cairn {

struct ProcessWeight {
  uint64_t bytes = 0, threads = 0, descriptors = 0;
};

inline ProcessWeight WeightOf(pid_t pid) {
  ProcessWeight weight;
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
    uint64_t value = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &value)) continue;
    if (words[0] == "VmRSS:") weight.bytes = value * 1024;
    if (words[0] == "Threads:") weight.threads = value;
  }
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator(folder)) {
    ++weight.descriptors;
  }
  return weight;
}

}  // namespace cairn
