// SPDX-License-Identifier: Apache-2.0
#pragma once
// Leases: pins held for a tenant under a token, until released, run out, or their session's end.
// Who takes or drops leases sees to the pins, of which there may be many.
//
// Thread-safety: Thread-compatible (the index's lock).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "service/index/block_table.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"

namespace cairn {

class Leases {
 public:
  // A lease that is no more; each of its images has one lease pin to be given back.
  struct DroppedLease {
    std::string tenant;
    std::vector<Image*> images;
  };
  using Dropped = std::vector<DroppedLease>;

  // `bytes_max`: of the images that all leases hold together, as allocated.
  explicit Leases(uint64_t bytes_max) : bytes_("leased_bytes", bytes_max) {}
  Dropped Clear();

  // ResourceExhausted: leases of the session or the tenant, or their images.
  absl::Status CheckRoom(std::string_view tenant, uint64_t session_id, size_t image_count);
  // Bytes of images not leased yet that the tenant may lease.
  uint64_t BytesFreeFor(std::string_view tenant) const { return bytes_.FreeFor(tenant); }
  // What was done for the tenant changed the bytes of all leased images from `before` to `after`.
  void CountBytes(std::string_view tenant, uint64_t before, uint64_t after);
  // REQUIRES: `token` is fresh, each image has a lease pin for it.
  void Take(const proto::LeaseToken& token, std::string_view tenant, uint64_t session_id,
            std::vector<Image*> images, absl::Time now);
  // Unknown ones and those of other tenants are ignored.
  Dropped Release(std::string_view tenant, absl::Span<const proto::LeaseToken> tokens);
  void Renew(uint64_t session_id, absl::Time now);
  Dropped EndSession(uint64_t session_id);
  // Drops those that have run out; returns when the next does.
  absl::Time Expire(absl::Time now, Dropped* dropped);

  size_t count() const { return leases_.size(); }
  size_t count(std::string_view tenant) const { return shares_.Of(tenant); }
  void Report(MetricSink& sink) const;

 private:
  struct Lease {
    proto::LeaseToken token{};
    std::string tenant;
    uint64_t session_id = 0;
    absl::Time started, expires;
    std::vector<Image*> images;
  };
  DroppedLease Drop(const proto::LeaseToken& token);

  absl::flat_hash_map<proto::LeaseToken, std::unique_ptr<Lease>> leases_;
  absl::flat_hash_map<uint64_t, absl::flat_hash_set<Lease*>> by_session_;
  TenantShares shares_{"leases", limits::kLeasesMax};
  TenantShares image_shares_{"leased_images", limits::kLeasedImagesMax};
  TenantShares bytes_;  // of each image once, however many leases hold it
  uint64_t taken_total_ = 0, expired_total_ = 0;
};

}  // namespace cairn
