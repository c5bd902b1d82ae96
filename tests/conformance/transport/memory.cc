// SPDX-License-Identifier: Apache-2.0
#include "transport/memory/memory.h"

#include "tests/conformance/transport/transport_under_test.h"

namespace cairn::transport {
namespace {

class MemoryUnderTest final : public TransportUnderTest {
 public:
  absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerLimits& limits,
                                                      LaneHandler& handler) override {
    return StartMemoryServer(limits, handler);
  }
  absl::StatusOr<std::unique_ptr<Connection>> Connect(Server& server, const proto::Frame& hello,
                                                      absl::Time deadline) override {
    return static_cast<MemoryServer&>(server).Connect(hello, deadline);
  }
  bool crosses_processes() const override { return false; }
  absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const std::string&, const proto::Frame&,
                                                        absl::Time) override {
    return absl::UnimplementedError("memory stays within its process");
  }
  bool moves_without_peer() const override { return true; }
  bool has_batches() const override { return true; }
};

}  // namespace

std::unique_ptr<TransportUnderTest> MakeTransport() { return std::make_unique<MemoryUnderTest>(); }

}  // namespace cairn::transport
