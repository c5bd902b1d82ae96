// SPDX-License-Identifier: Apache-2.0
#pragma once
// Greets the other members: calls their Hello, and tells Members what they answer. A daemon that
// another cluster, version or name answers for is refused.
//
// A member is greeted when the view first has it, when its address changes, and then every
// `period`. One that does not answer is greeted again after a second, then after two, up to
// `retry_max`.
//
// A greeting also compares the generations of spaces (service/members/generations.h) of the tenants
// that the member may use: first their hashes, then, if these differ, the list of the member, and
// with a second greeting at once this daemon's list.
//
// Thread-safety: Thread-safe. Start() and Stop() are Owned by one thread. The thread is named
// "member-hello". It waits for no member longer than `timeout`.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "service/members/generations.h"
#include "service/members/members.h"
#include "service/peer/peer_channels.h"

namespace grpc {
class ClientContext;
}

namespace cairn {

class Hellos {
 public:
  struct Options {
    std::string daemon_version;
    PeerDial dial = {};
    Generations* generations = nullptr;  // null: none are told. Must outlive the object
    // Whether a member may know and tell of deletions of this tenant.
    std::function<bool(const PeerIdentity& identity, std::string_view tenant)> may_use = {};
    absl::Duration period = absl::Seconds(10);
    absl::Duration retry_min = absl::Seconds(1), retry_max = absl::Seconds(30);
    absl::Duration timeout = absl::Seconds(1);
  };
  // `members` must outlive the object.
  Hellos(Members& members, Options options);
  ~Hellos();

  void Start();
  void Stop();  // idempotent
  // Looks at the view now.
  void Wake() { Add({}, false); }
  // Greets a member as soon as `retry_min` has passed since the last greeting: others make this
  // daemon do it, and could do so without end. Ignores unknown names.
  void Greet(std::string_view name) { Add(name, false); }
  // Greets every member now: this daemon says something new.
  void GreetAll() { Add({}, true); }

  void Report(MetricSink& sink) const;

 private:
  struct Line;  // to one member
  struct ServerName;
  struct Running;

  // What to do besides the lines that are due.
  struct News {
    bool is_woken = false, is_all = false;
    std::set<std::string, std::less<>> names = {};  // members to greet, until they are greeted
  };
  void Add(std::string_view name, bool is_all);
  void Run();
  // Returns the lines that are due, for members of the view other than this daemon. Forgets the
  // lines of others.
  std::vector<Line*> Due(const View& view, const News& news);
  void Call(const std::vector<Line*>& lines);
  // Adds the member to `met` if its answer is one.
  void Take(Line& line, const Running& running, std::vector<Met>* met);
  // Says whether the policy lets the member use a tenant.
  std::function<bool(std::string_view tenant)> MayUse(const Line& line) const;
  void FillGenerations(const Line& line, v1::HelloRequest* request) const;
  // Takes the generations that a member knows.
  void Exchange(Line& line, const v1::HelloReply& reply);
  void Failed(Line& line, const absl::Status& status);
  void Connect(Line& line);
  // Waits until a line is due. Returns false once it is stopped.
  bool Wait(News* news);

  Members& members_;
  const Options options_;

  // Used by the thread only.
  std::map<std::string, std::unique_ptr<Line>, std::less<>> lines_;  // by name

  mutable Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  News news_ ABSL_GUARDED_BY(mutex_);
  std::vector<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
  uint64_t differing_ ABSL_GUARDED_BY(mutex_) = 0;  // members whose view differs for long
  CondVar wake_;
  Counter answered_, failed_, refused_;
  std::thread thread_;
};

}  // namespace cairn
