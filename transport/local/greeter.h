// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections until their hello. Its thread accepts them and waits for what they send; the hello is
// read, and the memory that it brings is mapped, on a thread of BlockingJobs, since a peer can hold
// that up. A greeted connection goes to a lane, which may then close it without blocking.
//
// There are kNewcomersMax of them at most: for one more, the oldest of the user that has most goes.
// One that says nothing goes after kHelloWait.
//
// Thread-safety: Owned by the thread that made it, but for Add() and ListenAgain(), which are
// Thread-safe. The thread is named "cairn-greet".

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
  // Hellos and closes of a party that wait or run; its other connections wait for them.
  static constexpr int kJobsPerPartyMax = 64;

  explicit Greeter(std::shared_ptr<LaneShare> share);
  ~Greeter() { Stop(); }

  // Accepts what comes to `listener`. Before Start(), at most once.
  void Listen(int listener);
  // The number of the listener names another socket now. Thread-safe.
  void ListenAgain();
  void Start();
  // Closes all that it has. Later calls return at once.
  void Stop();

  // Takes a connected socket; with `region` the peer needs no memfd of its own. False: it has
  // stopped, and the socket is closed.
  bool Add(Fd socket, std::optional<Region> region);

 private:
  struct Newcomer {
    Fd socket;
    std::optional<Region> region;
    uint64_t party = 0;
    absl::Time deadline;
  };

  void Run();
  int WaitMs() const;
  void AcceptAll();
  void TakeAdded();
  void Take(Newcomer newcomer);
  // Has its hello read, or tries again later.
  void Serve(uint64_t id);
  void ExpireLate();
  void TryAgain();
  // Takes it out and ends it.
  void PutOut(uint64_t id, Counter& reason);
  // Closes it, here or on a thread for that, or keeps it for later.
  void Close(Newcomer newcomer);
  bool HasJobsMax(uint64_t party) const;
  void PauseListening();
  static void Greet(const std::shared_ptr<LaneShare>& share, Newcomer newcomer);

  const std::shared_ptr<LaneShare> share_;  // with jobs, which may outlive us
  Fd epoll_, wake_;
  std::thread thread_;
  Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_unwatched_ ABSL_GUARDED_BY(mutex_) = false;  // ListenAgain() was called
  std::vector<Newcomer> added_ ABSL_GUARDED_BY(mutex_);

  // Of the thread.
  uint64_t ids_ = 0;
  std::map<uint64_t, Newcomer> waiting_;  // by age
  Newcomers newcomers_;                   // those of waiting_
  // Whose party has kJobsPerPartyMax: those of waiting_ that have spoken, and those to be closed.
  std::vector<uint64_t> ready_;
  std::vector<Newcomer> closing_;
  absl::Time again_ = absl::InfiniteFuture();  // when to look at those two and the listener
  int listener_ = -1;
  bool is_listening_ = false;
};

}  // namespace cairn::transport
