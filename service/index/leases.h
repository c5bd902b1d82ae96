// SPDX-License-Identifier: Apache-2.0
#pragma once
// Leases: pins that a tenant holds under a token. They last until they are released or expire, or
// until the session ends. A lease may have many pins. So the caller, not this class, sets them when
// it takes a lease, and releases them when a lease is dropped. A function that may drop many leases
// spends a visit for each lease that it examines. If no visits are left, it returns false, and the
// caller calls it again in its next hold of the lock.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "service/index/block.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"

namespace cairn {

class Leases {
 public:
  // A dropped lease. The caller must release one lease pin of each of its images.
  struct DroppedLease {
    std::string tenant;
    std::vector<Image*> images;
  };
  using Dropped = std::vector<DroppedLease>;

  // `bytes_max` is the limit for the images of all leases together, in allocated bytes.
  explicit Leases(uint64_t bytes_max) : bytes_("leased_bytes", bytes_max) {}
  Dropped Clear();

  // Errors: ResourceExhausted (too many leases of the session or the tenant, or too many images).
  absl::Status CheckRoom(std::string_view tenant, uint64_t session_id, size_t image_count);
  // Returns how many more bytes of images the tenant may lease.
  uint64_t BytesFreeFor(std::string_view tenant) const { return bytes_.FreeFor(tenant); }
  // Must be called after each change of the tenant's leased bytes, from `before` to `after`.
  void CountBytes(std::string_view tenant, uint64_t before, uint64_t after);
  // REQUIRES: `token` is new, and each image has a lease pin for it.
  void Take(const proto::LeaseToken& token, std::string_view tenant, uint64_t session_id,
            std::vector<Image*> images, absl::Time now);
  // Removes tokens from the front of *tokens, and drops their leases. Ignores tokens that are
  // unknown or belong to another tenant.
  bool Release(std::string_view tenant, absl::Span<const proto::LeaseToken>* tokens, Visits& visits,
               Dropped* dropped);
  // Renews the leases of a session: at most kLeasesPerSessionMax.
  void Renew(uint64_t session_id, absl::Time now);
  bool EndSession(uint64_t session_id, Visits& visits, Dropped* dropped);
  // Drops expired leases.
  bool Expire(absl::Time now, Visits& visits, Dropped* dropped);
  // Returns a time before which no lease expires. It may be earlier than the next expiry. Returns
  // InfiniteFuture if there is no lease.
  absl::Time next_expiry() const {
    return by_expiry_.empty() ? absl::InfiniteFuture() : by_expiry_.begin()->first;
  }

  size_t count() const { return leases_.size(); }
  size_t count(std::string_view tenant) const { return shares_.Of(tenant); }
  // Without those of these sessions, each of which is named once.
  size_t count_without(absl::Span<const uint64_t> sessions) const;
  void Report(MetricSink& sink) const;

 private:
  struct Lease {
    proto::LeaseToken token{};
    std::string tenant;
    uint64_t session_id = 0;
    absl::Time started, expires;
    absl::Time filed;  // the lease's time in by_expiry_; after a renewal, still the old one
    std::vector<Image*> images;
  };
  DroppedLease Drop(const proto::LeaseToken& token);

  absl::flat_hash_map<proto::LeaseToken, std::unique_ptr<Lease>> leases_;
  absl::flat_hash_map<uint64_t, absl::flat_hash_set<Lease*>> by_session_;
  // Has one entry per lease. When a lease is renewed, the entry keeps the old time. When the old
  // time comes, the entry moves to the new time.
  std::set<std::pair<absl::Time, Lease*>> by_expiry_;
  TenantShares shares_{"leases", limits::kLeasesMax};
  TenantShares image_shares_{"leased_images", limits::kLeasedImagesMax};
  TenantShares bytes_;  // counts each image once, however many leases hold it
  uint64_t taken_total_ = 0, expired_total_ = 0;
};

}  // namespace cairn
