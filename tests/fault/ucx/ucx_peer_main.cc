// SPDX-License-Identifier: Apache-2.0
// The other end of tests that kill or stop a process.
//
//   cairn_ucx_test_peer serve [PORT]       a daemon: writes "port N", then "moving" for each
//   payload
//                                          that starts to move
//   cairn_ucx_test_peer put PORT BYTES     a client that puts until something fails
//   cairn_ucx_test_peer get PORT BYTES     a client that gets until something fails
//   cairn_ucx_test_peer once PORT          a client that moves payloads of each kind once, and
//   ends:
//                                          0, or 1 and the reason on stdout
//
// All of them are at CAIRN_TEST_HOST, 127.0.0.1 if it is not set.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "tests/fault/ucx/test_store.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/server.h"

namespace cairn::transport {
namespace {

void Say(const std::string& line) {
  const std::string text = line + "\n";
  CAIRN_CHECK(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

std::string Host() {
  const char* const host = getenv("CAIRN_TEST_HOST");
  return host == nullptr ? "127.0.0.1" : host;
}

absl::StatusOr<std::unique_ptr<UcxConnection>> Connect(uint16_t port) {
  return UcxConnection::Connect(Host(), port, HelloFrame(), {}, MonotonicNow() + absl::Seconds(10),
                                nullptr);
}

int Serve(uint16_t port) {
  TestStore store(size_t{64} << 20);
  store.on_moving = [] { Say("moving"); };
  UcxServerOptions options;
  options.host = Host();
  options.port = port;
  options.limits.payload_bytes_max = uint64_t{512} << 20;
  const auto server = StartUcxServer(options, {}, store);
  CAIRN_CHECK(server.ok(), server.status().ToString());
  const std::string address = (*server)->address();
  Say("port " + address.substr(address.rfind(':') + 1));
  for (;;) pause();  // until it is killed
}

int Repeat(const std::string& what, uint16_t port, size_t bytes) {
  auto connection = Connect(port);
  CAIRN_CHECK(connection.ok(), connection.status().ToString());
  std::vector<std::byte> memory(bytes, std::byte{1});
  const proto::FrameBytes put = PutRequest(2, memory);
  for (;;) {  // until something fails or it is killed
    Call call;
    call.deadline = MonotonicNow() + absl::Seconds(120);
    call.request = what == "put" ? put : GetRequest(2, bytes);
    if (what == "put") {
      call.payload = memory;
    } else {
      call.target = memory;
    }
    if (!(*connection)->Start(&call).ok()) return 1;
    Finish(**connection, call);
    if (!call.status.ok()) return 1;
  }
}

// Eager and rendezvous, either way; then the connection closes.
absl::Status MoveOnce(uint16_t port) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<UcxConnection> connection, Connect(port));
  uint64_t seq = 2;
  for (const size_t bytes : {size_t{4} << 10, size_t{200} << 10, size_t{4} << 20}) {
    std::vector<std::byte> memory = Pattern(bytes);
    Call put;
    put.request = PutRequest(seq++, memory);
    put.payload = memory;
    Call get;
    get.request = GetRequest(seq++, bytes);
    get.target = memory;
    for (Call* call : {&put, &get}) {
      call->deadline = MonotonicNow() + absl::Seconds(10);
      CAIRN_RETURN_IF_ERROR(connection->Start(call));
      Finish(*connection, *call);
      CAIRN_RETURN_IF_ERROR(call->status);
    }
    if (memory != Pattern(bytes)) return absl::DataLossError("other bytes than were sent");
  }
  return absl::OkStatus();
}

int Once(uint16_t port) {
  const absl::Status status = MoveOnce(port);
  if (!status.ok()) Say(status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace cairn::transport

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto port = static_cast<uint16_t>(argc > 2 ? std::stoi(argv[2]) : 0);
  if (what == "serve") return cairn::transport::Serve(port);
  if (what == "once") return cairn::transport::Once(port);
  CAIRN_CHECK(argc == 4 && (what == "put" || what == "get"));
  return cairn::transport::Repeat(what, port, std::stoul(argv[3]));
}
