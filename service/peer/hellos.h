// SPDX-License-Identifier: Apache-2.0
#pragma once
// Greets the other members: calls their Hello, and tells Members what they answer. A
// member is refused if it belongs to another cluster, has an incompatible version or answers with
// another name, or if it refuses this daemon.
//
// A member is greeted when the view first has it, when its address changes, and then every
// `period`. One that does not answer is greeted again after a second, then after two, up to
// `retry_max`.
//
// A greeting also compares the generations of spaces (service/members/generations.h) of the tenants
// that the member may use. First, the two sides compare hashes. If these differ, the member answers
// with its list. A second greeting follows at once, with this daemon's list.
//
// In the same way it compares the policies of spaces (service/members/space_policies.h). If their
// hashes differ, the next call to the member, at once, is TellPolicies instead of Hello.
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
#include "service/members/space_policies.h"
#include "service/peer/peer_channels.h"

namespace grpc {
class ClientContext;
class CompletionQueue;
}  // namespace grpc

namespace cairn {

class Hellos {
 public:
  struct Options {
    std::string daemon_version;
    PeerDial dial = {};
    // Null: none are told. Must outlive the object.
    Generations* generations = nullptr;
    SpacePolicies* policies = nullptr;
    // Whether a member may know and tell of deletions and policies of this tenant.
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
  // Greets every member now. Call it when this daemon's own state has changed: it begins to drain.
  void GreetAll() { Add({}, true); }

  void Report(MetricSink& sink) const;

 private:
  struct Line;  // the connection to one member, and when the member is greeted next
  struct ServerName;
  struct Running;

  // Requests since the last round: whom to greet besides the members whose greeting is due.
  struct News {
    bool is_woken = false, is_all = false;
    std::set<std::string, std::less<>> names = {};  // members to greet, until they are greeted
  };
  void Add(std::string_view name, bool is_all);
  void Run();
  // Returns the lines to members that are to be greeted now. Makes lines to new members of the
  // view, and forgets lines to members that have left it.
  std::vector<Line*> Due(const View& view, const News& news);
  void Call(const std::vector<Line*>& lines);
  void Begin(Line& line, v1::HelloRequest& hello, Running& running, grpc::CompletionQueue& queue);
  // Adds the member to `met` if its answer is one.
  void Take(Line& line, const Running& running, std::vector<Met>* met);
  // Says whether the policy lets the member use a tenant.
  std::function<bool(std::string_view tenant)> MayUse(const Line& line) const;
  void FillGenerations(const Line& line, v1::HelloRequest* request) const;
  // Takes the generations that a member knows.
  void Exchange(Line& line, const v1::HelloReply& reply);
  // Has the next call tell the policies if the member's hash of them is another one.
  void ComparePolicies(Line& line, const v1::HelloReply& reply);
  void TakePolicies(Line& line, const Running& running);
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
