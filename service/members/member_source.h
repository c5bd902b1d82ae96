// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam to what says which daemons belong to the cluster: a file, DNS, Kubernetes or etcd.
//
// A source gives names and addresses, nothing else. It always gives the full set that it sees. It
// gives nothing while it cannot see: an error is not an empty set. Roll decides what is believed of
// it.
//
// Thread-safety: Start() and Stop() are Owned by one thread. state() is Thread-safe.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace cairn {

struct ListedMember {
  std::string name;     // empty: the member's Hello says it (DNS without SRV records)
  std::string address;  // of the peer port, HOST:PORT
  std::string zone;     // empty: unknown
  bool operator==(const ListedMember&) const = default;
};

class MemberSource {
 public:
  // Takes a full set. Called by a thread of the source. The sink returns fast.
  using Sink = std::function<void(std::vector<ListedMember> members)>;

  virtual ~MemberSource() = default;

  // Begins to watch. Each set that is seen goes to `sink`, and a set that was seen again goes
  // there, too: it says that the source still speaks. REQUIRES: called once.
  virtual void Start(Sink sink) = 0;
  // Ends the calls of the sink, and returns when none runs. Idempotent.
  virtual void Stop() = 0;
  // OK, or why the last attempt to see the set failed.
  virtual absl::Status state() const = 0;
};

// Waits of a source's threads, which end when the source is stopped. Thread-safety: Thread-safe.
class StopSignal {
 public:
  void Set();
  bool is_set() const;
  // Waits for `time`. Returns false, at once, when it is set.
  bool Wait(absl::Duration time);

 private:
  mutable Mutex mutex_;
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar wake_;
};

// What is waited after failures: between a half and the whole of a time that doubles, from 100 ms
// to a limit. Thread-safety: Owned by one thread.
class Backoff {
 public:
  explicit Backoff(absl::Duration max) : max_(max) {}
  void Reset() { next_ = kMin; }
  absl::Duration Next();

 private:
  static constexpr absl::Duration kMin = absl::Milliseconds(100);
  const absl::Duration max_;
  absl::Duration next_ = kMin;
};

// A source that is read again and again, on a thread of its own, named `member-source`.
class PolledSource : public MemberSource {
 public:
  explicit PolledSource(absl::Duration period) : period_(period) {}
  void Start(Sink sink) final;
  void Stop() final;
  absl::Status state() const final;

 protected:
  // Returns the full set. The thread calls it. REQUIRES of those that derive: their destructor
  // calls Stop().
  virtual absl::StatusOr<std::vector<ListedMember>> Read() = 0;

 private:
  void Run();
  void ReadOnce();

  const absl::Duration period_;
  Sink sink_;
  mutable Mutex mutex_;
  absl::Status state_ ABSL_GUARDED_BY(mutex_) = absl::UnavailableError("not read yet");
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace cairn
