// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gRPC server: cairn.v1.Store, .Admin, .Events, standard health and reflection, with limits on
// what one call, one connection and all of them together may hold.
//
// gRPC has no memory quota here: past one it cancels calls of its own choice, sessions included.
// What calls hold is bounded by CallBudget instead, which spares sessions.
//
// Thread-safety: Thread-safe. Threads are gRPC's own, and the listener's.

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
#include "service/front/store_service.h"

namespace cairn {

class ControlServer {
 public:
  // Listens. Health answers, NOT_SERVING, and every other call is refused as UNAVAILABLE until
  // Serve(). Unavailable when the address cannot be bound.
  // Without `admin`, or where it is not `control`, calls of Admin are refused at `control`. A call
  // that takes longer than `slow` is logged.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const ControlAddress& control, const std::optional<ControlAddress>& admin,
      absl::Duration slow);
  // The services, which outlive the server, answer from now on. Once.
  void Serve(StoreService& store, AdminService& admin);
  ~ControlServer() { Stop(); }

  // With the port really bound.
  const ControlAddress& address() const { return listener_->address(); }
  // "off": nowhere.
  std::string admin_address() const {
    const ControlAddress* address = listener_->admin_address();
    return address == nullptr ? "off" : address->ToString();
  }
  // The socket files of both addresses; looked after until Stop().
  void AddTo(Doors& doors) { listener_->AddTo(doors); }
  // OK: a client that connects now is answered. May take half a second.
  absl::Status Probe() { return listener_->Probe(); }
  // What the health service answers.
  void SetServing(bool is_serving) { is_serving_.store(is_serving, std::memory_order_relaxed); }
  // Ends every call, streams included, within a second; then returns. Idempotent. Calls that
  // wait in the index must have been answered before.
  void Stop();
  void Report(MetricSink& sink) const;

 private:
  ControlServer(std::unique_ptr<ControlListener> listener, absl::Duration slow);
  void AddHealth();

  std::atomic<bool> is_serving_{false};
  const std::unique_ptr<ControlListener> listener_;
  CallBudget budget_;
  CallRouter router_;
  CallMetrics calls_{Call::kHealthCheck, Call::kHealthCheck};
  const std::vector<std::unique_ptr<grpc::Service>> names_;  // what reflection lists
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cairn
