// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server of transport/local. It listens on a unix socket, and its clients bring their own
// memory.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "transport/local/greeter.h"
#include "transport/local/lane.h"
#include "transport/local/region.h"
#include "transport/transport.h"

namespace cairn::transport {

// The lanes of one server, and the greeter that assigns peers to lanes. transport/memory uses this
// class, too. Thread-safety: Thread-safe.
class LaneSet {
 public:
  // REQUIRES: 1 <= limits.lanes <= 64. `handler` and `lender` must outlive the set; `lender` may be
  // null.
  LaneSet(const ServerLimits& limits, LaneHandler& handler, const Lender* lender = nullptr);
  ~LaneSet();

  // Accepts connections from `listener`. `door` is the --door folder of that listener, or empty.
  // Call it before Start().
  void Listen(int listener, std::string door = {}) { greeter_.Listen(listener, std::move(door)); }
  // Must be called after the descriptor of a listener was made to refer to another socket.
  // Thread-safe.
  void ListenAgain() { greeter_.ListenAgain(); }
  void Start();
  // Breaks all peers, completes every transfer and joins the threads. Also runs `last` on a thread
  // that may block, and waits at most a second for its end. Later calls wait for the first call.
  void Stop(BlockingJobs::Job last = nullptr);

  // Takes over a connected socket of this process, whose peer needs no memfd. Returns false, and
  // closes the socket, if the set is stopping.
  bool AddPeer(Fd socket, Region region) {
    return greeter_.Add(std::move(socket), std::move(region));
  }

  int count() const { return static_cast<int>(lanes_.size()); }
  LocalLane& at(int index) { return *lanes_.at(index); }
  void Report(MetricSink& sink, std::string_view transport) const;

 private:
  // Shared with the jobs of peers, because a blocked job outlives the set.
  const std::shared_ptr<LaneShare> share_;
  std::vector<std::unique_ptr<LocalLane>> lanes_;
  Greeter greeter_;
  Mutex stop_mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
};

// An additional socket file, in a --door folder. The identities of its peers name the folder.
struct DoorSocket {
  std::string door, path;
};

struct LocalServerOptions {
  std::string path;  // the socket file; its folder must exist
  ServerLimits limits;
  // The memory that clients may map. Payloads of replies that are in this memory may be lent.
  // `shared` and `shared_fd` must outlive the server.
  std::span<const std::byte> shared = {};
  int shared_fd = -1;  // the same memory, opened read-only and sealed; -1: clients map nothing
  std::vector<DoorSocket> doors = {};
};

// Starts the server. `handler` must outlive it. Errors: those of SocketFile::Listen(),
// InvalidArgument (the limits), ResourceExhausted (there is no memory for the words of loans).
absl::StatusOr<std::unique_ptr<Server>> StartLocalServer(const LocalServerOptions& options,
                                                         LaneHandler& handler);

}  // namespace cairn::transport
