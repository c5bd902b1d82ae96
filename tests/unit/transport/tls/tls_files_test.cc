// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/fake_clock.h"
#include "tests/support/metric_capture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"

namespace cairn::transport {
namespace {

using testing::HasSubstr;

class TlsFilesTest : public testing::Test {
 protected:
  TlsPaths Paths(const std::string& name = "server") const {
    return {.certificate = pki_.File(name + ".pem"),
            .key = pki_.File(name + ".key"),
            .ca = {{.domain = "", .path = pki_.File("ca.pem")}},
            .crl = ""};
  }
  std::string WhyNot(const TlsPaths& paths, TlsRole role = TlsRole::kServer) {
    const auto files = TlsFiles::Open(paths, role);
    return files.ok() ? "taken" : std::string(files.status().message());
  }
  bool LookLater(TlsFiles& files) {
    clock_.Advance(kTlsLookInterval);
    return files.Look();
  }

  TempDir folder_;
  TestPki pki_{folder_.path().string()};
  FakeClock clock_;
};

TEST_F(TlsFilesTest, BadFilesAreRefusedByNameAndReason) {
  EXPECT_EQ(WhyNot(Paths()), "taken");
  pki_.Write("expired", {.dns = {"a"}, .ends_in_s = -60});
  EXPECT_THAT(WhyNot(Paths("expired")), HasSubstr("expired.pem not taken: it has expired at"));
  pki_.Write("future", {.dns = {"a"}, .begins_in_s = 600});
  EXPECT_THAT(WhyNot(Paths("future")), HasSubstr("future.pem not taken: it is valid from"));
  pki_.Write("unpaired", {.dns = {"a"}, .has_key_of_another = true});
  EXPECT_THAT(WhyNot(Paths("unpaired")), HasSubstr("is not its key"));
  pki_.Write("use", {.dns = {"a"}, .extended_key_usage = "clientAuth"});
  EXPECT_THAT(WhyNot(Paths("use")), HasSubstr("does not allow a TLS server"));
  EXPECT_EQ(WhyNot(Paths("use"), TlsRole::kClient), "taken");
  pki_.Write("one-use", {.dns = {"a"}, .extended_key_usage = "serverAuth"});
  TlsPaths of_member = Paths("one-use");
  EXPECT_EQ(WhyNot(of_member), "taken");
  of_member.is_client_too = true;
  EXPECT_THAT(WhyNot(of_member), HasSubstr("one-use.pem not taken: its extended key usage does not "
                                           "allow a TLS client, and a member of a cluster is one"));
  of_member = Paths();
  of_member.is_client_too = true;
  EXPECT_EQ(WhyNot(of_member), "taken");
  pki_.Write("names", {.uris = {"a://b", "a://c"}});
  EXPECT_THAT(WhyNot(Paths("names")), HasSubstr("it has two URIs"));
  TlsPaths paths = Paths();
  paths.key = pki_.File("gone");
  EXPECT_THAT(WhyNot(paths), HasSubstr("gone not taken"));
  WriteTestFile(pki_.File("empty"), "");
  paths.key = pki_.File("empty");
  EXPECT_THAT(WhyNot(paths), HasSubstr("empty not taken: it is empty"));
  paths = Paths();
  paths.ca[0].path = pki_.File("empty");
  EXPECT_THAT(WhyNot(paths), HasSubstr("it is empty, where certificates are expected"));
  paths.ca[0].path = pki_.File("server.key");
  EXPECT_THAT(WhyNot(paths), HasSubstr("it has no certificates in PEM"));
  WriteTestFile(pki_.File("cut.pem"), pki_.ca().pem().substr(0, 200));
  paths.ca[0].path = pki_.File("cut.pem");
  EXPECT_THAT(WhyNot(paths), HasSubstr("cut.pem not taken"));
  WriteTestFile(
      pki_.File("locked.key"),
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
  paths = Paths();
  paths.key = pki_.File("locked.key");
  EXPECT_THAT(WhyNot(paths), HasSubstr("the key is encrypted"));
  EXPECT_THAT(WhyNot({.certificate = "", .key = "", .ca = Paths().ca, .crl = ""}),
              HasSubstr("no certificate"));
  EXPECT_EQ(WhyNot({.certificate = "", .key = "", .ca = Paths().ca, .crl = ""}, TlsRole::kClient),
            "taken");
}

// Half of a bundle must not count as a smaller bundle: for a while, it would shut out the clients
// of a CA, or let in those that its revocation list revokes.
TEST_F(TlsFilesTest, AFileOfSeveralIsNotTakenWhereverItIsCut) {
  const std::string list = pki_.ca().Revoke({});
  for (const std::string& one : {pki_.ca().pem(), list}) {
    TlsPaths paths = Paths();
    const bool is_list = one == list;
    const std::string cut = pki_.File("cut"), both = one + one;
    (is_list ? paths.crl : paths.ca[0].path) = cut;
    for (size_t bytes = 0; bytes <= both.size(); ++bytes) {
      WriteTestFile(cut, both.substr(0, bytes));
      // The END line may lack its line break. A cut between two cannot be told.
      const bool is_whole = bytes + 1 == one.size() || bytes == one.size() ||
                            bytes + 1 == both.size() || bytes == both.size();
      ASSERT_EQ(WhyNot(paths) == "taken", is_whole) << is_list << ", " << bytes << " bytes";
    }
  }
}

TEST_F(TlsFilesTest, ANewSetIsTakenWholeAndABadOneLeavesTheOld) {
  auto files = TlsFiles::Open(Paths(), TlsRole::kServer, clock_);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto now = [&] { return (*files)->context().get(); };
  const ssl_ctx_st* const first = now();
  EXPECT_FALSE(LookLater(**files));
  EXPECT_EQ((*files)->generation(), 1u);

  // Half of a rotation: the certificate without its key.
  const TestCertificate next = pki_.ca().Issue({.dns = {"next"}, .common_name = "next"});
  WriteTestFile(pki_.File("server.pem"), next.certificate);
  EXPECT_FALSE((*files)->Look()) << "not yet: a second has not passed";
  EXPECT_FALSE(LookLater(**files));
  EXPECT_EQ(now(), first);
  EXPECT_THAT((*files)->remark(), HasSubstr("is not its key; the one in force ends in 23h"));
  WriteTestFile(pki_.File("server.key"), next.key);
  EXPECT_TRUE(LookLater(**files));
  EXPECT_NE(now(), first);
  EXPECT_EQ((*files)->remark(), "");
  EXPECT_THAT((*files)->own_certificate(), HasSubstr("CN=next"));

  // A file that is away for a while, and comes back as it was.
  std::filesystem::rename(pki_.File("ca.pem"), pki_.File("away"));
  EXPECT_FALSE(LookLater(**files));
  EXPECT_THAT((*files)->remark(), HasSubstr("ca.pem not taken"));
  std::filesystem::rename(pki_.File("away"), pki_.File("ca.pem"));
  LookLater(**files);
  EXPECT_EQ((*files)->remark(), "");

  MetricCapture metrics;
  (*files)->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_tls_reload_failures_total"), 2);
  EXPECT_GE(metrics.Value("cairn_tls_reloads_total"), 1);
  EXPECT_GT(metrics.Value("cairn_tls_not_after_seconds"), 1.7e9);
}

TEST_F(TlsFilesTest, BundlesAndTheirDomains) {
  EXPECT_EQ(*ParseTlsBundle("/a/b.pem"), (TlsBundle{"", "/a/b.pem"}));
  EXPECT_EQ(*ParseTlsBundle("Prod.example=/a/b.pem"), (TlsBundle{"prod.example", "/a/b.pem"}));
  EXPECT_EQ(*ParseTlsBundle("/a=b.pem"), (TlsBundle{"", "/a=b.pem"}));
  EXPECT_FALSE(ParseTlsBundle("").ok());
  EXPECT_FALSE(ParseTlsBundle("=/a").ok());
  EXPECT_FALSE(ParseTlsBundle("a=").ok());
}

TEST_F(TlsFilesTest, AStaleRevocationListIsARemark) {
  WriteTestFile(pki_.File("crl.pem"), pki_.ca().Revoke({1}, -60));
  TlsPaths paths = Paths();
  paths.crl = pki_.File("crl.pem");
  const auto files = TlsFiles::Open(paths, TlsRole::kServer);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT((*files)->remark(), HasSubstr("crl.pem is stale"));
}

}  // namespace
}  // namespace cairn::transport
