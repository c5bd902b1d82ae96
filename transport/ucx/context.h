// SPDX-License-Identifier: Apache-2.0
#pragma once
// Owners of UCX's two big handles, made with the pinned settings and no other features than active
// messages and wake-up: what is not asked for has no handler that a peer could call.

#include <ucp/api/ucp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "transport/ucx/settings.h"

namespace cairn::transport {

// Thread-safety: Thread-safe; it outlives its workers.
class UcxContext {
 public:
  static absl::StatusOr<std::unique_ptr<UcxContext>> Make(const UcxSettings& settings);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }
  // What memory UCX says it can move: bit UCS_MEMORY_TYPE_CUDA says whether device pointers may be
  // handed to it.
  uint64_t memory_types() const { return memory_types_; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}
  ucp_context_h context_;
  uint64_t memory_types_ = 0;
};

// Thread-safety: Owned by the thread that made it.
class UcxWorker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Make(const UcxContext& context);
  // Completes, on its way, nothing that UCX has not completed: afterwards UCX touches no memory of
  // any request of this worker.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  // Readable when there is something to progress, once armed. It is an epoll set: nest it, never
  // read.
  int event_fd() const { return event_fd_; }
  unsigned Progress() { return ucp_worker_progress(worker_); }
  // True when it is safe to sleep on event_fd(); false when events are pending. Before every sleep.
  bool Arm();

  // Calls `callback(argument, …)` for messages of `id`, whole messages only.
  absl::Status Handle(unsigned id, ucp_am_recv_callback_t callback, void* argument);

 private:
  explicit UcxWorker(ucp_worker_h worker) : worker_(worker) {}
  ucp_worker_h worker_;
  int event_fd_ = -1;
};

// The answer to a message whose payload is not wanted: an error status from an eager callback would
// abort the process, OK from a rendezvous one would tell the sender that all is well.
inline ucs_status_t RefusedPayload(const ucp_am_recv_param_t* param) {
  return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ? UCS_ERR_REJECTED : UCS_OK;
}

}  // namespace cairn::transport
