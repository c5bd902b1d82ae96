// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/epoll.h>

#include <cstdint>

#include "base/check.h"

namespace cairn {

// Sets the `events` of `fd` that `epoll` reports with `tag`, replacing those set before. With 0 it
// reports only hang-ups and errors. CAIRN_CHECKs that the kernel has room for one more descriptor.
inline void WatchSocket(int epoll, int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0) {
    CAIRN_CHECK(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll takes no more sockets");
  }
}

}  // namespace cairn
