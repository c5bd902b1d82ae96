// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policies that operators have set for spaces, as far as this daemon knows. Members tell each
// other these policies. Of two policies of one space, the one with the higher epoch wins; with
// equal epochs, the one with the higher hash. So all members end with the same one.
//
// An epoch is a time in milliseconds since 1970, and higher than each earlier one of the space. A
// space whose policy was never set has no entry: it has the policy with which it was opened.
// Entries belong to the tenant of their space, as generations do (service/members/generations.h).
// Beyond its share, a tenant's oldest entries are forgotten.
//
// Thread-safety: Thread-safe.
// Locks:         changes < those that the functions of Parts take. `mutex_` is a leaf.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/block_key.h"

namespace cairn {

// A value.
struct ToldPolicy {
  std::string tenant = {};
  proto::Fingerprint space{};
  uint64_t epoch = 0;
  std::string recipe = {}, cold_recipe = {};  // names; an empty `cold_recipe` means none
  uint32_t ttl_s = 0;
  friend bool operator==(const ToldPolicy&, const ToldPolicy&) = default;
};

// The list as members and drives have it (proto/cairn/v1/peer.proto).
std::string SerializePolicies(std::span<const ToldPolicy> list);
// Errors: InvalidArgument (no such list, or one of more than limits::kPoliciesMax entries).
absl::StatusOr<std::vector<ToldPolicy>> ParsePolicies(std::string_view bytes);

class SpacePolicies {
 public:
  // The hash of no entries. No hash is 0.
  static constexpr uint64_t kEmptyHash = 0xc2b2ae3d27d4eb4f;

  struct Parts {
    // Makes it the policy of the space. Does nothing if the daemon does not have the space, or if
    // it is another tenant's. Errors: InvalidArgument (it cannot be used here).
    std::function<absl::Status(const ToldPolicy&)> use;
    // Saves SerializePolicies() of all entries for the next process.
    std::function<void(std::string list)> save;
    // The time of day.
    const Clock& clock = RealClock::Get();
  };
  explicit SpacePolicies(Parts parts) : parts_(std::move(parts)) {}

  // Sets the policy of a space, with a new epoch. Returns what other members are to be told; its
  // epoch is 0 if there is no room for the entry. Errors: those of `use`; then nothing is changed.
  absl::StatusOr<ToldPolicy> Set(ToldPolicy policy);
  // Takes a policy that the teller may tell. Older ones are ignored. Errors: FailedPrecondition (it
  // is taken, but cannot be used here), InvalidArgument (it is too far ahead of the clock).
  absl::Status Learn(const ToldPolicy& told);
  // Takes what a member knows, of the tenants for which `may_use`.
  using MayUse = absl::FunctionRef<bool(std::string_view tenant)>;
  void Merge(std::span<const ToldPolicy> told, MayUse may_use);
  // Takes what a previous process saved, and uses it. Ignores bytes that are no list.
  void Restore(std::string_view list);

  // nullopt: it was never set.
  std::optional<ToldPolicy> Of(std::string_view tenant, const proto::Fingerprint& space) const;

  // Of the entries of the tenants for which `may_use`. Equal for equal entries, in every process.
  uint64_t HashOf(MayUse may_use) const;
  std::string ListOf(MayUse may_use) const;

  void Report(MetricSink& sink) const;

 private:
  struct Tenant {
    absl::flat_hash_map<proto::Fingerprint, ToldPolicy> entries;
    uint64_t hash = 0;  // the sum of the hashes of the entries
  };
  enum class Kept : uint8_t { kNew, kOlder, kNoRoom };
  Kept Keep(const ToldPolicy& policy);
  bool MakeRoom(Tenant& tenant, uint64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAhead(uint64_t epoch) const;
  absl::Status LearnUnsaved(const ToldPolicy& told, bool* is_changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes_);
  std::vector<std::string> Visible(MayUse may_use) const;
  void Save() ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes_);

  const Parts parts_;
  Mutex changes_;  // held during each change, so that the entry is what the space has
  mutable Mutex mutex_;
  std::map<std::string, Tenant, std::less<>> tenants_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter learned_, refused_;
};

}  // namespace cairn
