// SPDX-License-Identifier: Apache-2.0
#pragma once
// Clients' lives. A session is opened and held by a control stream; its end breaks its data-plane
// connections, aborts its puts (nothing of them becomes visible any more) and releases its leases.
//
// Thread-safety: Thread-safe.
// Locks:         one, for look-ups. No other is taken under it.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/frame.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"
#include "service/spaces.h"
#include "service/tenant_policy.h"
#include "transport/transport.h"

namespace cairn {

// A tenant's name, held in place: copying one does not allocate.
class TenantName {
 public:
  TenantName() = default;
  // REQUIRES: name.size() <= kTenantBytesMax.
  explicit TenantName(std::string_view name);
  std::string_view view() const { return {data_.data(), size_}; }
  friend bool operator==(const TenantName& a, const TenantName& b) { return a.view() == b.view(); }

 private:
  std::array<char, limits::kTenantBytesMax> data_{};
  uint8_t size_ = 0;
};

struct Session {
  uint64_t id = 0;  // never reused; 0 is none
  TenantName tenant;
  std::optional<PeerIdentity> identity;  // of who opened it
};

// One data-plane connection.
struct PeerRef {
  int server = 0;  // which transport server, as the daemon numbers them
  int lane = 0;
  transport::PeerId peer = 0;
  friend bool operator==(const PeerRef&, const PeerRef&) = default;
};

class Sessions {
 public:
  // What the end of a session asks of others. Called with no lock held, from the thread that ends
  // it.
  struct Hooks {
    std::function<void(uint64_t session_id)> release_leases;
    std::function<void(const PeerRef&)> break_peer;
  };
  // A put that is admitted and not yet over. Destroying it says that its memory is free again.
  // Move-only. The Sessions must outlive it.
  class InFlightPut {
   public:
    InFlightPut() = default;
    InFlightPut(InFlightPut&& source) noexcept
        : sessions_(std::exchange(source.sessions_, nullptr)),
          session_id_(source.session_id_),
          bytes_(source.bytes_) {}
    InFlightPut& operator=(InFlightPut&& source) noexcept;
    ~InFlightPut() { Reset(); }
    void Reset();

   private:
    friend class Sessions;
    InFlightPut(Sessions* sessions, uint64_t session_id, uint64_t bytes)
        : sessions_(sessions), session_id_(session_id), bytes_(bytes) {}
    Sessions* sessions_ = nullptr;
    uint64_t session_id_ = 0;
    uint64_t bytes_ = 0;
  };

  // `peers_max`: data-plane connections of all sessions.
  Sessions(Hooks hooks, uint64_t peers_max,
           std::unique_ptr<const TenantPolicy> policy = std::make_unique<AnyTenant>())
      : hooks_(std::move(hooks)),
        policy_(std::move(policy)),
        peer_shares_("connections", peers_max) {}

  struct Opened {
    uint64_t id = 0;
    proto::Ticket ticket{};
  };
  // InvalidArgument: tenant or name out of its limits (store.proto). ResourceExhausted: the tenant
  // holds its share of the sessions. Unavailable: refused since RefuseNew(). PermissionDenied: the
  // identity may not be that tenant.
  absl::StatusOr<Opened> Open(std::string_view tenant, std::string_view client_name,
                              const std::optional<PeerIdentity>& identity = std::nullopt);

  // NotFound: no such session (ended, or never was). Unavailable: so, and the daemon drains or
  // stops. Does not allocate.
  absl::StatusOr<Session> Find(const proto::Ticket& ticket) const;
  bool IsOpen(uint64_t session_id) const;

  // Ends it: from here on no ticket. Waits for what IfOpen() runs; then there is no publish any
  // more, and it breaks the session's peers and releases its leases. Idempotent: who comes second
  // does not wait. Bytes of its puts still in transfer count as quarantine until they are over.
  void End(uint64_t session_id);

  // Ties a connection to the session: it is broken with it. ResourceExhausted: too many of the
  // session or the tenant. PermissionDenied: the identity may not be the session's tenant.
  absl::Status AttachPeer(uint64_t session_id, const PeerRef& peer,
                          const std::optional<PeerIdentity>& identity = std::nullopt);
  // The connection is gone. Unknown ones are ignored.
  void DetachPeer(uint64_t session_id, const PeerRef& peer);

  // The session keeps the space until it ends. NotFound: it has ended.
  absl::Status Keep(uint64_t session_id, SpaceRef space);

  // NotFound: ended. ResourceExhausted: puts or bytes of the session in flight.
  absl::StatusOr<InFlightPut> BeginPut(uint64_t session_id, uint64_t bytes);

  // Runs `action`, with no lock held, while End() of the session waits; Unavailable, without
  // running it, if the session has ended. REQUIRES: `action` takes memory work, and ends no
  // session.
  absl::Status IfOpen(uint64_t session_id, absl::FunctionRef<absl::Status()> action);

  // Drain: no new sessions.
  void RefuseNew();
  bool is_refusing() const;

  uint64_t count() const;
  uint64_t count(std::string_view tenant) const;
  uint64_t in_flight_bytes() const;   // of puts of open sessions
  uint64_t quarantine_bytes() const;  // of puts of ended sessions
  struct Info {
    uint64_t id = 0;
    std::string tenant, client_name;
    size_t peers = 0, puts = 0;
  };
  std::vector<Info> List() const;
  void Report(MetricSink& sink) const;

 private:
  struct TicketHash {
    size_t operator()(const proto::Ticket& ticket) const;
  };
  struct TicketEqual {
    bool operator()(const proto::Ticket& a, const proto::Ticket& b) const {
      return proto::TicketsEqual(a, b);
    }
  };
  struct State {
    Session session;
    proto::Ticket ticket{};
    std::string client_name;
    std::vector<PeerRef> peers;
    std::vector<SpaceRef> spaces;  // each once
    bool is_open = true;
    size_t puts = 0;
    uint64_t put_bytes = 0;
    size_t actions = 0;  // that IfOpen() runs
  };
  void EndPut(uint64_t session_id, uint64_t bytes);
  using StateMap = absl::flat_hash_map<uint64_t, State>;
  // Forgets a session that has ended, unless something of it goes on.
  void ForgetIfOver(StateMap::iterator position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Hooks hooks_;
  const std::unique_ptr<const TenantPolicy> policy_;
  mutable Mutex mutex_;
  CondVar action_over_;  // the last of a session that has ended
  bool refuses_new_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Ended sessions stay here, closed, until their last put is over.
  StateMap sessions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<proto::Ticket, uint64_t, TicketHash, TicketEqual> tickets_
      ABSL_GUARDED_BY(mutex_);
  TenantShares shares_ ABSL_GUARDED_BY(mutex_){"sessions", limits::kSessionsMax};
  TenantShares peer_shares_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t quarantine_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter opened_, ended_, refused_;
};

}  // namespace cairn
