// SPDX-License-Identifier: Apache-2.0
// Through the module as the daemon and the SDK open it, so that the door is tested too.
#include "base/check.h"
#include "tests/conformance/transport/transport_under_test.h"
#include "transport/connect.h"
#include "transport/ucx_module.h"

namespace cairn::transport {
namespace {

class UcxUnderTest final : public TransportUnderTest {
 public:
  absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerLimits& limits,
                                                      LaneHandler& handler) override {
    const absl::StatusOr<UcxModule*> module = LoadUcxModule();
    CAIRN_CHECK(module.ok(), module.status().ToString());
    UcxServerOptions options;
    options.host = "127.0.0.1";
    options.limits = limits;
    return (*module)->StartServer(options, handler);
  }
  bool crosses_processes() const override { return true; }
  absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const std::string& address,
                                                        const proto::Frame& hello,
                                                        absl::Time deadline) override {
    return transport::Connect(address, hello, {}, deadline);
  }
  bool moves_without_peer() const override { return false; }
  bool has_batches() const override { return true; }
};

}  // namespace

std::unique_ptr<TransportUnderTest> MakeTransport() { return std::make_unique<UcxUnderTest>(); }

}  // namespace cairn::transport
