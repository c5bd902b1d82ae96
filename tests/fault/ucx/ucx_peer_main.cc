// SPDX-License-Identifier: Apache-2.0
// The other end of tests that kill or stop a process.
//
//   cairn_ucx_test_peer serve [PORT]       a daemon: writes "port N", then "moving" for each
//   payload
//                                          that starts to move
//   cairn_ucx_test_peer put PORT BYTES     a client that puts until something fails
//   cairn_ucx_test_peer get PORT BYTES     a client that gets until something fails
//
// Clients connect to CAIRN_TEST_HOST, 127.0.0.1 if it is not set.
//#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "tests/fault/ucx/test_store.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/server.h"

namespace cairn::transport {
namespace {

void Say(const std::string& line) {
  const std::string text = line + "\n";
  CAIRN_CHECK(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

int Serve(uint16_t port) {
  TestStore store(size_t{64} << 20);
  store.on_moving = [] { Say("moving"); };
  UcxServerOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.limits.payload_bytes_max = uint64_t{512} << 20;
  const auto server = StartUcxServer(options, {}, store);
  CAIRN_CHECK(server.ok(), server.status().ToString());
  const std::string address = (*server)->address();
  Say("port " + address.substr(address.rfind(':') + 1));
  for (;;) pause();  // until it is killed
}

int Repeat(const std::string& what, uint16_t port, size_t bytes) {
  const char* const host = getenv("CAIRN_TEST_HOST");
  proto::HelloReply reply;
  auto connection = UcxConnection::Connect(host == nullptr ? "127.0.0.1" : host, port, HelloFrame(),
                                           {}, MonotonicNow() + absl::Seconds(10), &reply);
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

}  // namespace
}  // namespace cairn::transport

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto port = static_cast<uint16_t>(argc > 2 ? std::stoi(argv[2]) : 0);
  if (what == "serve") return cairn::transport::Serve(port);
  CAIRN_CHECK(argc == 4 && (what == "put" || what == "get"));
  return cairn::transport::Repeat(what, port, std::stoul(argv[3]));
}
