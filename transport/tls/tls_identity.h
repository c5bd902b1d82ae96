// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the names of a certificate. A certificate names its holder by exactly one URI, or by DNS
// names. The common name is never looked at.
//
// A certificate is refused if one of its names has a NUL, a control or a non-ASCII byte or more
// than kNameBytesMax bytes, or if it has two URIs: programs have read such names in different ways,
// and so have let in the wrong peer.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/peer_identity.h"

struct x509_st;

namespace cairn::transport {

inline constexpr size_t kNameBytesMax = 2048;
inline constexpr size_t kNamesMax = 64;  // of one certificate

// Returns the names, the serial number and the end of `certificate`. trust_domain and root are left
// empty: they are the verified chain's. A certificate without any name is not refused here.
// Errors: InvalidArgument, with the reason.
absl::StatusOr<CertificatePeer> ParseCertificateNames(const x509_st* certificate);

// The same of a certificate in DER. Errors: also InvalidArgument if it is none.
absl::StatusOr<CertificatePeer> ParseDerCertificateNames(std::span<const std::byte> der);

// The subject for logs: "CN=engine-7,O=example". Bytes outside printable ASCII are escaped.
std::string SubjectText(const x509_st* certificate);

// SHA-256 of the certificate's DER, in lower-case hexadecimal.
std::string CertificateHash(const x509_st* certificate);

// The trust domain of a URI: its authority, in lower case: "prod.example" of
// "spiffe://prod.example/ns/a". Empty if the URI has none.
std::string TrustDomainOf(std::string_view uri);

}  // namespace cairn::transport
