// SPDX-License-Identifier: Apache-2.0
#pragma once
// Asks other members for blocks and reads them. Towards a member, this daemon is a client like any
// other (client/cpp), with one session for each tenant whose blocks it reads.
//
// A session is opened at the first question about a tenant, and closed when nobody has used it for
// kIdle or when the member leaves the cluster.
//
// What a member says is not trusted. Each image is checked (client/cpp/transfer.h), and a member
// that delivers damaged ones, or does not have what it leased, is not read from (strikes.h).
//
// Thread-safety: Thread-safe. Its functions and those of Found that ask a member wait for the
// network, at most until their deadline, or for `connect_timeout` if the session must be opened
// first. Deadlines are on the clock of MonotonicNow().

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "client/cpp/client.h"
#include "client/cpp/options.h"
#include "client/cpp/space.h"
#include "proto/block_key.h"
#include "service/limits.h"
#include "service/members/view.h"
#include "service/peer/strikes.h"

namespace cairn {

// What a member is asked: consecutive blocks of one chain, and the wanted slices of each. A value.
struct PeerQuestion {
  proto::SpaceIdentity identity;
  std::string recipe;  // of the space, if the member has to make it
  std::vector<proto::BlockKey> keys;
  std::vector<GroupSlice> slices;
  std::vector<uint32_t> groups_skipped;
  bool wants_lease = false;
  uint64_t generation = 0;  // of the space (service/members/generations.h)
};

class PeerReader {
  struct Line;

 public:
  static constexpr absl::Duration kIdle = absl::Minutes(5);

  struct Options {
    // Certificates of this daemon, as a client. Off: plain text.
    TlsOptions tls;
    // "stream", "ucx" or both, separated by a comma (client/cpp/options.h).
    std::string transports;
    std::string self;  // name of this member, for the logs of others
    int connections = kConnectionsDefault;
    // A longer answer to a call is an error.
    int answer_bytes_max = limits::kControlMessageBytesMax;
    absl::Duration connect_timeout = absl::Seconds(2);
  };
  explicit PeerReader(Options options) : options_(std::move(options)) {}

  // Blocks that a member has, and usually leased. Its destruction gives the lease back, which is a
  // call with a deadline. Thread-safety: Thread-compatible; Get() and GetSideObject() are
  // Thread-safe.
  class Found {
   public:
    Found() = default;
    ~Found();
    Found(Found&&) noexcept;
    Found& operator=(Found&&) noexcept;

    // The first blocks of the question. Empty: the member has none of them.
    const std::vector<MatchedBlock>& blocks() const { return blocks_; }
    const std::string& member() const;
    // Of the blocks. 0: the member knows of no deletion of the space, or of no generations.
    uint64_t generation() const { return generation_; }
    // Reads images. Results are in the order of the requests. Errors: those of Space::GetBatch(),
    // and Unavailable at once if the member is not read from now, because of earlier reads.
    // REQUIRES: the targets are ImageTargets.
    std::vector<absl::StatusOr<GetResult>> GetBatch(std::span<const GetRequest> requests,
                                                    absl::Time deadline) const;
    const LeaseToken& lease() const { return lease_; }
    // Leaves the lease to end by itself.
    void Abandon() { lease_ = LeaseToken{}; }
    absl::StatusOr<SideObjectHandle> GetSideObject(const codecs::Digest& id,
                                                   absl::Time deadline) const;

   private:
    friend class PeerReader;
    std::shared_ptr<Line> line_;
    std::shared_ptr<Space> space_;
    std::vector<MatchedBlock> blocks_;
    LeaseToken lease_{};
    uint64_t generation_ = 0;
  };

  // Returns the longest prefix of the question's keys that the member has. Errors: Unavailable (it
  // cannot be reached, or is not asked after it failed or because of what it delivered),
  // DeadlineExceeded, and those that the member answers.
  absl::StatusOr<Found> Match(const Member& member, const PeerQuestion& question,
                              absl::Time deadline);
  // Returns how much of the question's keys the member itself has, and its name as the view has it.
  // It is no match: no lease, no use of the blocks, and whether it succeeds does not change whether
  // the member is asked afterwards. Errors: as Match(), and Unimplemented (an older member).
  absl::StatusOr<MemberBlocks> Where(const Member& member, const PeerQuestion& question,
                                     absl::Time deadline);
  // Reads a side object of a space. Errors: as Match(), and NotFound (the member does not have it).
  absl::StatusOr<SideObjectHandle> GetSideObject(const Member& member,
                                                 const proto::SpaceIdentity& identity,
                                                 const std::string& recipe,
                                                 const codecs::Digest& id, absl::Time deadline);
  // Deletes blocks of a space at the member. If `keys` is empty, deletes all of its blocks that are
  // older than this generation. Returns their number.
  absl::StatusOr<uint64_t> Delete(const Member& member, const proto::SpaceIdentity& identity,
                                  std::span<const proto::BlockKey> keys, uint64_t generation,
                                  absl::Time deadline);

  // Closes the sessions that are idle, or whose member is not in the view.
  void CloseUnused(const View& view);
  // Closes all sessions that no Found uses.
  void Stop();

  // Counters of all sessions, since the start.
  struct Counters {
    uint64_t sessions = 0;  // open now
    uint64_t corrupt = 0;   // images that did not match their checksums
    // Members that are not read from until they restart.
    uint64_t distrusted = 0;
  };
  Counters counters() const;

 private:
  // Returns the line to the member, which may not be connected yet. Null after Stop().
  std::shared_ptr<Line> FindLine(const Member& member, const std::string& tenant);
  // Returns a connected line. A connection is tried by one caller at a time, for `timeout` at most;
  // others get Unavailable meanwhile, and until a while after a failure. Of one member, two are
  // tried at a time, whatever the number of tenants, and none after it did not answer.
  absl::StatusOr<std::shared_ptr<Line>> LineTo(const Member& member, const std::string& tenant,
                                               absl::Duration timeout);
  absl::StatusOr<std::unique_ptr<Client>> Connect(const Member& member, const std::string& tenant,
                                                  absl::Duration timeout) const;
  // EndConnect() must follow if BeginConnect() succeeds.
  absl::Status BeginConnect(const Member& member);
  void EndConnect(const Member& member, const absl::Status& status);
  void CountClosed(const Line& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct Reach {  // of a member, for all tenants
    std::string address;
    uint64_t incarnation = 0;
    int connecting = 0;
    absl::Time retry_at = absl::InfinitePast();
    absl::Duration retry_after = absl::ZeroDuration();  // the last one
    absl::Status failure;
  };

  const Options options_;
  Strikes strikes_;
  mutable Mutex mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t closed_corrupt_ ABSL_GUARDED_BY(mutex_) = 0;           // of lines that were closed
  std::map<std::string, Reach> reaches_ ABSL_GUARDED_BY(mutex_);  // by the member's name
  // By the member's name and the tenant.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Line>> lines_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
