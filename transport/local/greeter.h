// SPDX-License-Identifier: Apache-2.0
#pragma once
// Accepts connections and reads their hello. The greeter's thread accepts connections and waits for
// their data. A thread of BlockingJobs then reads the hello and maps the memory that comes with it,
// because a peer can block both. After that the connection is given to a lane, and closing it
// cannot block.
//
// At most kNewcomersMax connections wait for their hello. If there is one more, the oldest
// connection of the user with the most connections is closed. A connection that has sent no hello
// after kHelloWait is closed.
//
// Thread-safety: Owned by the thread that made it, except Add() and ListenAgain(), which are
// Thread-safe. The thread is named "cairn-greet".

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/file.h"
#include "base/mutex.h"
#include "base/newcomers.h"
#include "transport/local/lane.h"
#include "transport/local/region.h"

namespace cairn::transport {

class Greeter {
 public:
  static constexpr size_t kNewcomersMax = 256;
  static constexpr absl::Duration kHelloWait = absl::Seconds(5);
  // The maximum number of hellos and closes of one party that are queued or running. The party's
  // other connections wait.
  static constexpr int kJobsPerPartyMax = 64;
  static constexpr size_t kListenersMax = 65;  // our own socket and those of --door

  explicit Greeter(std::shared_ptr<LaneShare> share);
  ~Greeter() { Stop(); }

  // Accepts connections from `listener`. `door` is the --door folder of that listener, or empty.
  // Call it before Start(), at most kListenersMax times.
  void Listen(int listener, std::string door = {});
  // Must be called after the descriptor of a listener was made to refer to another socket.
  // Thread-safe.
  void ListenAgain();
  void Start();
  // Closes all its connections and ends the thread. Idempotent.
  void Stop();

  // Takes ownership of a connected socket. If `region` is given, the peer need not send a memfd.
  // Returns false, and closes the socket, if the greeter has stopped.
  bool Add(Fd socket, std::optional<Region> region);

 private:
  struct Newcomer {
    Fd socket;
    std::optional<Region> region;
    std::string door;  // the door of its listener
    uint64_t party = 0;
    absl::Time deadline;
  };
  struct Listener {
    int socket = -1;
    std::string door;
  };

  void Run();
  int WaitMs() const;
  void AcceptAll(size_t listener);
  void TakeAdded();
  void Take(Newcomer newcomer);
  // Starts a job that reads the hello of connection `id`, or queues it if its party has
  // kJobsPerPartyMax jobs.
  void Serve(uint64_t id);
  void ExpireLate();
  void TryAgain();
  // Removes a newcomer, counts `reason` and closes it.
  void PutOut(uint64_t id, Counter& reason);
  // Closes the socket on this thread or on a job thread. If the party has kJobsPerPartyMax jobs,
  // closes it later.
  void Close(Newcomer newcomer);
  bool HasJobsMax(uint64_t party) const;
  void PauseListening();
  void WatchListeners();  // while is_listening_
  static void Greet(const std::shared_ptr<LaneShare>& share, Newcomer newcomer);

  const std::shared_ptr<LaneShare> share_;  // shared with jobs, which may outlive this object
  Fd epoll_, wake_;
  std::thread thread_;
  Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_unwatched_ ABSL_GUARDED_BY(mutex_) = false;  // ListenAgain() was called
  std::vector<Newcomer> added_ ABSL_GUARDED_BY(mutex_);

  // Used by the thread only.
  uint64_t ids_ = 0;
  std::map<uint64_t, Newcomer> waiting_;  // by id, so the oldest comes first
  Newcomers newcomers_;                   // the same newcomers as in waiting_
  // Newcomers that must wait because their party has kJobsPerPartyMax jobs: those in waiting_ that
  // have sent data, and those that are to be closed.
  std::vector<uint64_t> ready_;
  std::vector<Newcomer> closing_;
  absl::Time again_ = absl::InfiniteFuture();  // when to try these and the listener again
  std::vector<Listener> listeners_;
  bool is_listening_ = false;
};

}  // namespace cairn::transport
