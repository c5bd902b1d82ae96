// SPDX-License-Identifier: Apache-2.0
#pragma once
// Routes calls of the control plane to their methods.
//
// Until Open(), it refuses every call except probes with UNAVAILABLE. It refuses calls of
// cairn.v1.Admin from all peers that are not operators.
//
// Thread-safety: call AddProbe() before the server starts. Call Add() before Open(), on the same
//                thread. The rest is Thread-safe.

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "service/audit.h"
#include "service/front/call_budget.h"
#include "service/front/control_call.h"
#include "service/front/control_connections.h"

namespace cairn {

class CallRouter final : public grpc::CallbackGenericService {
 public:
  // `operators_at` is the administrative address, which error texts name. Calls that take longer
  // than `slow` are logged.
  CallRouter(CallBudget& budget, ControlConnections& connections, std::string operators_at,
             absl::Duration slow)
      : budget_(budget),
        connections_(connections),
        operators_at_(std::move(operators_at)),
        slow_(slow) {}

  // Makes the call object, which deletes itself.
  using Start = std::function<ControlCall*(const CallPlace& place)>;
  // `name` is "/package.Service/Method".
  void Add(const std::string& name, Start start);
  // Adds a method that is also answered before Open().
  void AddProbe(const std::string& name, Start start);
  // `sessions`: of the tickets that calls show. Must outlive the router's last call.
  // `audit` notes operators who are refused; null: nothing does.
  void Open(const Sessions& sessions, Audit* audit) {
    audit_ = audit;
    sessions_.store(&sessions, std::memory_order_release);
  }
  template <typename Request, typename Reply>
  void AddUnary(const std::string& name, UnaryMethod<Request, Reply> method) {
    Add(name, [method = std::move(method)](const CallPlace& place) {
      return new UnaryCall<Request, Reply>(place, method);
    });
  }
  // Adds a method that is answered at once with the result of `step`.
  template <typename Request, typename Reply, typename Service>
  void AddUnary(const std::string& name, CallMetrics& calls, Call call, const RequestBound& bound,
                Service* service, absl::Status (Service::*step)(const Request&, Reply*)) {
    AddUnary(name, UnaryMethod<Request, Reply>{
                       calls, call, bound,
                       [service, step](const ControlCall&, const Request& request,
                                       const ReplyDone<Reply>& done) {
                         Reply reply;
                         const absl::Status status = (service->*step)(request, &reply);
                         done(status.ok() ? absl::StatusOr<Reply>(std::move(reply)) : status);
                       }});
  }

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  ControlCall* StartCall(grpc::GenericCallbackServerContext* context);

  CallBudget& budget_;
  ControlConnections& connections_;
  const std::string operators_at_;
  const absl::Duration slow_;
  absl::flat_hash_map<std::string, Start> probes_;
  absl::flat_hash_map<std::string, Start> methods_;  // read-only once open
  Audit* audit_ = nullptr;                           // read-only once open
  std::atomic<const Sessions*> sessions_{nullptr};   // null: not open
};

}  // namespace cairn
