// SPDX-License-Identifier: Apache-2.0
// A real cairnd with its UCX data plane on, beside the local one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(DaemonUcx, WhatComesOverOneTransportIsServedOverTheOther) {
  auto started = DaemonProcess::Start({"--data=127.0.0.1:0"});
  ASSERT_TRUE(started.ok()) << started.status();
  DaemonProcess& daemon = **started;
  EXPECT_THAT(daemon.ReadLog(), HasSubstr("TRUST BOUNDARY"));
  auto client = RawClient::Open(daemon.endpoint("control"));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->data_address(true), daemon.endpoint("data"));
  const ToyShape shape = BigToy();
  auto space = (*client)->OpenSpace(ToySpec("test", shape));
  auto ucx = (*client)->DialUcx();
  auto local = (*client)->Dial(uint64_t{16} << 20);
  ASSERT_TRUE(space.ok() && ucx.ok() && local.ok()) << ucx.status();
  const std::vector<transport::Connection*> connections = {ucx->get(), local->get()};
  const proto::SliceRange layers{3, 5, 0, shape.heads};
  for (uint64_t block = 1; block <= 2; ++block) {
    const auto source = ToySource(block, shape.whole(), shape);
    const auto put =
        AskOk(*connections[block - 1],
              (*client)->PutFrame(*space, ToyKey(block), shape.whole(), source, shape), source);
    ASSERT_TRUE(put.ok()) << put.status();
    for (transport::Connection* connection : connections) {
      for (const proto::SliceRange& slice : {shape.whole(), layers}) {
        const auto expected = ToySource(block, slice, shape);
        std::vector<std::byte> target(expected.size());
        const auto get =
            AskOk(*connection, (*client)->GetFrame(*space, ToyKey(block), slice, target.size()), {},
                  target);
        ASSERT_TRUE(get.ok()) << get.status();
        EXPECT_TRUE(target == expected) << "wrong bytes";
      }
    }
  }
  EXPECT_TRUE(daemon.AwaitMetric(
      "cairn_data_requests_total{transport=\"ucx\",op=\"get\",code=\"ok\"", 4, absl::Seconds(5)));
  proto::Frame wrong = (*client)->GetFrame(*space, ToyKey(1), shape.whole(), 0);
  wrong.ticket[0] ^= std::byte{1};
  // Its completion does not say that the refusal was delivered, and the connection is dropped at
  // once.
  EXPECT_THAT(
      AskOk(*connections[0], wrong).status().code(),
      ::testing::AnyOf(absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnavailable));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(absl::Seconds(20)).value_or(-1), 0) << daemon.ReadLog();
}

// Variables that a node has for other users of UCX and gRPC, by each of which the library would end
// the daemon, and one by which UCX would fill its stdout.
TEST(DaemonUcx, TakesNoVariableOfTheNode) {
  const std::pair<const char*, const char*> variables[] = {{"UCX_SOCKADDR_TLS_PRIORITY", "rdmacm"},
                                                           {"UCX_CM_USE_ALL_DEVICES", "n"},
                                                           {"UCX_LOG_FILE", "/nonexistent/log"},
                                                           {"UCX_RCACHE_STAT_MIN", "0"},
                                                           {"UCX_LOG_LEVEL", "debug"},
                                                           {"GRPC_POLL_STRATEGY", "epollex"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  const auto started = DaemonProcess::Start({"--data=127.0.0.1:0"});
  for (const auto& [name, value] : variables) unsetenv(name);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT((*started)->ready_line(), ::testing::StartsWith("cairnd ready "));
  EXPECT_THAT((*started)->ReadLog(),
              HasSubstr("UCX_CM_USE_ALL_DEVICES,UCX_LOG_FILE,UCX_RCACHE_STAT_MIN,"
                        "UCX_SOCKADDR_TLS_PRIORITY,GRPC_POLL_STRATEGY"));
  auto client = RawClient::Open((*started)->endpoint("control"));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto dialled = (*client)->DialUcx();
  EXPECT_TRUE(dialled.ok()) << dialled.status();
}

TEST(DaemonUcx, IsNotReadyWhereNobodyGetsThrough) {
  const auto started = DaemonProcess::Start({"--data=127.0.0.2:0"});
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.status().ToString(), HasSubstr("which is 127.0.0.1"));
}

}  // namespace
}  // namespace cairn
