// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tls_certificates.h"

namespace cairn::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<CertificatePeer> Parse(const TestCertificateOptions& options) {
  TestCa ca;
  const TestCertificate made = ca.Issue(options);
  return ParseDerCertificateNames(std::as_bytes(std::span(made.der)));
}

TEST(TlsIdentity, OneUriOrDnsNames) {
  const auto uri = Parse({.uris = {"spiffe://Prod.example/ns/a/sa/b"}});
  ASSERT_TRUE(uri.ok()) << uri.status();
  EXPECT_EQ(uri->uri, "spiffe://Prod.example/ns/a/sa/b");
  EXPECT_EQ(uri->serial, "65");
  EXPECT_EQ(TrustDomainOf(uri->uri), "prod.example");
  const auto dns = Parse({.dns = {"B.example", "a.example", "b.example"}});
  ASSERT_TRUE(dns.ok());
  EXPECT_THAT(dns->dns, ElementsAre("a.example", "b.example"));
  EXPECT_EQ(dns->uri, "");
}

TEST(TlsIdentity, TheCommonNameIsNoName) {
  const auto peer = Parse({.common_name = "engine-7.team-b.example"});
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->uri, "");
  EXPECT_TRUE(peer->dns.empty());
}

TEST(TlsIdentity, BadNamesRefuseTheCertificate) {
  const auto refusal = [](const TestCertificateOptions& options) {
    const auto peer = Parse(options);
    return peer.ok() ? std::string("taken") : std::string(peer.status().message());
  };
  using namespace std::string_literals;
  EXPECT_THAT(refusal({.uris = {"spiffe://a/b", "spiffe://a/c"}}), HasSubstr("two URIs"));
  EXPECT_THAT(refusal({.uris = {"spiffe://a/vllm\0.evil"s}}), HasSubstr("byte 0x00 at 15"));
  EXPECT_THAT(refusal({.dns = {"a.example\0.evil"s}}), HasSubstr("byte 0x00"));
  EXPECT_THAT(refusal({.uris = {"spiffe://a/b\n"}}), HasSubstr("byte 0x0a"));
  EXPECT_THAT(refusal({.uris = {"spiffe://a/\xc3\xa4"}}), HasSubstr("byte 0xc3"));
  EXPECT_THAT(refusal({.dns = {"a b"}}), HasSubstr("byte 0x20"));
  EXPECT_THAT(refusal({.dns = {""}}), HasSubstr("empty DNS name"));
  EXPECT_THAT(refusal({.uris = {"spiffe://a/" + std::string(2038, 'x')}}),
              HasSubstr("2049 bytes; the limit is 2048"));
  EXPECT_EQ(refusal({.uris = {"spiffe://a/" + std::string(2037, 'x')}}), "taken");
  EXPECT_THAT(refusal({.dns = std::vector<std::string>(65, "a")}), HasSubstr("the limit is 64"));
  EXPECT_FALSE(ParseDerCertificateNames(std::as_bytes(std::span("no DER"))).ok());
}

TEST(TlsIdentity, TrustDomains) {
  EXPECT_EQ(TrustDomainOf("spiffe://a.example"), "a.example");
  EXPECT_EQ(TrustDomainOf("https://A.example/x"), "a.example");
  EXPECT_EQ(TrustDomainOf("urn:x"), "");
  EXPECT_EQ(TrustDomainOf(""), "");
}

}  // namespace
}  // namespace cairn::transport
