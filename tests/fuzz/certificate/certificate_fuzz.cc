// SPDX-License-Identifier: Apache-2.0
// Whatever bytes a peer sends as its certificate: the names that are taken are printable ASCII, and
// no longer than the limit. And what a file of CA certificates is named by.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "transport/tls/tls_files.h"
#include "transport/tls/tls_identity.h"

namespace {

void CheckName(const std::string& name) {
  CAIRN_CHECK(name.size() <= cairn::transport::kNameBytesMax);
  CAIRN_CHECK(std::ranges::all_of(name, [](char c) { return c > ' ' && c < '\x7f'; }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const auto peer = cairn::transport::ParseDerCertificateNames(std::as_bytes(std::span(text)));
  if (peer.ok()) {
    CheckName(peer->uri);
    CAIRN_CHECK(peer->dns.size() <= cairn::transport::kNamesMax);
    CAIRN_CHECK(std::ranges::is_sorted(peer->dns));
    std::ranges::for_each(peer->dns, CheckName);
    CAIRN_CHECK(!peer->serial.empty());
    CheckName(cairn::transport::TrustDomainOf(peer->uri));
  }
  const auto bundle = cairn::transport::ParseTlsBundle(text);
  CAIRN_CHECK(!bundle.ok() || !bundle->path.empty());
  return 0;
}
