// SPDX-License-Identifier: Apache-2.0
#include "service/front/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <vector>

namespace cairn {
namespace {

Fd Connect(uint16_t port, Fd socket = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

// Takes every descriptor that the process may have. Gives them back when destroyed.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (Fd fd(::dup(0)); fd.is_valid(); fd.Reset(::dup(0))) taken_.push_back(std::move(fd));
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Fd> taken_;
};

TEST(Acceptor, AcceptsAndSaysThatNobodyWaits) {
  auto acceptor = Acceptor::Listen({"127.0.0.1", 0});
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  Fd socket;
  EXPECT_EQ(acceptor->Accept(&socket), Acceptor::Outcome::kNone);
  const Fd client = Connect(acceptor->port());
  EXPECT_EQ(acceptor->Accept(&socket), Acceptor::Outcome::kPeer);
  EXPECT_TRUE(socket.is_valid());
  EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(Acceptor, OutOfDescriptorsItTurnsPeersAwayAndThenGoesOn) {
  auto acceptor = Acceptor::Listen({"127.0.0.1", 0});
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  Fd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd second(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd socket;
  {
    const NoDescriptors none;
    for (Fd* client : {&first, &second}) {
      *client = Connect(acceptor->port(), std::move(*client));
      EXPECT_EQ(acceptor->Accept(&socket), Acceptor::Outcome::kTurnedAway);
      char byte = 0;
      EXPECT_LE(::recv(client->get(), &byte, 1, 0), 0) << "it knows";
    }
    EXPECT_EQ(acceptor->Accept(&socket), Acceptor::Outcome::kNone) << "nobody is left waiting";
  }
  const Fd third = Connect(acceptor->port());
  EXPECT_EQ(acceptor->Accept(&socket), Acceptor::Outcome::kPeer);
}

TEST(Acceptor, AnAddressInUseIsAnError) {
  auto acceptor = Acceptor::Listen({"127.0.0.1", 0});
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  EXPECT_TRUE(absl::IsUnavailable(Acceptor::Listen({"127.0.0.1", acceptor->port()}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Acceptor::Listen({"no such host.", 0}).status()));
}

}  // namespace
}  // namespace cairn
