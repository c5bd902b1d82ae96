// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gRPC server: cairn.v1.Store, cairn.v1.Admin, standard health and reflection, with limits on
// what one connection and all of them together may hold.
//
// Thread-safety: Thread-safe. Threads are gRPC's own.

#include <grpcpp/server.h>

#include <memory>

#include "absl/status/statusor.h"
#include "service/config_value.h"
#include "service/front/admin_service.h"
#include "service/front/store_service.h"

namespace cairn {

class ControlServer {
 public:
  // Received: a side object and the fields beside it. 65,536 keys take 2.3 MB.
  static constexpr int kMessageBytesMax =
      static_cast<int>(limits::kSideObjectBytesMax) + (64 << 10);
  static constexpr size_t kMemoryBytesMax = 256 << 20;  // of all calls
  static constexpr int kCallsPerConnectionMax = 256;

  // The services must outlive the server. Unavailable when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const HostPort& address,
                                                              StoreService& store,
                                                              AdminService& admin);
  ~ControlServer() { Stop(); }

  HostPort address() const { return address_; }  // with the port really bound
  // What the health service answers.
  void SetServing(bool is_serving);
  // Ends every call, streams included, within a second; then returns. Idempotent. Calls that
  // wait in the index must have been answered before.
  void Stop();

 private:
  ControlServer() = default;
  HostPort address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cairn
