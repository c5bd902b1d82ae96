// SPDX-License-Identifier: Apache-2.0
#include "base/newcomers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"

namespace cairn {
namespace {

TEST(Newcomers, TheOldestGoesForANewOne) {
  Newcomers newcomers(3);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(newcomers.Add(id, 0), std::nullopt);
  EXPECT_EQ(newcomers.Add(4, 0), 1u);
  EXPECT_EQ(newcomers.Add(5, 0), 2u);
  EXPECT_EQ(newcomers.count(), 3u);
  EXPECT_FALSE(newcomers.Remove(1));
}

TEST(Newcomers, OneThatHasSpokenMakesRoom) {
  Newcomers newcomers(2);
  EXPECT_EQ(newcomers.Add(1, 0), std::nullopt);
  EXPECT_EQ(newcomers.Add(2, 0), std::nullopt);
  EXPECT_TRUE(newcomers.Remove(1));
  EXPECT_FALSE(newcomers.Remove(1));
  EXPECT_EQ(newcomers.Add(3, 0), std::nullopt);
  EXPECT_EQ(newcomers.Add(4, 0), 2u);
}

TEST(Newcomers, AFloodOfOnePartyPutsOutItsOwn) {
  constexpr uint64_t kQuiet = 1, kFlood = 2;
  Newcomers newcomers(8);
  EXPECT_EQ(newcomers.Add(1, kQuiet), std::nullopt);  // the oldest of all
  EXPECT_EQ(newcomers.Add(2, kQuiet), std::nullopt);
  for (uint64_t id = 3; id <= 8; ++id) EXPECT_EQ(newcomers.Add(id, kFlood), std::nullopt);
  for (uint64_t id = 9; id <= 1000; ++id) EXPECT_EQ(newcomers.Add(id, kFlood), id - 6);
  EXPECT_EQ(newcomers.Add(1001, kQuiet), 995u) << "at the cost of the flood";
  EXPECT_TRUE(newcomers.Remove(1));
  EXPECT_TRUE(newcomers.Remove(2));
}

TEST(Newcomers, OfPartiesThatHaveAsMuchTheOldestGoes) {
  Newcomers newcomers(4);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(newcomers.Add(id, id % 2), std::nullopt);
  EXPECT_EQ(newcomers.Add(5, 2), 1u);
  EXPECT_EQ(newcomers.Add(6, 2), 2u);
  EXPECT_EQ(newcomers.Add(7, 2), 5u) << "now it has most";
}

TEST(Newcomers, AUserIsAPartyAndSoIsAHost) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Fd one(ends[0]), other(ends[1]);
  EXPECT_EQ(PartyOf(one.get()), ::geteuid());
  EXPECT_EQ(PartyOf(other.get()), PartyOf(one.get()));

  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  socklen_t bytes = sizeof address;
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const auto party_from = [&](const char* host) {
    const Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{};
    from.sin_family = AF_INET;
    ::inet_pton(AF_INET, host, &from.sin_addr);
    EXPECT_EQ(::bind(client.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return PartyOf(Fd(::accept(listener.get(), nullptr, nullptr)).get());
  };
  EXPECT_EQ(party_from("127.0.0.2"), party_from("127.0.0.2"));
  EXPECT_NE(party_from("127.0.0.2"), party_from("127.0.0.3"));
  EXPECT_NE(party_from("127.0.0.2"), PartyOf(one.get()));
}

}  // namespace
}  // namespace cairn
