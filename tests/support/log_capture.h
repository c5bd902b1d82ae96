// SPDX-License-Identifier: Apache-2.0
#pragma once
// Captures all log records of the process while it exists, instead of writing them to stderr. Only
// one may exist at a time.
//
//   LogCapture log;
//   …
//   EXPECT_EQ(log.Count("tile checksum does not match"), 1);
//
// Thread-safety: Thread-safe.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"

namespace cairn {

class LogCapture {
 public:
  LogCapture() {
    TEST_SetLogSink([this](LogLevel, std::string_view line) {
      const MutexLock lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LogCapture() { TEST_SetLogSink(nullptr); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<std::string> Lines() const {
    const MutexLock lock(mutex_);
    return lines_;
  }
  // Returns the number of lines that contain `text`.
  std::size_t Count(std::string_view text) const {
    const MutexLock lock(mutex_);
    std::size_t count = 0;
    for (const std::string& line : lines_) {
      count += line.find(text) != std::string::npos ? 1 : 0;
    }
    return count;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
