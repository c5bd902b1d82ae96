// SPDX-License-Identifier: Apache-2.0
#pragma once
// The generation of each space: when all of its blocks were last deleted in the cluster, as far as
// this daemon knows. Members tell each other their generations, and the higher one wins: a member
// that was away drops its blocks of a space that was deleted meanwhile. A daemon has blocks of the
// current generation only, so blocks have no generation of their own.
//
// A generation is a time in microseconds since 1970, and higher than each earlier one of the space.
// A space that was never deleted has generation 0 and no entry. Entries belong to the tenant of
// their space: what a member may see and tell depends on the tenant, and each tenant has a share of
// the entries. Beyond its share, a tenant's oldest entries are forgotten.
//
// Thread-safety: Thread-safe.
// Locks:         none is held while a function of Parts is called, except for `save`.

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
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "proto/block_key.h"

namespace cairn {

// A value.
struct SpaceGeneration {
  std::string tenant;
  proto::Fingerprint space{};
  uint64_t generation = 0;
  friend bool operator==(const SpaceGeneration&, const SpaceGeneration&) = default;
};

// The list as members and drives have it (proto/cairn/v1/peer.proto).
std::string SerializeGenerations(std::span<const SpaceGeneration> list);
// Errors: InvalidArgument (no such list, or one of more than limits::kGenerationsMax entries).
absl::StatusOr<std::vector<SpaceGeneration>> ParseGenerations(std::string_view bytes);

class Generations {
 public:
  // The hash of no entries. No hash is 0.
  static constexpr uint64_t kEmptyHash = 0x9ae16a3b2f90404f;

  struct Parts {
    // Deletes all blocks of the space at this daemon, and returns their number. Does nothing if the
    // daemon does not have the space, or if it is another tenant's.
    std::function<uint64_t(std::string_view tenant, const proto::Fingerprint& space)> drop;
    // Saves SerializeGenerations() of all entries for the next process. If that process finds them,
    // what `drop` has deleted before must stay deleted.
    std::function<void(std::string list)> save;
    // The time of day. A clock that stands still while the machine is suspended would be behind.
    const Clock& clock = RealClock::Get();
  };
  explicit Generations(Parts parts) : parts_(std::move(parts)) {}

  // What a call did. `generation` is the space's current one.
  struct Outcome {
    uint64_t generation = 0;
    uint64_t deleted_count = 0;  // blocks
  };
  // Deletes all blocks of the space at this daemon, under a new generation. The generation is 0 if
  // there is no room for the entry; then the blocks are deleted all the same.
  Outcome Raise(std::string_view tenant, const proto::Fingerprint& space);
  // Takes the generation of one space, that the teller may tell. If it is higher than the known
  // one, deletes the blocks of the space first. Not taken if it is too far ahead of the clock, or
  // if there is no room.
  Outcome Learn(const SpaceGeneration& told);
  // Takes what a member knows, of the tenants for which `may_use`. Returns false if an entry was
  // too far ahead of the clock.
  using MayUse = absl::FunctionRef<bool(std::string_view tenant)>;
  bool Merge(std::span<const SpaceGeneration> told, MayUse may_use);
  // Takes what a previous process saved. Deletes nothing. Ignores bytes that are no list.
  void Restore(std::string_view list);

  // The generation whose blocks this daemon has, and 0 if it has no entry. Read it before the
  // blocks that are said to be of it.
  uint64_t Of(std::string_view tenant, const proto::Fingerprint& space) const;
  // Whether a block of this generation may be stored. Ask again after it was stored: if a deletion
  // has begun meanwhile, it may have missed the block.
  bool IsCurrent(std::string_view tenant, const proto::Fingerprint& space,
                 uint64_t generation) const;

  // Of the entries of the tenants for which `may_use`. Equal for equal entries, in every process.
  uint64_t HashOf(MayUse may_use) const;
  std::string ListOf(MayUse may_use) const;

  size_t count() const;
  void Report(MetricSink& sink) const;

 private:
  // While the blocks are being deleted, `begun` is higher than `done`.
  struct Entry {
    uint64_t begun = 0, done = 0;
  };
  struct Tenant {
    absl::flat_hash_map<proto::Fingerprint, Entry> entries;
    uint64_t hash = 0;  // the sum of the hashes of the entries, with `done`
  };
  const Entry* Find(std::string_view tenant, const proto::Fingerprint& space) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the deletion of what is older than `generation`; nullopt: than a new one. Returns the
  // generation, or 0 if there is no room for it.
  uint64_t Begin(std::string_view tenant, const proto::Fingerprint& space,
                 std::optional<uint64_t> generation);
  void End(std::string_view tenant, const proto::Fingerprint& space, uint64_t generation);
  // Makes room for one more entry of the tenant. Returns false if there is none for this one.
  bool MakeRoom(std::string_view name, Tenant& tenant, uint64_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAhead(uint64_t generation) const;
  Outcome LearnUnsaved(const SpaceGeneration& told, bool* is_changed);
  // Of the names for which `may_use`, without a lock.
  std::vector<std::string> Visible(MayUse may_use) const;
  void Save();

  const Parts parts_;
  Mutex save_mutex_;  // one save at a time, so that the last one has everything
  mutable Mutex mutex_;
  std::map<std::string, Tenant, std::less<>> tenants_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter learned_, refused_;
};

}  // namespace cairn
