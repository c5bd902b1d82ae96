// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

class ControlConnectionsTest : public ::testing::Test {
 protected:
  // The number of a new connection, whose descriptor of gRPC's is said to be `fd`.
  uint64_t Connect(int fd, bool is_apart = false) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    clients_.emplace_back(ends[0]);
    const uint64_t number = clients_.size();
    const uint64_t party = PartyOf(ends[1]);
    connections_.Add(fd, Fd(ends[1]), {.identity = {}, .is_operator = is_apart, .number = number},
                     is_apart);
    return number;
  }
  bool IsEnded(uint64_t number) const {
    pollfd polled{clients_[number - 1].get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) > 0;
  }
  uint64_t NumberOf(int fd) const { return connections_.PeerOf(absl::StrCat("fd:", fd)).number; }

  ControlConnections connections_{{.count_max = 3, .operators_max = 1}};
  std::vector<Fd> clients_;
};

TEST_F(ControlConnectionsTest, TheOldestWithoutASessionEnds) {
  const uint64_t oldest = Connect(100), second = Connect(101);
  connections_.BeginSession(oldest);
  for (int fd = 102; fd < 110; ++fd) Connect(fd);
  EXPECT_FALSE(IsEnded(oldest)) << "it has a session";
  EXPECT_TRUE(IsEnded(second));
  EXPECT_EQ(connections_.ended_count(), 6u);
  EXPECT_EQ(connections_.count(), 10u) << "gRPC has them still";
  connections_.Remove(second);
  EXPECT_EQ(connections_.count(), 9u);
}

TEST_F(ControlConnectionsTest, AfterItsLastSessionAConnectionIsTheYoungest) {
  const uint64_t held = Connect(100);
  connections_.BeginSession(held);
  connections_.BeginSession(held);
  for (int fd = 101; fd < 104; ++fd) Connect(fd);
  connections_.EndSession(held);
  EXPECT_EQ(connections_.ended_count(), 0u);
  connections_.EndSession(held);
  EXPECT_TRUE(IsEnded(2));
  EXPECT_FALSE(IsEnded(held));
  Connect(110);
  Connect(111);
  EXPECT_FALSE(IsEnded(held));
  Connect(112);
  EXPECT_TRUE(IsEnded(held));
}

TEST_F(ControlConnectionsTest, OperatorsOfTheirOwnDoorAreApart) {
  const uint64_t operators = Connect(100, true);
  for (int fd = 101; fd < 120; ++fd) Connect(fd);
  EXPECT_FALSE(IsEnded(operators));
  Connect(120, true);
  EXPECT_TRUE(IsEnded(operators));
}

TEST_F(ControlConnectionsTest, ANumberNamesItsLatestConnection) {
  const uint64_t first = Connect(100), second = Connect(100);
  EXPECT_EQ(NumberOf(100), second);
  connections_.Remove(first);
  EXPECT_EQ(NumberOf(100), second) << "the end of the first comes late";
  connections_.Remove(second);
  EXPECT_EQ(NumberOf(100), 0u);
  connections_.Remove(second);
  connections_.BeginSession(second);
  connections_.EndSession(second);
  EXPECT_EQ(connections_.count(), 0u);
  EXPECT_EQ(connections_.PeerOf("ipv4:127.0.0.1:1").number, 0u);
}

}  // namespace
}  // namespace cairn
