// SPDX-License-Identifier: Apache-2.0
#pragma once
// The C++ SDK of Cairn. It stores the KV of prefixes in a cairnd and gets it back.
//
//   CAIRN_ASSIGN_OR_RETURN(auto client, Client::Connect({.control = "127.0.0.1:50151"}));
//   CAIRN_ASSIGN_OR_RETURN(auto space, client->OpenSpace(identity));
//   const auto keys = space->DeriveChain(tokens);
//   CAIRN_ASSIGN_OR_RETURN(MatchResult match, space->Match({.keys = keys}));
//   for (uint32_t i = 0; i < match.block_count; ++i) space->Get({.key = keys[i], …});
//
// It throws no exceptions. Every call has a deadline. A timeout of zero means the default
// (options.h). The status code tells the caller what to do: recompute (NotFound, DeadlineExceeded),
// try again later (ResourceExhausted), wait for the client to reconnect (Unavailable), or fix the
// calling code (InvalidArgument; FailedPrecondition in a forked child).
//
// Get() delivers only data that matches its checksums. If a checksum does not match, Get() returns
// NotFound; the miss is counted and logged once.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/block_io.h"
#include "client/cpp/breaker.h"
#include "client/cpp/buffer.h"
#include "client/cpp/events.h"
#include "client/cpp/options.h"
#include "proto/block_key.h"

namespace cairn {

class Space;
struct ClientCore;

struct TierFigures {
  Tier tier = Tier::kNone;
  uint64_t capacity_bytes = 0, used_bytes = 0, pinned_bytes = 0;
  uint64_t staging_bytes = 0, quarantine_bytes = 0;
};

// Statistics of the tenant, except that capacity_bytes, version and uptime describe the daemon.
// Pinned, staging and quarantined bytes are reported to operators only.
struct Stats {
  uint64_t block_count = 0, image_count = 0;
  uint64_t image_bytes = 0;          // size of all copies in all tiers
  uint64_t source_bytes = 0;         // decoded size of all images; copies of one image count once
  uint64_t copies_source_bytes = 0;  // decoded size of all copies
  uint64_t session_count = 0, lease_count = 0;
  std::vector<TierFigures> tiers;
  std::string daemon_version;
  absl::Duration uptime;
  bool is_draining = false;
};

// Counters of one client, since it connected.
struct ClientCounters {
  uint64_t gets = 0, hits = 0, misses = 0;
  uint64_t corrupt = 0;  // misses caused by a checksum that does not match
  uint64_t late = 0;     // gets and puts that exceeded their deadline
  uint64_t puts = 0, duplicates = 0;
  uint64_t get_bytes = 0, put_bytes = 0;  // payload bytes on the wire
  uint64_t reconnects = 0;
  uint64_t breaker_opened = 0;
  Breaker::State breaker_state = Breaker::State::kClosed;
};

// A session with one daemon. Thread-safety: Thread-safe. Destroy its spaces and buffers first. In a
// forked child every call fails, and the destructor does nothing.
class Client {
 public:
  // Connects to a daemon. Errors: Unavailable if none answers.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ConnectOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Opens the space with this identity, or creates it if the daemon does not have it. `recipe` is
  // used only to create a space; empty means the daemon's default. If identity.tenant is empty, the
  // client's tenant is used. Errors: FailedPrecondition if blocks could move only over UCX, but
  // ConnectOptions::data does not name a UCX address.
  absl::StatusOr<std::unique_ptr<Space>> OpenSpace(const proto::SpaceIdentity& identity,
                                                   const std::string& recipe = "",
                                                   absl::Duration timeout = absl::ZeroDuration());

  // Ends leases before they expire. Unknown and all-zero leases are ignored.
  absl::Status Release(std::span<const LeaseToken> leases,
                       absl::Duration timeout = absl::ZeroDuration());

  // Watches the tenant's blocks enter and leave tiers, starting at a position. With
  // snapshots, the daemon reports what is stored after each reset.
  std::unique_ptr<EventWatch> Watch(const EventPosition& position = {}, bool has_snapshots = false);

  absl::StatusOr<Stats> GetStats(absl::Duration timeout = absl::ZeroDuration());
  ClientCounters counters() const;
  Breaker& breaker();

  absl::StatusOr<Buffer> AllocateBuffer(size_t bytes,
                                        absl::Duration timeout = absl::ZeroDuration());

 private:
  explicit Client(std::unique_ptr<ClientCore> core);
  std::unique_ptr<ClientCore> core_;
};

}  // namespace cairn
