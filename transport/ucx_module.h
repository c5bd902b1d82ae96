// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loads transport/ucx at run time. All code that uses UCX is in one shared module, libcairn_ucx.so.
// No program is linked with it. The daemon (--data) and the SDK (a HOST:PORT target) open it with
// dlopen(RTLD_NOW | RTLD_LOCAL). So a program runs without UCX, and Cairn's UCX does not conflict
// with an engine's own. The module exports one symbol, kUcxModuleSymbol.
//
// Module and caller must be built from one tree by one compiler, because they share the C++ types
// of transport.h. The version below is checked first, so that an outdated file causes an error
// instead of a crash.

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
// Increase it with every change of this header, of transport.h or of proto/frame.h.
inline constexpr uint32_t kUcxModuleVersion = 2;

struct UcxServerOptions {
  std::string
      host;  // numeric address of a local interface; the data ports are bound to that interface
  uint16_t port = 0;       // 0 picks any free port
  std::string port_range;  // for UCX's data ports, such as "40000-40100"; empty: any
  ServerLimits limits;
};

struct UcxConnectOptions {
  std::string device;  // network interface; empty: the one with the route to the host
};

// The module's interface. Thread-safe. It lives as long as the process, because the module is never
// unloaded.
class UcxModule {
 public:
  virtual ~UcxModule() = default;

  // Starts a server. `handler` must outlive it. Errors: Unavailable (the address cannot be bound),
  // InvalidArgument (`host` is not an address of a local interface).
  virtual absl::StatusOr<std::unique_ptr<Server>> StartServer(const UcxServerOptions& options,
                                                              LaneHandler& handler) = 0;

  // Connects, and returns once the daemon has answered `hello` (see Shake() in handshake.h).
  // Errors: the status of the daemon's error reply, DeadlineExceeded, Unavailable.
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(std::string_view host, uint16_t port,
                                                              const proto::Frame& hello,
                                                              const UcxConnectOptions& options,
                                                              absl::Time deadline,
                                                              proto::HelloReply* reply) = 0;
};

// The type of the exported symbol: extern "C" UcxModule* cairn_ucx_module(uint32_t version). It
// returns null if the module was built for another version. The module owns the object.
using UcxModuleFactory = UcxModule* (*)(uint32_t version);

// Returns the names of the environment's UCX_… variables.
std::vector<std::string> UcxVariables();

// Opens the module. After a call has succeeded, later calls return the same module. `path` is the
// file. If it is empty, the function searches the folder of the calling program or library, then
// ../lib relative to that folder, then the loader's path. Errors: Unavailable (names the files),
// FailedPrecondition (the version differs, or a UCX_… variable is set that can make the loaded UCX
// abort the process).
absl::StatusOr<UcxModule*> LoadUcxModule(const std::string& path = "");

}  // namespace cairn::transport

extern "C" {
// Defined by the module only.
__attribute__((visibility("default"))) cairn::transport::UcxModule* cairn_ucx_module(
    uint32_t version);
}
