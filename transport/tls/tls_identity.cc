// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_identity.h"

#include <openssl/asn1.h>
#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <climits>
#include <ctime>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/tls/openssl_handles.h"

namespace cairn::transport {
namespace {

std::string Hex(std::span<const unsigned char> bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Returns the bytes of the name with their true length, including NUL bytes.
absl::StatusOr<std::string> NameOf(const ASN1_STRING* text, std::string_view kind) {
  const int bytes = ASN1_STRING_length(text);
  const unsigned char* const data = ASN1_STRING_get0_data(text);
  if (bytes <= 0 || data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("an empty ", ToAbsl(kind), " name"));
  }
  if (static_cast<size_t>(bytes) > kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a ", ToAbsl(kind), " name of ", bytes,
                                                   " bytes; the limit is ", kNameBytesMax));
  }
  for (int i = 0; i < bytes; ++i) {
    if (data[i] <= 0x20 || data[i] >= 0x7f) {
      return absl::InvalidArgumentError(absl::StrCat("a ", ToAbsl(kind), " name with the byte 0x",
                                                     absl::Hex(data[i], absl::kZeroPad2), " at ",
                                                     i));
    }
  }
  return std::string(reinterpret_cast<const char*>(data), static_cast<size_t>(bytes));
}

absl::Status TakeName(const GENERAL_NAME* name, CertificatePeer& peer) {
  int kind = 0;
  const void* const value = GENERAL_NAME_get0_value(name, &kind);
  switch (kind) {
    case GEN_URI: {
      CAIRN_ASSIGN_OR_RETURN(std::string uri,
                             NameOf(static_cast<const ASN1_STRING*>(value), "URI"));
      if (!peer.uri.empty()) {
        return absl::InvalidArgumentError("two URIs; exactly one may name the holder");
      }
      peer.uri = std::move(uri);
      return absl::OkStatus();
    }
    case GEN_DNS: {
      CAIRN_ASSIGN_OR_RETURN(std::string dns,
                             NameOf(static_cast<const ASN1_STRING*>(value), "DNS"));
      absl::AsciiStrToLower(&dns);
      peer.dns.push_back(std::move(dns));
      return absl::OkStatus();
    }
    case GEN_EMAIL:  // not used as a name, but must be well-formed
      return NameOf(static_cast<const ASN1_STRING*>(value), "mail").status();
    default:
      return absl::OkStatus();
  }
}

absl::StatusOr<std::string> SerialOf(const X509* certificate) {
  const OpensslPtr<BIGNUM> number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  if (number == nullptr || BN_num_bytes(number.get()) > 64) {
    ERR_clear_error();
    return absl::InvalidArgumentError("a serial number that is none");
  }
  std::array<unsigned char, 64> bytes{};
  const int count = BN_bn2bin(number.get(), bytes.data());
  std::string hex = Hex(std::span(bytes).first(static_cast<size_t>(count)));
  hex.erase(0, std::min(hex.find_first_not_of('0'), hex.size()));
  return hex.empty() ? std::string("0") : hex;
}

absl::StatusOr<absl::Time> EndOf(const X509* certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("an end of validity that is no time");
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<CertificatePeer> ParseCertificateNames(const x509_st* certificate) {
  CertificatePeer peer;
  int found = 0;
  const OpensslPtr<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, &found, nullptr)));
  if (names == nullptr && found != -1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(found == -2 ? "two lists of names"
                                                  : "a list of names that cannot be read");
  }
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  if (count > static_cast<int>(kNamesMax)) {
    return absl::InvalidArgumentError(absl::StrCat(count, " names; the limit is ", kNamesMax));
  }
  for (int i = 0; i < count; ++i) {
    CAIRN_RETURN_IF_ERROR(TakeName(sk_GENERAL_NAME_value(names.get(), i), peer));
  }
  std::sort(peer.dns.begin(), peer.dns.end());
  peer.dns.erase(std::unique(peer.dns.begin(), peer.dns.end()), peer.dns.end());
  CAIRN_ASSIGN_OR_RETURN(peer.serial, SerialOf(certificate));
  CAIRN_ASSIGN_OR_RETURN(peer.not_after, EndOf(certificate));
  return peer;
}

absl::StatusOr<CertificatePeer> ParseDerCertificateNames(std::span<const std::byte> der) {
  if (der.size() > LONG_MAX) return absl::InvalidArgumentError("no certificate");
  const auto* at = reinterpret_cast<const unsigned char*>(der.data());
  const OpensslPtr<X509> certificate(d2i_X509(nullptr, &at, static_cast<long>(der.size())));
  if (certificate == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("no certificate");
  }
  return ParseCertificateNames(certificate.get());
}

std::string SubjectText(const x509_st* certificate) {
  const OpensslPtr<BIO> text(BIO_new(BIO_s_mem()));
  if (text == nullptr ||
      X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253) < 0) {
    ERR_clear_error();
    return "unreadable";
  }
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(text.get(), &data);
  constexpr size_t kShown = 256;
  return absl::CHexEscape(
      absl::string_view(data, std::min(kShown, static_cast<size_t>(std::max(bytes, 0L)))));
}

std::string CertificateHash(const x509_st* certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned bytes = 0;
  CAIRN_CHECK(X509_digest(certificate, EVP_sha256(), hash.data(), &bytes) == 1);
  return Hex(std::span(hash).first(bytes));
}

std::string TrustDomainOf(std::string_view uri) {
  const size_t scheme = uri.find("://");
  if (scheme == uri.npos) return "";
  const std::string_view rest = uri.substr(scheme + 3);
  return absl::AsciiStrToLower(ToAbsl(rest.substr(0, rest.find_first_of("/?#"))));
}

}  // namespace cairn::transport
