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
                                             .images = std::move(images)});
  by_session_[session_id].insert(lease.get());
  const bool is_fresh = leases_.emplace(token, std::move(lease)).second;
  CAIRN_CHECK(is_fresh);
}

Leases::DroppedLease Leases::Drop(const proto::LeaseToken& token) {
  const auto found = leases_.find(token);
  CAIRN_CHECK(found != leases_.end());
  const std::unique_ptr<Lease> lease = std::move(found->second);
  leases_.erase(found);
  const auto session = by_session_.find(lease->session_id);
  session->second.erase(lease.get());
  if (session->second.empty()) {
    by_session_.erase(session);
  }
  shares_.Remove(lease->tenant, 1);
  image_shares_.Remove(lease->tenant, lease->images.size());
  return {std::move(lease->tenant), std::move(lease->images)};
}

Leases::Dropped Leases::Release(std::string_view tenant,
                                absl::Span<const proto::LeaseToken> tokens) {
  Dropped dropped;
  for (const proto::LeaseToken& token : tokens) {
    const auto found = leases_.find(token);
    if (found != leases_.end() && found->second->tenant == tenant) {
      dropped.push_back(Drop(found->second->token));
    }
  }
  return dropped;
}

void Leases::Renew(uint64_t session_id, absl::Time now) {
  const auto session = by_session_.find(session_id);
  if (session == by_session_.end()) {
    return;
  }
  for (Lease* lease : session->second) {
    lease->expires = std::min(now + kRun, lease->started + kRunMax);
  }
}

Leases::Dropped Leases::EndSession(uint64_t session_id) {
  const auto session = by_session_.find(session_id);
  if (session == by_session_.end()) {
    return {};
  }
  std::vector<proto::LeaseToken> tokens;
  for (const Lease* lease : session->second) {
    tokens.push_back(lease->token);
  }
  Dropped dropped;
  for (const proto::LeaseToken& token : tokens) {
    dropped.push_back(Drop(token));
  }
  return dropped;
}

absl::Time Leases::Expire(absl::Time now, Dropped* dropped) {
  std::vector<proto::LeaseToken> late;
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [token, lease] : leases_) {
    if (lease->expires <= now) {
      late.push_back(token);
    } else {
      next = std::min(next, lease->expires);
    }
  }
  for (const proto::LeaseToken& token : late) {
    dropped->push_back(Drop(token));
  }
  expired_total_ += late.size();
  return next;
}

void Leases::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_leases", "Leases held.", {}, static_cast<double>(leases_.size()));
  sink.AddGauge("cairn_leased_images", "Images that leases hold, once a lease.", {},
                static_cast<double>(image_shares_.total()));
  sink.AddCounter("cairn_leases_taken_total", "Leases taken.", {}, taken_total_);
  sink.AddCounter("cairn_leases_expired_total", "Leases that ran out unreleased.", {},
                  expired_total_);
  for (const TenantShares* shares : {&shares_, &image_shares_, &bytes_}) {
    shares->Report(sink);
  }
}

}  // namespace cairn
