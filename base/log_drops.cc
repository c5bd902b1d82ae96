// SPDX-License-Identifier: Apache-2.0
#include "base/log_drops.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

namespace cairn {
LogLimiter::Verdict LogLimiter::Admit(std::string_view component, std::string_view text,
                                      absl::Time now) {
  const std::hash<std::string_view> hash;
  Bucket& bucket = buckets_[(hash(component) * 31 + hash(text)) % kBuckets];
  if (bucket.used == 0) {
    bucket.refilled = now;
  }
  const int64_t refills = std::max<int64_t>(0, (now - bucket.refilled) / kRefill);
  bucket.used = static_cast<int>(std::max<int64_t>(0, bucket.used - refills));
  bucket.refilled += refills * kRefill;
  if (bucket.used == kBurst) {
    ++bucket.suppressed;
    return {};
  }
  ++bucket.used;
  return {true, std::exchange(bucket.suppressed, 0)};
}

bool WriteLogLine(int fd, std::string_view line) {
  std::string_view rest = line.substr(0, kLogLineBytesMax);
  std::array<char, kLogLineBytesMax + 1> bytes;
  *std::copy(rest.begin(), rest.end(), bytes.begin()) = '\n';
  rest = {bytes.data(), rest.size() + 1};
  while (!rest.empty()) {  // ends: each turn writes something, or gives up
    pollfd room{fd, POLLOUT, 0};
    if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) {
      return false;
    }
    const ssize_t written = ::write(fd, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace cairn
