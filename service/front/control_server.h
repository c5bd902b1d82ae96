// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gRPC server of cairn.v1.Store, .Admin and .Events, or, for the other members of the cluster,
// of cairn.v1.Peer. Each has the standard services for health and reflection. It limits the memory
// of a call, of a connection, and of all calls together.
//
// It does not use gRPC's memory quota, which cancels arbitrary calls, sessions included. CallBudget
// limits the memory of calls instead and spares sessions.
//
// Thread-safety: Thread-safe. The threads are gRPC's own and the listener's.

#include <grpcpp/server.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/config_value.h"
#include "service/front/admin_service.h"
#include "service/front/call_budget.h"
#include "service/front/call_router.h"
#include "service/front/control_listener.h"
#include "service/front/peer_service.h"
#include "service/front/store_service.h"
#include "service/front/tls_door.h"

namespace cairn {

class ControlServer {
 public:
  enum class Callers : uint8_t { kClients, kMembers };
  // Starts listening. Until Serve(), health answers NOT_SERVING and every other call is refused as
  // UNAVAILABLE. Without `admin`, or if it is another address, calls of Admin are refused at
  // `control`. Calls that take longer than `slow` are logged. With `tls`, TCP addresses speak TLS;
  // it must outlive the server. `folders` are those of --door. Errors: Unavailable if an address
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const ControlAddress& control, const std::optional<ControlAddress>& admin,
      absl::Duration slow, transport::Handshakes* tls = nullptr,
      const std::vector<std::string>& folders = {}, Callers callers = Callers::kClients);
  // Starts serving the services, which must outlive the server. Call it once.
  void Serve(StoreService& store, AdminService& admin);
  // The same, for members.
  void Serve(PeerService& peer);
  ~ControlServer() { Stop(); }

  // Returns the address of clients, with the port that is bound.
  const ControlAddress& address() const { return listener_->address(); }
  // Returns the address of operators, or "off".
  std::string admin_address() const {
    const ControlAddress* address = listener_->admin_address();
    return address == nullptr ? "off" : address->ToString();
  }
  // Registers the socket files of both addresses, so that `doors` repairs them until Stop().
  void AddTo(Doors& doors) { listener_->AddTo(doors); }
  // Returns OK if a client that connects now would be answered. May take half a second.
  absl::Status Probe() { return listener_->Probe(); }
  // Sets the answer of the health service.
  void SetServing(bool is_serving) { is_serving_.store(is_serving, std::memory_order_relaxed); }
  // Ends connections whose certificates were revoked. Does not wait.
  void EndRevoked() {
    if (tls_ != nullptr) tls_->EndRevoked();
  }
  // Ends every call within a second, streams included. Idempotent. REQUIRES: calls that wait in the
  // index have been answered.
  void Stop();
  void Report(MetricSink& sink) const;

 private:
  ControlServer(std::unique_ptr<TlsDoor> tls, std::unique_ptr<ControlListener> listener,
                absl::Duration slow, Callers callers);
  void AddHealth();

  std::atomic<bool> is_serving_{false};
  const std::unique_ptr<TlsDoor> tls_;  // null: no TLS
  const std::unique_ptr<ControlListener> listener_;
  CallBudget budget_;
  CallRouter router_;
  CallMetrics calls_{Call::kHealthCheck, Call::kHealthCheck};
  const std::vector<std::unique_ptr<grpc::Service>> names_;  // services that reflection lists
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cairn
