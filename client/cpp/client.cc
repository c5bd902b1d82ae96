// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "client/cpp/core.h"
#include "client/cpp/dial.h"
#include "client/cpp/space.h"
#include "client/cpp/tls.h"
#include "codecs/backend/backends.h"
#include "proto/convert.h"

namespace cairn {
namespace {

// A forked child of a connected process lacks the gRPC threads that would open its session.
absl::Status RefuseAfterFork() {
  static std::atomic<pid_t> connected{0};
  pid_t first = 0;
  if (connected.compare_exchange_strong(first, getpid()) || first == getpid()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("process ", first, " connected before it forked this one: ", kInsteadOfForking));
}

}  // namespace

Client::Client(std::unique_ptr<ClientCore> core) : core_(std::move(core)) {}

Client::~Client() {
  if (getpid() != core_->pid) {
    // The threads and locks of a forked copy cannot be joined or taken, so the core is leaked.
    static_cast<void>(core_.release());
  }
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ConnectOptions& options) {
  CAIRN_RETURN_IF_ERROR(Validate(options));
  CAIRN_RETURN_IF_ERROR(RefuseAfterFork());
  if (const std::string refused = codecs::RefusedChoice(); !refused.empty()) {
    return absl::InvalidArgumentError(refused);
  }
  for (const codecs::BackendFault& fault : codecs::BackendFaults()) {
    LogWarn("client", "codec backend failed its self-test and is not used",
            {{"backend", fault.backend->name}, {"operation", fault.operation}});
  }
  ConnectOptions settled = options;
  if (!settled.dialer) {
    settled.dialer = DialTransport;
  }
  auto core = std::make_unique<ClientCore>(settled);
  CAIRN_ASSIGN_OR_RETURN(core->tls, OpenTls(options.tls));
  core->data.SetTls(core->tls.get());
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline,
                         core->Begin(options.timeout, kDataTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(core->control, Control::Open(core->options, core->tls.get(), deadline,
                                                      [&data = core->data](uint64_t epoch) {
                                                        data.SessionEnded(epoch);
                                                      }));
  return std::unique_ptr<Client>(new Client(std::move(core)));
}

absl::StatusOr<std::unique_ptr<Space>> Client::OpenSpace(const proto::SpaceIdentity& identity,
                                                         const std::string& recipe,
                                                         absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_->Begin(timeout, kControlTimeoutDefault));
  proto::SpaceIdentity settled = identity;
  if (settled.tenant.empty()) {
    settled.tenant = core_->options.tenant;
  }
  if (settled.tenant != core_->options.tenant) {
    return absl::InvalidArgumentError(absl::StrCat("identity.tenant is '", settled.tenant,
                                                   "'; the client connected as '",
                                                   core_->options.tenant, "'"));
  }
  CAIRN_RETURN_IF_ERROR(proto::Validate(settled));
  CAIRN_RETURN_IF_ERROR(proto::FromRecipeName(recipe, codecs::Recipe()).status());
  // Reported now, because a connector that cannot move blocks should not start.
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, core_->control->Session(deadline));
  CAIRN_RETURN_IF_ERROR(core_->data.CheckRoute(session));
  std::unique_ptr<Space> space(new Space(*core_, std::move(settled), recipe));
  CAIRN_RETURN_IF_ERROR(space->Bind(deadline).status());
  return space;
}

absl::Status Client::Release(std::span<const LeaseToken> leases, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_->Begin(timeout, kControlTimeoutDefault));
  v1::ReleaseRequest request;
  for (const LeaseToken& lease : leases) {
    if (lease != LeaseToken{}) {
      request.add_leases(proto::ToBytes(lease));
    }
  }
  if (request.leases().empty()) {
    return absl::OkStatus();
  }
  return core_->control->Release(std::move(request), deadline).status();
}

std::unique_ptr<EventWatch> Client::Watch(const EventPosition& position, bool has_snapshots) {
  return std::unique_ptr<EventWatch>(new EventWatch(
      *core_, [](absl::Time) { return uint64_t{0}; }, position, has_snapshots));
}

absl::StatusOr<Stats> Client::GetStats(absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_->Begin(timeout, kControlTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const v1::StatsReply reply,
                         core_->control->Stats(v1::StatsRequest(), deadline));
  Stats stats{.block_count = reply.block_count(),
              .image_count = reply.image_count(),
              .image_bytes = reply.image_bytes(),
              .source_bytes = reply.source_bytes(),
              .copies_source_bytes = reply.copies_source_bytes(),
              .session_count = reply.session_count(),
              .lease_count = reply.lease_count(),
              .tiers = {},
              .daemon_version = reply.daemon_version(),
              .uptime = absl::Milliseconds(reply.uptime_ms()),
              .is_draining = reply.draining()};
  for (const v1::TierStats& tier : reply.tiers()) {
    stats.tiers.push_back({.tier = static_cast<Tier>(tier.tier()),
                           .capacity_bytes = tier.capacity_bytes(),
                           .used_bytes = tier.used_bytes(),
                           .pinned_bytes = tier.pinned_bytes(),
                           .staging_bytes = tier.staging_bytes(),
                           .quarantine_bytes = tier.quarantine_bytes()});
  }
  return stats;
}

ClientCounters Client::counters() const {
  return {.gets = core_->gets.Value(),
          .hits = core_->hits.Value(),
          .misses = core_->misses.Value(),
          .corrupt = core_->corrupt.Value(),
          .late = core_->late.Value(),
          .puts = core_->puts.Value(),
          .duplicates = core_->duplicates.Value(),
          .get_bytes = core_->get_bytes.Value(),
          .put_bytes = core_->put_bytes.Value(),
          .reconnects = core_->control->reconnect_count(),
          .breaker_opened = core_->breaker.opened_count(),
          .breaker_state = core_->breaker.state()};
}

Breaker& Client::breaker() { return core_->breaker; }

absl::StatusOr<Buffer> Client::AllocateBuffer(size_t bytes, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_->Begin(timeout, kDataTimeoutDefault));
  if (bytes == 0) {
    return absl::InvalidArgumentError("bytes is 0; a buffer has at least 1");
  }
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, core_->control->Session(deadline));
  return core_->data.Allocate(session, bytes, deadline);
}

}  // namespace cairn
