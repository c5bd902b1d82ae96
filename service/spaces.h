// SPDX-License-Identifier: Apache-2.0
#pragma once
// The spaces of all tenants, by identity and by id.
//
// A space exists while something refers to it: a session that opened it, a call that uses it, or
// its blocks. A space without references is idle. It is retired after limits::kSpaceIdleMs, or
// earlier if another space needs its room. Its id is then invalid. Ids are random and never used
// again, because clients and frames carry them.
//
// Thread-safety: Thread-safe.
// Locks:         spaces < index.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/handle.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "service/index/match.h"
#include "service/index/query_squares.h"
#include "service/index/side_objects.h"
#include "service/index/tenant_shares.h"
#include "service/limits.h"
#include "service/space_coding.h"
#include "service/tier/space_record.h"

namespace cairn {

// One space. Immutable, except for the encoding of its blocks. Thread-safety: Thread-safe.
class SpaceEntry {
 public:
  uint64_t id() const { return id_; }  // never 0
  const proto::Fingerprint& fingerprint() const { return fingerprint_; }
  const proto::SpaceIdentity& identity() const { return identity_; }
  std::string_view tenant() const { return identity_.tenant; }
  uint32_t tokens_per_block() const { return identity_.tokens_per_block; }
  std::span<const codecs::GroupShape> groups() const { return groups_; }
  SpaceCoding& coding() { return coding_; }
  const SpaceCoding& coding() const { return coding_; }
  codecs::Recipe recipe() const { return coding_.recipe(); }
  // All groups with all layers and heads. A block that has them is complete.
  std::span<const WantedGroup> whole() const { return whole_; }

  // A space's record in a tier, and the side objects that the record names.
  struct Snapshot {
    SpaceRecord record;
    std::vector<SideObjectRef> side_objects;  // those of record.current, in the same order
  };
  Snapshot Describe() const;

  // The part of one group that a reader wants. In its ranges, a count of 0 means all from `first`
  // on.
  struct Ask {
    uint32_t group = 0;
    uint32_t layer_first = 0, layer_count = 0, head_first = 0, head_count = 0;
  };
  // Converts a request's slices for Match(). A group for which the request has no slice is wanted
  // completely, unless it is skipped. Errors: InvalidArgument, naming the field and the limit.
  absl::StatusOr<std::vector<WantedGroup>> Want(std::span<const Ask> asks,
                                                std::span<const uint32_t> groups_skipped) const;
  // Errors: InvalidArgument unless the group exists and contains the slice.
  absl::Status CheckSlice(uint16_t group, const codecs::Slice& slice) const;

 private:
  friend class Spaces;
  friend class SpaceRef;
  SpaceEntry(uint64_t id, const proto::Fingerprint& fingerprint,
             const proto::SpaceIdentity& identity, std::vector<codecs::GroupShape> groups,
             std::vector<WantedGroup> whole, const SpacePolicy& policy, SideObjects& side_objects,
             QuerySquares& query_squares);

  const uint64_t id_;
  const proto::Fingerprint fingerprint_;
  const proto::SpaceIdentity identity_;
  const std::vector<codecs::GroupShape> groups_;
  const std::vector<WantedGroup> whole_;
  SpaceCoding coding_;
  // Guarded by the lock of Spaces.
  uint64_t references_ = 0;
  absl::Time idle_since_ = absl::InfinitePast();  // meaningful without references; may be too early
};

class Spaces;

// A counted reference that keeps the space alive. Move-only; empty when default-constructed or
// moved from. Thread-safety: Thread-compatible. The Spaces must outlive it.
class SpaceRef {
 public:
  SpaceRef() = default;
  void Reset() { handle_.Reset(); }
  // Returns another reference to the same space. REQUIRES, for this function and those below: not
  // empty.
  SpaceRef Share() const;

  bool is_empty() const { return handle_.is_empty(); }
  SpaceEntry& operator*() const { return *handle_.value(); }
  SpaceEntry* operator->() const { return handle_.value(); }

 private:
  friend class Spaces;
  SpaceRef(Spaces& owner, SpaceEntry* entry) : handle_(owner, entry) {}
  static void Release(Spaces& owner, SpaceEntry* entry);
  Handle<Spaces, SpaceEntry*, &SpaceRef::Release> handle_;
};

class Spaces {
 public:
  struct Parts {  // borrowed
    SideObjects& side_objects;
    QuerySquares& query_squares;
    const Clock& clock;
    // Returns true if the index has blocks of the space. Called with the lock held: spaces < index.
    std::function<bool(uint64_t space_id)> has_blocks;
    // `made` is called when a space was made, `gone` when one was retired, both with the lock held.
    std::function<void(uint64_t space_id, std::string_view tenant)> made = [](uint64_t,
                                                                              std::string_view) {};
    std::function<void(uint64_t space_id)> gone = [](uint64_t) {};
    // Returns the policy that a space has in the cluster, whatever it is opened with. Called after
    // a space was made, without a lock.
    std::function<std::optional<SpacePolicy>(const SpaceEntry& space)> known_policy =
        [](const SpaceEntry&) { return std::nullopt; };
  };
  // `default_recipe` is for spaces that are opened without a recipe.
  Spaces(const codecs::Recipe& default_recipe, Parts parts);
  ~Spaces();  // REQUIRES: no SpaceRef exists

  struct Opened {
    SpaceRef space;
    bool is_created = false;
  };
  // Opens a space. Makes the space if it does not exist. An existing space keeps its policy.
  // Errors: PermissionDenied (identity.tenant differs from `tenant`), InvalidArgument (the identity
  // is invalid), ResourceExhausted (the tenant has too many spaces, and no space is idle).
  absl::StatusOr<Opened> Open(const proto::SpaceIdentity& identity, const SpacePolicy& policy,
                              std::string_view tenant);
  // Like Open() above, with a policy that has only a recipe. Errors: also InvalidArgument for the
  // recipe.
  absl::StatusOr<Opened> Open(const proto::SpaceIdentity& identity, std::string_view recipe,
                              std::string_view tenant);

  // Makes a space from a tier's record, with a new id and without its side objects. An existing
  // space stays unchanged. Errors: InvalidArgument (the record describes no valid space),
  // ResourceExhausted as for Open().
  absl::StatusOr<Opened> Restore(const SpaceRecord& record);

  // Errors: NotFound (there is no such space, it was retired, or it belongs to another tenant; so a
  // tenant does not learn which ids others have). Allocates only for errors.
  absl::StatusOr<SpaceRef> Find(uint64_t space_id, std::string_view tenant);
  // Like Find() above, for operators, who may use any tenant's space.
  absl::StatusOr<SpaceRef> Find(uint64_t space_id);
  // For the daemon itself.
  absl::StatusOr<SpaceRef> Find(const proto::Fingerprint& fingerprint);
  // Returns all spaces in order of id.
  std::vector<SpaceRef> List();
  // Returns the recipe with that name, or the default recipe for an empty name. Errors:
  // InvalidArgument; the text lists the recipes.
  absl::StatusOr<codecs::Recipe> RecipeOf(std::string_view name) const;
  // Returns a policy from the names of recipes. An empty `cold_recipe` means none. Errors:
  // InvalidArgument as for RecipeOf(), or if there is no exact conversion from `recipe` to
  // `cold_recipe`, or if `recipe` is lossless and `cold_recipe` is not.
  absl::StatusOr<SpacePolicy> PolicyOf(std::string_view recipe, std::string_view cold_recipe,
                                       uint32_t ttl_s) const;

  // Retires the spaces that have been idle for long enough. Upkeep calls it about once a second.
  void RetireIdle();

  void Report(MetricSink& sink) const;

 private:
  friend class SpaceRef;
  using Retired = std::vector<std::unique_ptr<SpaceEntry>>;

  absl::StatusOr<Opened> Make(const proto::SpaceIdentity& identity, const SpacePolicy& policy);
  absl::StatusOr<Opened> MakeWith(const proto::SpaceIdentity& identity, const SpacePolicy& policy);
  void Ref(SpaceEntry* entry);
  void Unref(SpaceEntry* entry);
  SpaceRef RefLocked(SpaceEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle(const SpaceEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the space that has been idle longest, of the tenant or, if the name is empty, of all
  // tenants. Returns null if no space is idle.
  SpaceEntry* OldestIdle(std::string_view tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the space to *retired. The caller destroys it without locks held.
  void Retire(SpaceEntry* entry, Retired* retired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Retires idle spaces until the tenant may have one more.
  absl::Status MakeRoom(std::string_view tenant, Retired* retired)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const codecs::Recipe default_recipe_;
  const Parts parts_;
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<SpaceEntry>> by_id_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<proto::Fingerprint, SpaceEntry*> by_fingerprint_ ABSL_GUARDED_BY(mutex_);
  TenantShares shares_ ABSL_GUARDED_BY(mutex_){"spaces", limits::kSpacesMax};
  Counter retired_;
};

}  // namespace cairn
