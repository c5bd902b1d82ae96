// SPDX-License-Identifier: Apache-2.0
#pragma once
// The door to transport/ucx. All of UCX lives in one shared module, libcairn_ucx.so, that nothing
// links: the daemon (--data) and the SDK (a HOST:PORT target) open it at run time with
// dlopen(RTLD_NOW | RTLD_LOCAL), so a program without UCX still runs, and an engine that carries
// another UCX never meets ours. The module exports one symbol, kUcxModuleSymbol.
//
// Both sides are built from one tree by one compiler: C++ types of transport.h cross the door. The
// version below is checked first, so that a stale file answers with an error and not with a crash.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {

inline constexpr char kUcxModuleFile[] = "libcairn_ucx.so";
inline constexpr char kUcxModuleSymbol[] = "cairn_ucx_module";
// Goes up with every change of this header, of transport.h or of proto/frame.h.
inline constexpr uint32_t kUcxModuleVersion = 1;

struct UcxServerOptions {
  std::string
      host;  // numeric address of a local interface; the data port is pinned to that interface
  uint16_t port = 0;       // 0 picks one
  std::string port_range;  // of UCX's data ports, e.g. "40000-40100"; empty: any
  ServerLimits limits;
};

struct UcxConnectOptions {
  std::string device;  // network interface; empty: the one that reaches the host
};

// What the module does. Thread-safe; lives as long as the process, as the module is never unloaded.
class UcxModule {
 public:
  virtual ~UcxModule() = default;

  // handler must outlive the server. Unavailable when the address cannot be bound, InvalidArgument
  // when host is no address of a local interface.
  virtual absl::StatusOr<std::unique_ptr<Server>> StartServer(const UcxServerOptions& options,
                                                              LaneHandler& handler) = 0;

  // Returns once the daemon has answered `hello` (see Shake() in handshake.h), else with the status
  // of its error reply, DeadlineExceeded or Unavailable.
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(std::string_view host, uint16_t port,
                                                              const proto::Frame& hello,
                                                              const UcxConnectOptions& options,
                                                              absl::Time deadline,
                                                              proto::HelloReply* reply) = 0;
};

// The exported symbol has this type: extern "C" UcxModule* cairn_ucx_module(uint32_t version).
// Null when the module was built for another version. The module keeps the object.
using UcxModuleFactory = UcxModule* (*)(uint32_t version);

// The names of the variables UCX_… that the environment has.
std::vector<std::string> UcxVariables();

// Opens the module once per process; later calls answer from the first that worked. `path` names
// the file; empty looks beside the calling program or library, in ../lib of it, then where the
// loader looks. Unavailable names the files looked for; FailedPrecondition when its version
// differs, or when the environment has a variable by which UCX, as it is loaded, can end the
// process.
absl::StatusOr<UcxModule*> LoadUcxModule(const std::string& path = "");

}  // namespace cairn::transport

extern "C" {
// Defined by the module only.
__attribute__((visibility("default"))) cairn::transport::UcxModule* cairn_ucx_module(
    uint32_t version);
}
