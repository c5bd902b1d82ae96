// SPDX-License-Identifier: Apache-2.0
#include "base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>

#include "base/check.h"

namespace cairn {

void FillRandom(std::span<std::byte> target) {
  while (!target.empty()) {  // ends: each turn fills bytes or was interrupted
    const ssize_t got = ::getrandom(target.data(), target.size(), 0);
    CAIRN_CHECK(got > 0 || (got < 0 && errno == EINTR), "getrandom");
    if (got > 0) {
      target = target.subspan(static_cast<std::size_t>(got));
    }
  }
}

}  // namespace cairn
