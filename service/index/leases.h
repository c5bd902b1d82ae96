// SPDX-License-Identifier: Apache-2.0
#pragma once
// Leases: pins held for a tenant under a token, until released, run out, or their session's end.
// Who takes or drops leases sees to the pins, of which there may be many. What may drop many leases
// takes Visits, one for each lease that it looks at, and says false where they are spent: the
// caller goes on in its next hold.
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
#include "service/index/block_table.h"
#include "service/index/tenant_shares.h"
#include "service/index/visits.h"
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
  // Takes tokens from the front of *tokens. Unknown ones and those of other tenants are ignored.
  bool Release(std::string_view tenant, absl::Span<const proto::LeaseToken>* tokens, Visits& visits,
               Dropped* dropped);
  // At most kLeasesPerSessionMax of them.
  void Renew(uint64_t session_id, absl::Time now);
  bool EndSession(uint64_t session_id, Visits& visits, Dropped* dropped);
  // Drops those that have run out.
  bool Expire(absl::Time now, Visits& visits, Dropped* dropped);
  // When Expire() may have something to do: not after the next lease runs out. InfiniteFuture:
  // there is none.
  absl::Time next_expiry() const {
    return by_expiry_.empty() ? absl::InfiniteFuture() : by_expiry_.begin()->first;
  }

  size_t count() const { return leases_.size(); }
  size_t count(std::string_view tenant) const { return shares_.Of(tenant); }
  void Report(MetricSink& sink) const;

 private:
  struct Lease {
    proto::LeaseToken token{};
    std::string tenant;
    uint64_t session_id = 0;
    absl::Time started, expires;
    absl::Time filed;  // in by_expiry_: `expires`, or what that was before it was renewed
    std::vector<Image*> images;
  };
  DroppedLease Drop(const proto::LeaseToken& token);

  absl::flat_hash_map<proto::LeaseToken, std::unique_ptr<Lease>> leases_;
  absl::flat_hash_map<uint64_t, absl::flat_hash_set<Lease*>> by_session_;
  // Each lease once. What is renewed is filed anew when its turn comes.
  std::set<std::pair<absl::Time, Lease*>> by_expiry_;
  TenantShares shares_{"leases", limits::kLeasesMax};
  TenantShares image_shares_{"leased_images", limits::kLeasedImagesMax};
  TenantShares bytes_;  // of each image once, however many leases hold it
  uint64_t taken_total_ = 0, expired_total_ = 0;
};

}  // namespace cairn
