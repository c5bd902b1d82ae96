// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <csignal>
#include <random>

#include "base/file.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"

namespace cairn::transport {
namespace {

using testing::HasSubstr;

// Both ends over queues.
struct Pair {
  std::string to_server, to_client;
  QueueChannel server_channel{&to_server, &to_client};
  QueueChannel client_channel{&to_client, &to_server};
  std::unique_ptr<TlsSession> server, client;

  // Until neither gets further. Both open: true.
  bool Shake() {
    for (int i = 0; i < 20; ++i) {
      client->Handshake();
      server->Handshake();
    }
    return client->is_open() && server->is_open();
  }
  // What the client hears after its part of the handshake.
  TlsStep Hear() {
    std::byte byte{};
    return client->Read({&byte, 1}).step;
  }
};

class TlsSessionTest : public testing::Test {
 protected:
  std::unique_ptr<TlsFiles> Files(const std::string& name, TlsRole role,
                                  const std::string& crl = "") {
    auto files = TlsFiles::Open({.certificate = name.empty() ? "" : pki_.File(name + ".pem"),
                                 .key = name.empty() ? "" : pki_.File(name + ".key"),
                                 .ca = bundles_,
                                 .crl = crl,
                                 .is_stale_crl_refused = is_stale_crl_refused_},
                                role);
    CAIRN_CHECK(files.ok(), files.status().ToString());
    return *std::move(files);
  }
  std::unique_ptr<Pair> Make(const std::string& client = "client",
                             const std::string& server_name = "localhost",
                             const std::string& crl = "", const std::string& server = "server",
                             uint64_t records_per_key = kRecordsPerKey) {
    auto pair = std::make_unique<Pair>();
    const auto ours = Files(server, TlsRole::kServer, crl);
    const auto theirs = Files(client, TlsRole::kClient);
    pair->server =
        std::make_unique<TlsSession>(ours->context(), TlsRole::kServer,
                                     TlsSessionOptions{.alpn = "test/1"}, pair->server_channel);
    pair->client = std::make_unique<TlsSession>(
        theirs->context(), TlsRole::kClient,
        TlsSessionOptions{.alpn = "test/1", .server_name = server_name}, pair->client_channel);
    pair->server->SetKeyLimits({.records_per_key = records_per_key});
    return pair;
  }
  // A client that the server refuses: by which reason, in which words.
  void ExpectRefused(const std::string& client, TlsRefusal refusal, const std::string& words,
                     const std::string& heard, const std::string& crl = "") {
    SCOPED_TRACE(client);
    const auto pair = Make(client, "localhost", crl);
    EXPECT_FALSE(pair->Shake());
    EXPECT_EQ(Name(pair->server->refusal()), Name(refusal));
    EXPECT_THAT(std::string(pair->server->failure().message()), HasSubstr(words));
    EXPECT_EQ(pair->Hear(), TlsStep::kFailed);
    EXPECT_EQ(pair->client->refusal(), TlsRefusal::kPeerRefused);
    EXPECT_THAT(std::string(pair->client->failure().message()), HasSubstr(heard));
    EXPECT_EQ(ERR_peek_error(), 0u);
  }

  TempDir folder_;
  TestPki pki_{folder_.path().string()};
  std::vector<TlsBundle> bundles_ = {{.domain = "", .path = pki_.File("ca.pem")}};
  bool is_stale_crl_refused_ = false;
};

TEST_F(TlsSessionTest, BothKnowEachOtherAndMoveBytes) {
  for (const std::string name :
       {"localhost", "127.0.0.1", "::1", "spiffe://test.example/ns/cairn/sa/cairnd"}) {
    SCOPED_TRACE(name);
    const auto pair = Make("client", name);
    ASSERT_TRUE(pair->Shake()) << pair->client->failure() << pair->server->failure();
    EXPECT_EQ(pair->server->peer().uri, "spiffe://test.example/ns/team-a/sa/engine");
    EXPECT_EQ(pair->server->peer().trust_domain, "");
    EXPECT_EQ(pair->server->peer().root.size(), 64u);
    EXPECT_EQ(pair->client->peer().uri, "spiffe://test.example/ns/cairn/sa/cairnd");
    const std::string said = "a block";
    ASSERT_EQ(pair->client->Write(std::as_bytes(std::span(said))).bytes, said.size());
    std::string heard(100, 0);
    const auto moved = pair->server->Read(std::as_writable_bytes(std::span(heard)));
    ASSERT_EQ(moved.step, TlsStep::kDone);
    EXPECT_EQ(heard.substr(0, moved.bytes), said);
    EXPECT_EQ(pair->server->Read(std::as_writable_bytes(std::span(heard))).step,
              TlsStep::kWantsRead);
    pair->client->Close();
    EXPECT_EQ(pair->server->Read(std::as_writable_bytes(std::span(heard))).step, TlsStep::kClosed);
  }
}

TEST_F(TlsSessionTest, ClientsThatAreRefusedHearWhy) {
  using namespace std::string_literals;
  ExpectRefused("", TlsRefusal::kNoCertificate, "no certificate", "certificate required");
  // Made now, so that OpenSSL lets the client show it: its own check is of TlsFiles.
  pki_.Write("use", {.uris = {"spiffe://a/b"}, .extended_key_usage = "clientAuth"});
  TestCa stranger("Stranger");
  const TestCertificate strange = stranger.Issue({.uris = {"spiffe://a/b"}});
  WriteTestFile(pki_.File("strange.pem"), strange.certificate);
  WriteTestFile(pki_.File("strange.key"), strange.key);
  ExpectRefused("strange", TlsRefusal::kUnknownCa, "unable to get local issuer certificate",
                "unknown ca");
  pki_.Write("nobody", {.common_name = "engine-7.team-b.example"});
  ExpectRefused("nobody", TlsRefusal::kWrongName, "neither a URI nor a DNS name", "alert");
  const TestCertificate gone = pki_.Write("gone", {.uris = {"spiffe://a/b"}});
  WriteTestFile(pki_.File("crl.pem"), pki_.ca().Revoke({gone.serial}));
  ExpectRefused("gone", TlsRefusal::kRevoked, "certificate revoked", "certificate revoked",
                pki_.File("crl.pem"));
  const auto good = Make("client", "localhost", pki_.File("crl.pem"));
  EXPECT_TRUE(good->Shake()) << good->server->failure();
}

// By default, a list past its next update still counts, for those whom it names.
TEST_F(TlsSessionTest, AStaleRevocationListCountsOrRefusesAll) {
  const TestCertificate gone = pki_.Write("gone", {.uris = {"spiffe://a/b"}});
  const std::string crl = pki_.File("crl.pem");
  WriteTestFile(crl, pki_.ca().Revoke({gone.serial}, /*next_update_in_s=*/-60));
  const auto good = Make("client", "localhost", crl);
  EXPECT_TRUE(good->Shake()) << good->server->failure();
  ExpectRefused("gone", TlsRefusal::kRevoked, "certificate revoked", "certificate revoked", crl);
  is_stale_crl_refused_ = true;
  const auto refused = Make("client", "localhost", crl);
  EXPECT_FALSE(refused->Shake());
  EXPECT_EQ(Name(refused->server->refusal()), Name(TlsRefusal::kRevoked));
  EXPECT_THAT(std::string(refused->server->failure().message()), HasSubstr("CRL has expired"));
  WriteTestFile(crl, pki_.ca().Revoke({gone.serial}));
  const auto renewed = Make("client", "localhost", crl);
  EXPECT_TRUE(renewed->Shake()) << renewed->server->failure();
}

TEST_F(TlsSessionTest, ServersThatAreNotWhoIsAskedForAreRefused) {
  const auto refused = [&](const std::string& name, const std::string& server = "server") {
    const auto pair = Make("client", name, "", server);
    EXPECT_FALSE(pair->Shake());
    EXPECT_EQ(Name(pair->client->refusal()), "wrong_name");
    EXPECT_EQ(pair->server->refusal(), TlsRefusal::kPeerRefused);
    return std::string(pair->client->failure().message());
  };
  EXPECT_THAT(refused("other.example"), HasSubstr("it is not for other.example"));
  EXPECT_THAT(refused("10.0.0.1"), HasSubstr("it is not for 10.0.0.1"));
  EXPECT_THAT(refused("spiffe://test.example/other"), HasSubstr("not for spiffe://test.example"));
  // The common name is no name.
  pki_.Write("cn", {.uris = {"spiffe://a/b"}, .common_name = "host.example"});
  EXPECT_THAT(refused("host.example", "cn"), HasSubstr("it is not for host.example"));
}

TEST_F(TlsSessionTest, AUriBelongsToTheBundleOfItsDomain) {
  TestCa other("Other CA");
  WriteTestFile(pki_.File("other.pem"), other.pem());
  const TestCertificate forged = other.Issue({.uris = {"spiffe://test.example/ns/a"}});
  WriteTestFile(pki_.File("forged.pem"), forged.certificate);
  WriteTestFile(pki_.File("forged.key"), forged.key);
  bundles_ = {{.domain = "test.example", .path = pki_.File("ca.pem")},
              {.domain = "other.example", .path = pki_.File("other.pem")}};
  ExpectRefused("forged", TlsRefusal::kWrongDomain, "trust domain 'test.example'", "alert");
  const auto good = Make();
  ASSERT_TRUE(good->Shake()) << good->server->failure();
  EXPECT_EQ(good->server->peer().trust_domain, "test.example");
  // A bundle for all does not vouch for a domain that has its own.
  bundles_[1].domain = "";
  ExpectRefused("forged", TlsRefusal::kWrongDomain, "trust domain 'test.example'", "alert");
}

TEST_F(TlsSessionTest, ARevocationEndsWhoIsOpen) {
  const auto pair = Make();
  ASSERT_TRUE(pair->Shake());
  const auto without = Files("server", TlsRole::kServer);
  EXPECT_FALSE(pair->server->IsPeerRevoked(without->context()));
  WriteTestFile(pki_.File("crl.pem"), pki_.ca().Revoke({102}));  // the client's, the second made
  const auto with = Files("server", TlsRole::kServer, pki_.File("crl.pem"));
  EXPECT_TRUE(pair->server->IsPeerRevoked(with->context()));
}

TEST_F(TlsSessionTest, WhoSpeaksNoTlsOrAnotherProtocol) {
  auto pair = Make();
  pair->to_server = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_EQ(pair->server->Handshake(), TlsStep::kFailed);
  EXPECT_EQ(Name(pair->server->refusal()), "plaintext");
  pair = Make();
  pair->to_client = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  EXPECT_EQ(pair->client->Handshake(), TlsStep::kFailed);
  EXPECT_EQ(Name(pair->client->refusal()), "plaintext");
  EXPECT_THAT(std::string(pair->client->failure().message()), HasSubstr("does not speak TLS"));

  pair = Make();
  const auto theirs = Files("client", TlsRole::kClient);
  pair->client = std::make_unique<TlsSession>(
      theirs->context(), TlsRole::kClient,
      TlsSessionOptions{.alpn = "other/2", .server_name = "localhost"}, pair->client_channel);
  EXPECT_FALSE(pair->Shake());
  EXPECT_EQ(Name(pair->server->refusal()), "alpn");
}

TEST_F(TlsSessionTest, KeysAreRenewedAndNotTooOften) {
  const auto pair = Make("client", "localhost", "", "server", /*records_per_key=*/1);
  ASSERT_TRUE(pair->Shake());
  const std::vector<std::byte> bytes(1000, std::byte{7});
  std::vector<std::byte> target(1000);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(pair->server->Write(bytes).bytes, bytes.size());
    TlsSession::Moved moved;
    for (int turn = 0; turn < 4 && moved.step != TlsStep::kDone; ++turn) {
      moved = pair->client->Read(target);
    }
    ASSERT_EQ(moved.bytes, bytes.size());
    EXPECT_EQ(target, bytes);
  }
  EXPECT_EQ(pair->server->keys_renewed(), 9u);
  for (int i = 0; i < 20 && pair->client->is_open(); ++i) {
    ASSERT_EQ(pair->server->Write(bytes).bytes, bytes.size());
    for (int turn = 0; turn < 4; ++turn) pair->client->Read(target);
  }
  EXPECT_EQ(Name(pair->client->refusal()), "key_updates");
}

TEST_F(TlsSessionTest, AHandshakeCutAnywhereIsNoProof) {
  // What a client sends, whole, and then every part of it.
  auto whole = Make();
  std::string sent;
  for (int i = 0; i < 4; ++i) {
    whole->client->Handshake();
    sent += whole->to_server;
    whole->server->Handshake();
  }
  ASSERT_TRUE(whole->server->is_open());
  for (size_t cut = 0; cut < sent.size(); cut += 7) {
    auto pair = Make();
    pair->to_server = sent.substr(0, cut);
    EXPECT_NE(pair->server->Handshake(), TlsStep::kDone);
    EXPECT_FALSE(pair->server->is_open());
  }
}

TEST_F(TlsSessionTest, MutatedHandshakesAreRefused) {
  std::mt19937_64 random = SeededRandom();
  const auto ours = Files("server", TlsRole::kServer);
  const auto theirs = Files("client", TlsRole::kClient);
  for (int i = 0; i < 300; ++i) {
    Pair pair;
    pair.server =
        std::make_unique<TlsSession>(ours->context(), TlsRole::kServer,
                                     TlsSessionOptions{.alpn = "test/1"}, pair.server_channel);
    pair.client = std::make_unique<TlsSession>(
        theirs->context(), TlsRole::kClient,
        TlsSessionOptions{.alpn = "test/1", .server_name = "localhost"}, pair.client_channel);
    pair.client->Handshake();
    const int flight = static_cast<int>(random() % 2);
    for (int turn = 0; turn < 3; ++turn) {
      if (turn == flight && !pair.to_server.empty()) {
        pair.to_server[random() % pair.to_server.size()] ^= static_cast<char>(1 + random() % 255);
      }
      pair.server->Handshake();
      pair.client->Handshake();
    }
    // A byte that does not matter may be changed (the legacy version of a record); what counts is
    // that a session that is open is the client's own.
    if (pair.server->is_open()) {
      EXPECT_EQ(pair.server->peer().uri, "spiffe://test.example/ns/team-a/sa/engine");
    }
  }
}

TEST_F(TlsSessionTest, AClosedSocketGivesNoSignal) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd ours(ends[0]);
  Fd theirs(ends[1]);
  theirs.Reset();
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  SocketChannel channel(ours.get());
  const auto files = Files("client", TlsRole::kClient);
  TlsSession session(files->context(), TlsRole::kClient,
                     {.alpn = "test/1", .server_name = "localhost"}, channel);
  EXPECT_EQ(session.Handshake(), TlsStep::kFailed);
  std::signal(SIGPIPE, before);
  EXPECT_EQ(Name(session.refusal()), "closed");
}

}  // namespace
}  // namespace cairn::transport
