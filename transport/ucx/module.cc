// SPDX-License-Identifier: Apache-2.0
// The only exported function of libcairn_ucx.so: a factory.
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/log.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/server.h"
#include "transport/ucx/settings.h"
#include "transport/ucx_module.h"

namespace cairn::transport {
namespace {

class Module final : public UcxModule {
 public:
  Module() {
    LogUcxMessages();
    for (const std::string& warning : EnvironmentWarnings()) LogWarn("ucx", warning);
    if (const std::vector<std::string> names = VariablesOfOthers(); !names.empty()) {
      LogInfo("ucx", "UCX settings are pinned: these variables have no effect",
              {{"variables", absl::StrJoin(names, ",")}});
    }
  }

  absl::StatusOr<std::unique_ptr<Server>> StartServer(const UcxServerOptions& options,
                                                      LaneHandler& handler) override {
    return StartUcxServer(options, {}, handler);
  }

  absl::StatusOr<std::unique_ptr<Connection>> Connect(std::string_view host, uint16_t port,
                                                      const proto::Frame& hello,
                                                      const UcxConnectOptions& options,
                                                      absl::Time deadline,
                                                      proto::HelloReply* reply) override {
    return UcxConnection::Connect(host, port, hello, options, deadline, reply);
  }
};

}  // namespace
}  // namespace cairn::transport

cairn::transport::UcxModule* cairn_ucx_module(uint32_t version) {
  if (version != cairn::transport::kUcxModuleVersion) return nullptr;
  // Never destroyed, because the module stays loaded until the process ends.
  static auto* const module = new cairn::transport::Module();
  return module;
}
