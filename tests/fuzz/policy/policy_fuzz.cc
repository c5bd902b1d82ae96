// SPDX-License-Identifier: Apache-2.0
// The policy file's parser, and what a policy says of some peers.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "service/policy/policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cairn::PeerIdentity;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto policy = cairn::Policy::Parse(text, "p.yaml");
  if (!policy.ok()) {
    CAIRN_CHECK(policy.status().message().substr(0, 7) == "p.yaml:");
    return 0;
  }
  const PeerIdentity peers[] = {
      PeerIdentity(),
      PeerIdentity(cairn::UnixPeer{.uid = 1, .gid = 1, .door = {}}),
      PeerIdentity(cairn::UnixPeer{.uid = cairn::kUnmappedUid, .gid = 1, .door = "/run/a"}),
      PeerIdentity(cairn::CertificatePeer{.uri = "spiffe://a/b/c",
                                          .dns = {"a.example"},
                                          .trust_domain = {},
                                          .serial = "3f41",
                                          .root = {}}),
  };
  for (const PeerIdentity& peer : peers) {
    const bool may_connect = policy->MayConnect(peer).ok();
    CAIRN_CHECK(may_connect || !policy->MayUse(peer, "a").ok());
    CAIRN_CHECK(may_connect || !policy->MayOperate(peer).ok());
  }
  // A connection without TLS is nobody, whatever a policy says.
  CAIRN_CHECK(!policy->MayConnect(peers[0]).ok());
  return 0;
}
