// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport/transport_under_test.h"
#include "tests/support/temp_dir.h"
#include "transport/connect.h"
#include "transport/local/server.h"

namespace cairn::transport {
namespace {

class LocalUnderTest final : public TransportUnderTest {
 public:
  absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerLimits& limits,
                                                      LaneHandler& handler) override {
    return StartLocalServer({folder_.File("socket"), limits}, handler);
  }
  bool crosses_processes() const override { return true; }
  absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const std::string& address,
                                                        const proto::Frame& hello,
                                                        absl::Time deadline) override {
    ConnectOptions options;
    options.region_bytes = 160 << 20;
    return transport::Connect(address, hello, options, deadline);
  }
  bool moves_without_peer() const override { return true; }
  bool has_batches() const override { return true; }

 private:
  const TempDir folder_;
};

}  // namespace

std::unique_ptr<TransportUnderTest> MakeTransport() { return std::make_unique<LocalUnderTest>(); }

}  // namespace cairn::transport
