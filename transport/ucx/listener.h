// SPDX-License-Identifier: Apache-2.0
#pragma once
// Accepts UCX connection requests on its own thread and worker, and hands them to lanes.

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/ucx/address.h"
#include "transport/ucx/context.h"

namespace cairn::transport {

// Thread-safety: Thread-compatible; `route` runs on the listener's thread.
class UcxListener {
 public:
  // Hands a request to a lane. Returns false if no lane takes it; the listener then rejects it.
  using Route = std::function<bool(ucp_conn_request_h)>;
  // Returns a request that a lane has not accepted, or null if none is left. Stop() calls it.
  using TakeUnaccepted = std::function<ucp_conn_request_h()>;

  UcxListener(const UcxContext& context, Route route)
      : context_(context), route_(std::move(route)) {}
  ~UcxListener() { Stop({}); }

  // Binds the port and starts the thread. Errors: Unavailable if the address cannot be bound.
  absl::Status Start(const SocketAddress& address);
  // The bound address.
  const SocketAddress& address() const { return address_; }

  // Rejects the unaccepted requests (each points to its listener), closes the port and joins the
  // thread.
  void Stop(TakeUnaccepted unaccepted);

 private:
  void Run(const SocketAddress& address);
  absl::Status SetUp(const SocketAddress& address);
  static void OnConnection(ucp_conn_request_h request, void* argument);
  size_t RouteRequested();

  const UcxContext& context_;
  const Route route_;
  TakeUnaccepted unaccepted_;  // set before is_stopping_
  Fd wake_fd_;
  Fd epoll_;
  std::atomic<bool> is_stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  bool is_set_up_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status set_up_status_ ABSL_GUARDED_BY(mutex_);
  SocketAddress address_;
  std::unique_ptr<UcxWorker> worker_;  // used by the thread only, like the next
  ucp_listener_h listener_ = nullptr;
  std::vector<ucp_conn_request_h> requested_;  // not routed yet
  std::thread thread_;
};

}  // namespace cairn::transport
