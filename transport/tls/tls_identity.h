// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the names in a certificate. The holder's name is exactly one URI, or DNS names. The common
// name is ignored.
//
// A certificate is refused if a name contains a NUL, a control character or a non-ASCII byte, or is
// longer than kNameBytesMax bytes. It is also refused if it has two URIs. Programs interpret such
// names in different ways, and have therefore accepted wrong peers.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/peer_identity.h"

struct x509_st;

namespace cairn::transport {

inline constexpr size_t kNameBytesMax = 2048;
inline constexpr size_t kNamesMax = 64;  // for one certificate

// Returns the names, the serial number and the end of `certificate`. Leaves trust_domain and root
// empty, because they depend on the verified chain. Accepts a certificate without names. Errors:
// InvalidArgument, with the reason.
absl::StatusOr<CertificatePeer> ParseCertificateNames(const x509_st* certificate);

// ParseCertificateNames() for a certificate in DER. Errors: also InvalidArgument if the bytes are
// not a certificate.
absl::StatusOr<CertificatePeer> ParseDerCertificateNames(std::span<const std::byte> der);

// Returns the subject for logs: "CN=engine-7,O=example". Bytes that are not printable ASCII are
// escaped.
std::string SubjectText(const x509_st* certificate);

// Returns the SHA-256 of the certificate's DER in lower-case hexadecimal.
std::string CertificateHash(const x509_st* certificate);

// Returns the trust domain of a URI, which is its authority in lower case. For
// "spiffe://prod.example/ns/a" this is "prod.example". Empty if the URI has none.
std::string TrustDomainOf(std::string_view uri);

}  // namespace cairn::transport
