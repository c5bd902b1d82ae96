// SPDX-License-Identifier: Apache-2.0
#pragma once
// transport/stream for the suite: a server and its clients with certificates of their own.

#include <stdlib.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "tests/conformance/transport/transport_under_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"
#include "transport/connect.h"
#include "transport/stream/connection.h"
#include "transport/stream/server.h"

namespace cairn::transport {

class StreamUnderTest : public TransportUnderTest {
 public:
  // Where another process finds the certificates of the first one.
  static constexpr char kPkiVariable[] = "CAIRN_TEST_PKI";

  // `is_strained`: every second read gives one byte, sockets seem to hold 4 KiB, and each record
  // has a key of its own.
  explicit StreamUnderTest(bool is_strained) : is_strained_(is_strained) {
    if (const char* const folder = ::getenv(kPkiVariable)) {
      pki_folder_ = folder;
    } else {
      pki_folder_ = folder_.path().string();
      TestPki pki(pki_folder_);
      ::setenv(kPkiVariable, pki_folder_.c_str(), 1);
      is_owner_ = true;
    }
    server_files_ = Open("server", TlsRole::kServer);
    client_files_ = Open("client", TlsRole::kClient);
  }
  ~StreamUnderTest() override {
    if (is_owner_) ::unsetenv(kPkiVariable);
  }

  absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerLimits& limits,
                                                      LaneHandler& handler) override {
    handshakes_ = std::make_unique<Handshakes>(*server_files_, HandshakeLimits{});
    handshakes_->Start();
    StreamServerOptions options{.host = "127.0.0.1", .limits = limits};
    if (is_strained_) {
      options.on_arrival = [](TlsArrival& arrival) {
        Strain(arrival.socket.get(), *arrival.channel, *arrival.session);
      };
    }
    return StartStreamServer(options, *handshakes_, handler);
  }
  bool crosses_processes() const override { return true; }
  absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const std::string& address,
                                                        const proto::Frame& hello,
                                                        absl::Time deadline) override {
    const auto target = ParseTarget(address);
    CAIRN_CHECK(target.ok() && target->kind == Target::Kind::kTls);
    StreamConnectOptions options{.files = client_files_.get()};
    if (is_strained_) options.on_open = &Strain;
    return StreamConnection::Connect(target->host, target->port, hello, options, deadline, nullptr);
  }
  bool moves_without_peer() const override { return false; }
  bool has_batches() const override { return false; }

 private:
  static void Strain(int, SocketChannel& channel, TlsSession& session) {
    channel.Strain(4096);
    session.SetKeyLimits({.records_per_key = 1, .updates_per_minute = 1e9});
  }
  std::unique_ptr<TlsFiles> Open(const std::string& name, TlsRole role) const {
    auto files = TlsFiles::Open({.certificate = pki_folder_ + "/" + name + ".pem",
                                 .key = pki_folder_ + "/" + name + ".key",
                                 .ca = {{.domain = "", .path = pki_folder_ + "/ca.pem"}},
                                 .crl = ""},
                                role);
    CAIRN_CHECK(files.ok(), files.status().ToString());
    return *std::move(files);
  }

  const bool is_strained_;
  bool is_owner_ = false;
  TempDir folder_;
  std::string pki_folder_;
  std::unique_ptr<TlsFiles> server_files_, client_files_;
  std::unique_ptr<Handshakes> handshakes_;
};

}  // namespace cairn::transport
