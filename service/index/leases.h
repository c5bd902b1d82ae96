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

namespace cairn {

class Leases {
 public:
  // The images of leases that are no more; each has one lease pin to be given back.
  using Dropped = std::vector<std::vector<Image*>>;

  Dropped Clear();

  // ResourceExhausted: leases of the session or in all.
  absl::Status CheckRoom(uint64_t session_id, size_t image_count) const;
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
  void Report(MetricSink& sink) const;

 private:
  struct Lease {
    proto::LeaseToken token{};
    std::string tenant;
    uint64_t session_id = 0;
    absl::Time started, expires;
    std::vector<Image*> images;
  };
  std::vector<Image*> Drop(const proto::LeaseToken& token);

  absl::flat_hash_map<proto::LeaseToken, std::unique_ptr<Lease>> leases_;
  absl::flat_hash_map<uint64_t, absl::flat_hash_set<Lease*>> by_session_;
  size_t image_count_ = 0;
  uint64_t taken_total_ = 0, expired_total_ = 0;
};

}  // namespace cairn
