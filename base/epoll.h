// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/epoll.h>

#include <cstdint>

#include "base/check.h"

namespace cairn {

// Makes `events` of `fd` wake who waits on `epoll`, with `tag`, in place of those asked for before;
// 0 silences it, but for its end. CAIRN_CHECKs that the kernel has room for one more.
inline void WatchSocket(int epoll, int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0) {
    CAIRN_CHECK(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll takes no more sockets");
  }
}

}  // namespace cairn
