// SPDX-License-Identifier: Apache-2.0
#include "service/sessions.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/status.h"

namespace cairn {
namespace {

bool IsTenantName(std::string_view name) {
  return !name.empty() && name.size() <= limits::kTenantBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

absl::Status OtherBearer() {
  return absl::PermissionDeniedError("ticket: another peer opened its session");
}

}  // namespace

TenantName::TenantName(std::string_view name) : size_(static_cast<uint8_t>(name.size())) {
  CAIRN_CHECK(name.size() <= data_.size());
  std::copy(name.begin(), name.end(), data_.begin());
}

size_t Sessions::TicketHash::operator()(const proto::Ticket& ticket) const {
  return absl::Hash<proto::Ticket>{}(ticket);
}

absl::StatusOr<Sessions::Opened> Sessions::Open(std::string_view tenant,
                                                std::string_view client_name,
                                                const PeerIdentity& identity, bool is_member,
                                                bool reads_peer_tier) {
  if (!IsTenantName(tenant)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant: 1 to ", limits::kTenantBytesMax, " characters of [A-Za-z0-9._-]"));
  }
  if (client_name.size() > limits::kClientNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("client_name: at most ", limits::kClientNameBytesMax, " bytes"));
  }
  Opened opened;
  opened.ticket = RandomBytes<16>();
  absl::Status status = is_member ? policy_->MayBeMember(identity) : absl::OkStatus();
  if (status.ok()) status = policy_->MayUse(identity, tenant);
  if (!status.ok()) {
    refused_.Add();
    return status;
  }
  const uint64_t sessions_max = policy_->SessionsMax(tenant).value_or(limits::kSessionsMax);
  const TenantName name(tenant);
  const MutexLock lock(mutex_);  // released before `space`
  if (is_member ? refuses_members_ : refuses_new_) {
    refused_.Add();
    return absl::UnavailableError("draining: no new sessions");
  }
  // Ended sessions whose puts still run count, too, because they still use memory.
  absl::Status room = shares_.CheckRoom(tenant, 1);
  if (room.ok() && shares_.Of(tenant) >= sessions_max) {
    room = absl::ResourceExhaustedError(
        absl::StrCat("sessions: the policy allows the tenant ", sessions_max));
  }
  if (!room.ok()) {
    refused_.Add();
    return room;
  }
  shares_.Add(tenant, 1);
  opened.id = ++last_id_;
  State& state = sessions_[opened.id];
  state.session = {
      .id = opened.id, .tenant = name, .is_member = is_member, .reads_peer_tier = reads_peer_tier};
  state.identity = identity;
  state.ticket = opened.ticket;
  state.client_name = std::string(client_name);
  tickets_.emplace(opened.ticket, opened.id);
  opened_.Add();
  return opened;
}

absl::Status Sessions::NoSession() const {
  // While the daemon stops, it ends sessions that did nothing wrong.
  if (refuses_new_) return absl::UnavailableError("draining: the session has ended");
  return absl::NotFoundError("no such session");
}

absl::StatusOr<Session> Sessions::Find(const proto::Ticket& ticket) const {
  const MutexLock lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return NoSession();
  return sessions_.find(found->second)->second.session;
}

absl::Status Sessions::RefuseBearer(const PeerIdentity& identity, std::string_view tenant) const {
  other_bearers_.Add();
  if (note_other_bearer_ != nullptr) note_other_bearer_(identity, tenant);
  return OtherBearer();
}

absl::Status Sessions::CheckBearer(const proto::Ticket& ticket,
                                   const PeerIdentity& identity) const {
  const MutexLock lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return NoSession();
  const State& state = sessions_.find(found->second)->second;
  if (state.identity == identity) return absl::OkStatus();
  return RefuseBearer(identity, state.session.tenant.view());
}

bool Sessions::IsOpen(uint64_t session_id) const {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  return found != sessions_.end() && found->second.is_open;
}

void Sessions::End(uint64_t session_id) {
  std::vector<PeerRef> peers;
  std::vector<SpaceRef> spaces;  // destroyed after the lock is released
  {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end() || !found->second.is_open) {
      return;
    }
    State& state = found->second;
    state.is_open = false;
    tickets_.erase(state.ticket);
    peers = std::exchange(state.peers, {});
    spaces = std::exchange(state.spaces, {});
    in_flight_bytes_ -= state.put_bytes;
    quarantine_bytes_ += state.put_bytes;
    peer_shares_.Remove(state.session.tenant.view(), peers.size());
    ended_.Add();
    // The loop ends, because actions are short and no new one begins. The map may rehash meanwhile.
    auto position = found;
    while (position != sessions_.end() && position->second.actions > 0) {
      action_over_.WaitUntil(mutex_, MonotonicNow() + absl::Seconds(1));
      position = sessions_.find(session_id);
    }
    if (position != sessions_.end()) {
      ForgetIfOver(position);
    }
  }
  for (const PeerRef& peer : peers) {
    hooks_.break_peer(peer);
  }
  hooks_.release_leases(session_id);
}

absl::Status Sessions::AttachPeer(uint64_t session_id, const PeerRef& peer,
                                  const PeerIdentity* identity) {
  CAIRN_RETURN_IF_ERROR(CheckPeer(session_id, identity));
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end() || !found->second.is_open) {
    return absl::NotFoundError("no such session");
  }
  if (found->second.peers.size() >= limits::kPeersPerSessionMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("data connections of the session: at most ", limits::kPeersPerSessionMax));
  }
  const std::string_view tenant = found->second.session.tenant.view();
  CAIRN_RETURN_IF_ERROR(peer_shares_.CheckRoom(tenant, 1));
  peer_shares_.Add(tenant, 1);
  found->second.peers.push_back(peer);
  return absl::OkStatus();
}

absl::Status Sessions::CheckPeer(uint64_t session_id, const PeerIdentity* identity) const {
  TenantName tenant;
  {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end()) return absl::NotFoundError("no such session");
    const PeerIdentity& opener = found->second.identity;
    if (identity != nullptr && opener.is_known() && *identity != opener) {
      return RefuseBearer(*identity, found->second.session.tenant.view());
    }
    tenant = found->second.session.tenant;
  }
  if (identity == nullptr) return policy_->MayUseUcx(tenant.view());
  return policy_->MayUse(*identity, tenant.view());
}

void Sessions::DetachPeer(uint64_t session_id, const PeerRef& peer) {
  const MutexLock lock(mutex_);
  if (const auto found = sessions_.find(session_id); found != sessions_.end()) {
    const size_t count = std::erase(found->second.peers, peer);
    peer_shares_.Remove(found->second.session.tenant.view(), count);
  }
}

absl::Status Sessions::Keep(uint64_t session_id, SpaceRef space) {
  // Released before `space`, whose destructor takes the lock of Spaces.
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end() || !found->second.is_open) {
    return absl::NotFoundError("no such session");
  }
  std::vector<SpaceRef>& kept = found->second.spaces;
  if (std::none_of(kept.begin(), kept.end(),
                   [&space](const SpaceRef& one) { return &*one == &*space; })) {
    kept.push_back(std::move(space));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sessions::InFlightPut> Sessions::BeginPut(uint64_t session_id, uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end() || !found->second.is_open) {
    return absl::NotFoundError("no such session");
  }
  State& state = found->second;
  if (state.puts >= limits::kPutsPerSessionMax ||
      state.put_bytes + bytes > limits::kPutBytesPerSessionMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("puts of the session in flight: at most ", limits::kPutsPerSessionMax, ", of ",
                     limits::kPutBytesPerSessionMax, " bytes together"));
  }
  ++state.puts;
  state.put_bytes += bytes;
  in_flight_bytes_ += bytes;
  return InFlightPut(*this, {.session_id = session_id, .bytes = bytes});
}

void Sessions::EndPut(RunningPut put) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(put.session_id);
  CAIRN_CHECK(found != sessions_.end() && found->second.puts > 0);
  State& state = found->second;
  --state.puts;
  state.put_bytes -= put.bytes;
  (state.is_open ? in_flight_bytes_ : quarantine_bytes_) -= put.bytes;
  ForgetIfOver(found);
}

void Sessions::ForgetIfOver(StateMap::iterator position) {
  const State& state = position->second;
  if (!state.is_open && state.puts == 0 && state.actions == 0) {
    shares_.Remove(state.session.tenant.view(), 1);
    sessions_.erase(position);
  }
}

absl::Status Sessions::IfOpen(uint64_t session_id, absl::FunctionRef<absl::Status()> action) {
  {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(session_id);
    if (found == sessions_.end() || !found->second.is_open) {
      return absl::UnavailableError("the session has ended");
    }
    ++found->second.actions;
  }
  const absl::Status status = action();
  const MutexLock lock(mutex_);
  State& state = sessions_.find(session_id)->second;
  if (--state.actions == 0 && !state.is_open) {
    action_over_.NotifyAll();
  }
  return status;
}

std::vector<uint64_t> Sessions::EndRefused() {
  std::vector<uint64_t> refused;
  for (const Info& session : List()) {
    if (!policy_->MayUse(session.identity, session.tenant).ok()) refused.push_back(session.id);
  }
  for (const uint64_t id : refused) End(id);
  return refused;
}

void Sessions::RefuseNew(bool but_members) {
  const MutexLock lock(mutex_);
  refuses_new_ = true;
  refuses_members_ = refuses_members_ || !but_members;
}

bool Sessions::is_refusing() const {
  const MutexLock lock(mutex_);
  return refuses_new_;
}

uint64_t Sessions::count() const {
  const MutexLock lock(mutex_);
  return tickets_.size();
}

uint64_t Sessions::count(std::string_view tenant) const {
  const MutexLock lock(mutex_);
  return static_cast<uint64_t>(std::ranges::count_if(sessions_, [tenant](const auto& entry) {
    return entry.second.is_open && entry.second.session.tenant.view() == tenant;
  }));
}

uint64_t Sessions::in_flight_bytes() const {
  const MutexLock lock(mutex_);
  return in_flight_bytes_;
}

uint64_t Sessions::quarantine_bytes() const {
  const MutexLock lock(mutex_);
  return quarantine_bytes_;
}

std::vector<Sessions::Info> Sessions::List() const {
  std::vector<Info> infos;
  const MutexLock lock(mutex_);
  for (const auto& [id, state] : sessions_) {
    if (state.is_open) {
      infos.push_back({.id = id,
                       .tenant = std::string(state.session.tenant.view()),
                       .client_name = state.client_name,
                       .identity = state.identity,
                       .is_member = state.session.is_member,
                       .peers = state.peers.size(),
                       .puts = state.puts});
    }
  }
  std::sort(infos.begin(), infos.end(), [](const Info& a, const Info& b) { return a.id < b.id; });
  return infos;
}

void Sessions::Report(MetricSink& sink) const {
  {
    const MutexLock lock(mutex_);
    sink.AddGauge("cairn_sessions", "Open sessions.", {}, static_cast<double>(tickets_.size()));
    sink.AddGauge("cairn_put_in_flight_bytes", "Payload bytes of running puts.", {},
                  static_cast<double>(in_flight_bytes_));
    sink.AddGauge("cairn_quarantine_bytes",
                  "Payload bytes of puts whose session has ended, until their transfer completes.",
                  {}, static_cast<double>(quarantine_bytes_));
    shares_.Report(sink);
    peer_shares_.Report(sink);
  }
  sink.AddCounter("cairn_sessions_opened_total", "Sessions opened.", {}, opened_.Value());
  sink.AddCounter("cairn_sessions_ended_total", "Sessions ended.", {}, ended_.Value());
  sink.AddCounter("cairn_sessions_refused_total",
                  "Sessions refused: too many, draining, or by the policy.", {}, refused_.Value());
  sink.AddCounter("cairn_tickets_of_others_total",
                  "Calls and data connections that showed the ticket of another peer's session.",
                  {}, other_bearers_.Value());
}

}  // namespace cairn
