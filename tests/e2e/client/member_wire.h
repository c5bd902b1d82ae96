// SPDX-License-Identifier: Apache-2.0
#pragma once
// How members of one cluster read from each other: over UCX, or over TLS with a certificate each.

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/options.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"

namespace cairn {

enum class PeerWire : uint8_t { kUcx, kTls };

inline std::string PeerWireName(PeerWire wire) { return wire == PeerWire::kUcx ? "Ucx" : "Tls"; }

// Thread-safety: Thread-compatible.
class MemberWire {
 public:
  // With TLS, writes certificates and a policy into the folder, which must outlive it.
  MemberWire(PeerWire wire, const TempDir& folder, const std::vector<std::string>& names)
      : wire_(wire), folder_(folder) {
    if (wire == PeerWire::kUcx) return;
    TestPki pki(folder.path());
    std::ofstream policy(folder.File("policy.yaml"));
    policy << "version: 1\nidentities:\n  - {uid: " << ::getuid() << ", tenants: [\"*\"]}\n";
    for (const std::string& name : names) {
      const std::string uri = absl::StrCat("spiffe://test.example/", name);
      pki.Write(name, {.uris = {uri}, .dns = {"localhost"}});
      policy << "  - {uri: \"" << uri << "\", peer: true, tenants: [\"*\"]}\n";
    }
  }

  // What a client needs that calls the peer port of another member as this one.
  TlsOptions Tls(const std::string& name, const std::string& other) const {
    if (wire_ == PeerWire::kUcx) return {};
    return {.ca = folder_.File("ca.pem"),
            .cert = folder_.File(name + ".pem"),
            .key = folder_.File(name + ".key"),
            .server = absl::StrCat("spiffe://test.example/", other)};
  }
  // Flags of the member.
  std::vector<std::string> Flags(const std::string& name) const {
    if (wire_ == PeerWire::kUcx) return {"--data=127.0.0.1:0"};
    return {absl::StrCat("--tls-cert=", folder_.File(name + ".pem")),
            absl::StrCat("--tls-key=", folder_.File(name + ".key")),
            absl::StrCat("--tls-ca=", folder_.File("ca.pem")),
            absl::StrCat("--policy=", folder_.File("policy.yaml")),
            "--stream=127.0.0.1:0",
            "--plaintext=loopback",
            absl::StrCat("--control=unix:", folder_.File(name + ".sock"))};
  }

 private:
  const PeerWire wire_;
  const TempDir& folder_;
};

}  // namespace cairn
