// SPDX-License-Identifier: Apache-2.0
#pragma once
// UCX's status codes, and owners of UCX's two main handles: context and worker. The handles use the
// pinned settings, and only two features, active messages and wake-up. So a peer cannot reach any
// other message handler of UCX.

#include <ucp/api/ucp.h>

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/ucx/settings.h"

namespace cairn::transport {

// Converts a status code. UCX reports the loss of a peer under several codes: all of them become
// Unavailable. NO_MEMORY becomes ResourceExhausted, and other codes become Internal. `what` begins
// the message. Thread-safety: Thread-safe.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

// Thread-safety: Thread-safe. It must outlive its workers.
class UcxContext {
 public:
  static absl::StatusOr<std::unique_ptr<UcxContext>> Make(const UcxSettings& settings);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }
  // The memory types that UCX can move. If the bit UCS_MEMORY_TYPE_CUDA is set, it accepts device
  // pointers.
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
  // Destroys the worker without waiting for its requests. After that, UCX does not access the
  // memory of these requests any more.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  // A descriptor that is readable when Progress() has work, once Arm() was called. It is an epoll
  // set: add it to another one, and do not read it.
  int event_fd() const { return event_fd_; }
  unsigned Progress() { return ucp_worker_progress(worker_); }
  // Must be called before every sleep on event_fd(). Returns false if there are pending events; the
  // caller must not sleep then.
  bool Arm();

  // Registers `callback(argument, …)` for messages with `id`. The callback gets only whole
  // messages.
  absl::Status Handle(unsigned id, ucp_am_recv_callback_t callback, void* argument);

 private:
  explicit UcxWorker(ucp_worker_h worker) : worker_(worker) {}
  ucp_worker_h worker_;
  int event_fd_ = -1;
};

// Returns the status with which a callback refuses a payload. The status depends on the protocol:
// an error from an eager callback would abort the process, while OK from a rendezvous callback
// would report success to the sender.
inline ucs_status_t RefusedPayload(const ucp_am_recv_param_t* param) {
  return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ? UCS_ERR_REJECTED : UCS_OK;
}

}  // namespace cairn::transport
