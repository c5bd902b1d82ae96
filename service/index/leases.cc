// SPDX-License-Identifier: Apache-2.0
#include "service/index/leases.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr absl::Duration kRun = absl::Milliseconds(limits::kLeaseMs);
constexpr absl::Duration kRunMax = absl::Milliseconds(limits::kLeaseMsMax);

}  // namespace

Leases::Dropped Leases::Clear() {
  Dropped dropped;
  while (!leases_.empty()) {
    dropped.push_back(Drop(leases_.begin()->first));
  }
  return dropped;
}

absl::Status Leases::CheckRoom(std::string_view tenant, uint64_t session_id, size_t image_count) {
  const auto session = by_session_.find(session_id);
  if (session != by_session_.end() && session->second.size() >= limits::kLeasesPerSessionMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("leases of the session: at most ", limits::kLeasesPerSessionMax));
  }
  CAIRN_RETURN_IF_ERROR(shares_.CheckRoom(tenant, 1));
  return image_shares_.CheckRoom(tenant, image_count);
}

void Leases::CountBytes(std::string_view tenant, uint64_t before, uint64_t after) {
  bytes_.Add(tenant, after > before ? after - before : 0);
  bytes_.Remove(tenant, after < before ? before - after : 0);
}

void Leases::Take(const proto::LeaseToken& token, std::string_view tenant, uint64_t session_id,
                  std::vector<Image*> images, absl::Time now) {
  shares_.Add(tenant, 1);
  image_shares_.Add(tenant, images.size());
  ++taken_total_;
  auto lease = std::make_unique<Lease>(Lease{.token = token,
                                             .tenant = std::string(tenant),
                                             .session_id = session_id,
                                             .started = now,
                                             .expires = now + kRun,
                                             .filed = now + kRun,
                                             .images = std::move(images)});
  by_session_[session_id].insert(lease.get());
  by_expiry_.emplace(lease->filed, lease.get());
  const bool is_fresh = leases_.emplace(token, std::move(lease)).second;
  CAIRN_CHECK(is_fresh);
}

Leases::DroppedLease Leases::Drop(const proto::LeaseToken& token) {
  const auto found = leases_.find(token);
  CAIRN_CHECK(found != leases_.end());
  const std::unique_ptr<Lease> lease = std::move(found->second);
  leases_.erase(found);
  by_expiry_.erase({lease->filed, lease.get()});
  const auto session = by_session_.find(lease->session_id);
  session->second.erase(lease.get());
  if (session->second.empty()) {
    by_session_.erase(session);
  }
  shares_.Remove(lease->tenant, 1);
  image_shares_.Remove(lease->tenant, lease->images.size());
  return {std::move(lease->tenant), std::move(lease->images)};
}

bool Leases::Release(std::string_view tenant, absl::Span<const proto::LeaseToken>* tokens,
                     Visits& visits, Dropped* dropped) {
  for (; !tokens->empty(); tokens->remove_prefix(1)) {
    if (!visits.Take()) {
      return false;
    }
    const auto found = leases_.find(tokens->front());
    if (found != leases_.end() && found->second->tenant == tenant) {
      dropped->push_back(Drop(found->first));
    }
  }
  return true;
}

void Leases::Renew(uint64_t session_id, absl::Time now) {
  const auto session = by_session_.find(session_id);
  if (session == by_session_.end()) {
    return;
  }
  for (Lease* lease : session->second) {
    lease->expires = std::max(lease->expires, std::min(now + kRun, lease->started + kRunMax));
  }
}

bool Leases::EndSession(uint64_t session_id, Visits& visits, Dropped* dropped) {
  for (;;) {  // each iteration drops a lease
    const auto session = by_session_.find(session_id);
    if (session == by_session_.end()) {
      return true;
    }
    if (!visits.Take()) {
      return false;
    }
    dropped->push_back(Drop((*session->second.begin())->token));
  }
}

bool Leases::Expire(absl::Time now, Visits& visits, Dropped* dropped) {
  while (next_expiry() <= now) {  // each iteration drops a lease, or files it again
    if (!visits.Take()) {
      return false;
    }
    Lease* lease = by_expiry_.begin()->second;
    if (lease->expires <= now) {
      dropped->push_back(Drop(lease->token));
      ++expired_total_;
      continue;
    }
    by_expiry_.erase(by_expiry_.begin());
    lease->filed = lease->expires;
    by_expiry_.emplace(lease->filed, lease);
  }
  return true;
}

size_t Leases::count_without(absl::Span<const uint64_t> sessions) const {
  size_t count = leases_.size();
  for (const uint64_t session_id : sessions) {
    const auto found = by_session_.find(session_id);
    count -= found == by_session_.end() ? 0 : found->second.size();
  }
  return count;
}

void Leases::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_leases", "Leases held.", {}, static_cast<double>(leases_.size()));
  sink.AddGauge("cairn_leased_images", "Leased images, counted once per lease.", {},
                static_cast<double>(image_shares_.total()));
  sink.AddCounter("cairn_leases_taken_total", "Leases taken.", {}, taken_total_);
  sink.AddCounter("cairn_leases_expired_total", "Leases that expired without a release.", {},
                  expired_total_);
  for (const TenantShares* shares : {&shares_, &image_shares_, &bytes_}) {
    shares->Report(sink);
  }
}

}  // namespace cairn
