// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a command in a shell and waits for its end.

#include <sys/wait.h>

#include <cstddef>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace cairn {

struct Ran {
  int code = -1;       // -1: it was killed
  std::string output;  // stdout and stderr
};

inline Ran RunCommand(const std::string& command) {
  Ran ran;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  CAIRN_CHECK(pipe != nullptr);
  char bytes[4096];
  size_t count = 0;
  while ((count = std::fread(bytes, 1, sizeof bytes, pipe)) > 0) ran.output.append(bytes, count);
  const int status = ::pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

}  // namespace cairn
