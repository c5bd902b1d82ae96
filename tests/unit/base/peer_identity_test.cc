// SPDX-License-Identifier: Apache-2.0
#include "base/peer_identity.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"

namespace cairn {
namespace {

CertificatePeer Holder() {
  return {.uri = "spiffe://prod/ns/a/sa/vllm",
          .dns = {"engine-7.example", "engine.example"},
          .trust_domain = "prod",
          .serial = "1f",
          .not_after = absl::UnixEpoch(),
          .root = "aa"};
}

TEST(PeerIdentityTest, IsComparedInWhatNamesThePeer) {
  const PeerIdentity holder(Holder());
  CertificatePeer renewed = Holder();
  renewed.serial = "20";
  renewed.not_after = absl::InfiniteFuture();
  renewed.root = "bb";
  EXPECT_EQ(PeerIdentity(renewed), holder);
  CertificatePeer other = Holder();
  other.uri += "2";
  EXPECT_NE(PeerIdentity(other), holder);
  other = Holder();
  other.dns.pop_back();
  EXPECT_NE(PeerIdentity(other), holder);
  other = Holder();
  other.trust_domain.clear();
  EXPECT_NE(PeerIdentity(other), holder);

  const PeerIdentity user(UnixPeer{.uid = 7, .gid = 8, .door = {}});
  EXPECT_EQ(user, PeerIdentity(UnixPeer{.uid = 7, .gid = 8, .door = {}}));
  EXPECT_NE(user, PeerIdentity(UnixPeer{.uid = 7, .gid = 9, .door = {}}));
  EXPECT_NE(user, PeerIdentity(UnixPeer{.uid = 7, .gid = 8, .door = "/run/cairn/a"}));
  EXPECT_NE(user, holder);
  EXPECT_NE(user, PeerIdentity());
  EXPECT_EQ(PeerIdentity(), PeerIdentity());
}

TEST(PeerIdentityTest, IsNamedInLogs) {
  EXPECT_EQ(PeerIdentity().ToString(), "unknown");
  EXPECT_EQ(PeerIdentity(UnixPeer{.uid = 7, .gid = 8, .door = {}}).ToString(), "uid 7");
  EXPECT_EQ(PeerIdentity(UnixPeer{.uid = 7, .gid = 8, .door = "/run/cairn/a"}).ToString(),
            "uid 7 by /run/cairn/a");
  CertificatePeer holder = Holder();
  EXPECT_EQ(PeerIdentity(holder).ToString(), "spiffe://prod/ns/a/sa/vllm");
  holder.uri.clear();
  EXPECT_EQ(PeerIdentity(holder).ToString(), "engine-7.example,engine.example");
}

TEST(PeerIdentityTest, TheKernelKnowsWhoConnectedAUnixSocket) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd one(ends[0]), two(ends[1]);
  EXPECT_EQ(PeerIdentityOf(one.get()),
            PeerIdentity(UnixPeer{.uid = ::geteuid(), .gid = ::getegid(), .door = {}}));
  const Fd tcp(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_FALSE(PeerIdentityOf(tcp.get()).is_known());
  EXPECT_FALSE(PeerIdentityOf(-1).is_known());
}

}  // namespace
}  // namespace cairn
