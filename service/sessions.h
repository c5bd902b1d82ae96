// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sessions: one for each connected client. A control stream opens a session and keeps it open. When
// the stream ends, the session's data-plane connections are disconnected and its leases are
// released. Its running puts are aborted, and nothing of them becomes visible.
//
// Thread-safety: Thread-safe. Locks: one, for look-ups. No other lock is taken under it. It is not
// held while the policy is asked.

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
#include "base/handle.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "proto/frame.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"
#include "service/spaces.h"
#include "transport/transport.h"

namespace cairn {

// A tenant's name, stored inline. Copying it does not allocate.
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
  uint64_t id = 0;  // never reused; 0 means none
  TenantName tenant;
  bool is_member = false;  // of another member of the cluster: answered from this daemon's tiers
  bool reads_peer_tier = false;  // replies to its gets may have Tier kPeer
};

// Decides which tenants a peer may use. Thread-safety: Thread-safe.
class TenantPolicy {
 public:
  virtual ~TenantPolicy() = default;
  // Errors: PermissionDenied, with the reason.
  virtual absl::Status MayUse(const PeerIdentity& identity, std::string_view tenant) const = 0;
  // Returns OK if the tenant may use data connections over a transport that identifies no peers
  // (UCX).
  virtual absl::Status MayUseUcx(std::string_view tenant) const = 0;
  // Returns the limit for the sessions of a tenant, in addition to its share. nullopt: none.
  virtual std::optional<uint64_t> SessionsMax(std::string_view tenant) const = 0;
  // Decides whether the peer may make administrative calls. Called if the listener's address alone
  // does not decide this. Errors: PermissionDenied.
  virtual absl::Status MayOperate(const PeerIdentity& identity) const = 0;
  // Decides whether the peer may connect at all. Errors: PermissionDenied.
  virtual absl::Status MayConnect(const PeerIdentity& identity) const = 0;
  // Returns OK if the peer may be a member of the cluster. Errors: PermissionDenied.
  virtual absl::Status MayBeMember(const PeerIdentity& identity) const = 0;
};

// Allows every peer to use any tenant.
class AnyTenant final : public TenantPolicy {
 public:
  absl::Status MayUse(const PeerIdentity&, std::string_view) const override {
    return absl::OkStatus();
  }
  absl::Status MayUseUcx(std::string_view) const override { return absl::OkStatus(); }
  std::optional<uint64_t> SessionsMax(std::string_view) const override { return std::nullopt; }
  absl::Status MayOperate(const PeerIdentity&) const override { return absl::OkStatus(); }
  absl::Status MayConnect(const PeerIdentity&) const override { return absl::OkStatus(); }
  absl::Status MayBeMember(const PeerIdentity&) const override { return absl::OkStatus(); }
};

// One data-plane connection.
struct PeerRef {
  int server = 0;  // index of the transport server
  int lane = 0;
  transport::PeerId peer = 0;
  friend bool operator==(const PeerRef&, const PeerRef&) = default;
};

class Sessions {
  struct RunningPut {
    uint64_t session_id = 0;
    uint64_t bytes = 0;
  };
  void EndPut(RunningPut put);

 public:
  // Functions that are called at the end of a session, without locks held, on the thread that ends
  // the session. Other components set them.
  struct Hooks {
    std::function<void(uint64_t session_id)> release_leases;
    std::function<void(const PeerRef&)> break_peer;
  };
  // A put that was admitted and still runs. Destroying the handle reports that the put's memory is
  // free again. The Sessions must outlive it.
  using InFlightPut = Handle<Sessions, RunningPut, &Sessions::EndPut>;

  // `peers_max` is the limit for the data-plane connections of all sessions.
  Sessions(Hooks hooks, uint64_t peers_max)
      : hooks_(std::move(hooks)), peer_shares_("connections", peers_max) {}

  // Sets the policy, which must outlive the object. Without it, the policy is AnyTenant. REQUIRES:
  // no other function was called before.
  void SetPolicy(const TenantPolicy& policy) { policy_ = &policy; }
  // Sets a function that is called when a peer presents the ticket of a session of `tenant` that
  // another peer has opened. It must not block. Call SetOtherBearerNote() before the first session.
  using OtherBearerNote = std::function<void(const PeerIdentity& peer, std::string_view tenant)>;
  void SetOtherBearerNote(OtherBearerNote note) { note_other_bearer_ = std::move(note); }
  const TenantPolicy& policy() const { return *policy_; }

  struct Opened {
    uint64_t id = 0;
    proto::Ticket ticket{};
  };
  // Opens a session. Errors: InvalidArgument (tenant or name exceeds its limit, see store.proto),
  // ResourceExhausted (the tenant has too many sessions), Unavailable (RefuseNew() was called),
  // PermissionDenied (the identity may not use that tenant, or with `is_member` be a member).
  absl::StatusOr<Opened> Open(std::string_view tenant, std::string_view client_name,
                              const PeerIdentity& identity = {}, bool is_member = false,
                              bool reads_peer_tier = false);

  // Checks that the peer that presents a ticket is the one that opened the session. Errors: those
  // of Find(), PermissionDenied (it is another peer).
  absl::Status CheckBearer(const proto::Ticket& ticket, const PeerIdentity& identity) const;

  // Returns the session of a ticket. Errors: NotFound (there is no such session, or it has ended);
  // while the daemon drains or stops, Unavailable instead. Does not allocate.
  absl::StatusOr<Session> Find(const proto::Ticket& ticket) const;
  bool IsOpen(uint64_t session_id) const;

  // Ends a session. Its ticket becomes invalid, and the session can publish nothing more. Waits for
  // running IfOpen() actions, then disconnects the session's peers and releases its leases. If
  // bytes of its puts are still being transferred, they count as quarantine until the transfers
  // complete. Idempotent: a second caller does not wait.
  void End(uint64_t session_id);

  // Binds a connection to the session. The end of the session disconnects it. `identity` is null if
  // the transport identifies no peers. A session that was opened over plain TCP has no identity, so
  // any connection may present its ticket. Errors: ResourceExhausted (the session or the tenant has
  // too many connections), PermissionDenied (the connection's peer is not the session's, or the
  // tenant may not use that transport).
  absl::Status AttachPeer(uint64_t session_id, const PeerRef& peer,
                          const PeerIdentity* identity = nullptr);
  // The part of AttachPeer() that compares identities and asks the policy.
  absl::Status CheckPeer(uint64_t session_id, const PeerIdentity* identity) const;
  // Removes a closed connection. Ignores unknown ones.
  void DetachPeer(uint64_t session_id, const PeerRef& peer);

  // Keeps the space alive until the session ends. Errors: NotFound if the session has ended.
  absl::Status Keep(uint64_t session_id, SpaceRef space);

  // Errors: NotFound (the session has ended), ResourceExhausted (the session has too many running
  // puts, or too many bytes in them).
  absl::StatusOr<InFlightPut> BeginPut(uint64_t session_id, uint64_t bytes);

  // Runs `action` without locks held. End() of the session waits for it. If the session has ended,
  // returns Unavailable without running it. REQUIRES: `action` is short, works in memory only, and
  // ends no session.
  absl::Status IfOpen(uint64_t session_id, absl::FunctionRef<absl::Status()> action);

  // Ends the sessions whose peer may no longer use their tenant. Returns their ids.
  std::vector<uint64_t> EndRefused();

  // Refuses new sessions, for draining. Those of members, too, unless `but_members`.
  void RefuseNew(bool but_members = false);
  bool is_refusing() const;

  uint64_t count() const;
  uint64_t count(std::string_view tenant) const;
  uint64_t in_flight_bytes() const;   // bytes of running puts of open sessions
  uint64_t quarantine_bytes() const;  // bytes of running puts of ended sessions
  struct Info {
    uint64_t id = 0;
    std::string tenant, client_name;
    PeerIdentity identity;  // the client that opened it
    bool is_member = false;
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
  absl::Status RefuseBearer(const PeerIdentity& identity, std::string_view tenant) const;
  struct State {
    Session session;
    PeerIdentity identity;  // the client that opened it
    proto::Ticket ticket{};
    std::string client_name;
    std::vector<PeerRef> peers;
    std::vector<SpaceRef> spaces;  // each once
    bool is_open = true;
    size_t puts = 0;
    uint64_t put_bytes = 0;
    size_t actions = 0;  // running IfOpen() actions
  };
  using StateMap = absl::flat_hash_map<uint64_t, State>;
  absl::Status NoSession() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes an ended session once it has no running put or action.
  void ForgetIfOver(StateMap::iterator position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Hooks hooks_;
  const AnyTenant any_tenant_;
  const TenantPolicy* policy_ = &any_tenant_;
  mutable Mutex mutex_;
  CondVar action_over_;  // signalled when the last action of an ended session completes
  bool refuses_new_ ABSL_GUARDED_BY(mutex_) = false;
  bool refuses_members_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // An ended session stays here, with is_open false, until its last put has finished.
  StateMap sessions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<proto::Ticket, uint64_t, TicketHash, TicketEqual> tickets_
      ABSL_GUARDED_BY(mutex_);
  TenantShares shares_ ABSL_GUARDED_BY(mutex_){"sessions", limits::kSessionsMax};
  TenantShares peer_shares_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t quarantine_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter opened_, ended_, refused_;
  mutable Counter other_bearers_;
  OtherBearerNote note_other_bearer_;  // null: none
};

}  // namespace cairn
