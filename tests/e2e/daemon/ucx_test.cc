// SPDX-License-Identifier: Apache-2.0
// A real cairnd with its UCX data plane on, beside the local one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
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

}  // namespace
}  // namespace cairn
