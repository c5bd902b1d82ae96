// SPDX-License-Identifier: Apache-2.0
#pragma once
// The spaces that clients have named. A space is made on first use and lives as long as the daemon;
// its blocks come and go, and so a SpaceEntry pointer stays good for ever.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "service/index/query_squares.h"
#include "service/index/side_objects.h"
#include "service/index/wanted.h"

namespace cairn {

// Immutable but for its recipe. Thread-safety: Thread-safe.
class SpaceEntry {
 public:
  uint64_t id() const { return id_; }
  const proto::Fingerprint& fingerprint() const { return fingerprint_; }
  const proto::SpaceIdentity& identity() const { return identity_; }
  std::string_view tenant() const { return identity_.tenant; }
  uint32_t tokens_per_block() const { return identity_.tokens_per_block; }
  std::span<const codecs::GroupShape> groups() const { return groups_; }
  // The recipe in force for puts from now on; of one that needs a side object, without what that
  // says.
  codecs::Recipe recipe() const;
  // An image of that recipe is of the space's: the same name.
  bool IsInForce(const codecs::Recipe& recipe) const;
  // Every group whole: what makes a block complete.
  std::span<const WantedGroup> whole() const { return whole_; }

  // What a reader asks of one group; counts of 0 mean all from first on.
  struct Ask {
    uint32_t group = 0;
    uint32_t layer_first = 0, layer_count = 0, head_first = 0, head_count = 0;
  };
  // Turns a request's slices into what Match() takes: groups not named are wanted whole, but for
  // those skipped. InvalidArgument names the field and the limit.
  absl::StatusOr<std::vector<WantedGroup>> Want(std::span<const Ask> asks,
                                                std::span<const uint32_t> groups_skipped) const;
  // InvalidArgument unless the group exists and the slice lies within it.
  absl::Status CheckSlice(uint16_t group, const codecs::Slice& slice) const;

 private:
  friend class Spaces;
  uint64_t id_ = 0;
  proto::Fingerprint fingerprint_{};
  proto::SpaceIdentity identity_;
  std::vector<codecs::GroupShape> groups_;
  std::vector<WantedGroup> whole_;
  mutable Mutex mutex_;
  codecs::Recipe recipe_ ABSL_GUARDED_BY(mutex_);
};

class Spaces {
 public:
  // `default_recipe` is for spaces that name none.
  explicit Spaces(const codecs::Recipe& default_recipe);

  struct Opened {
    const SpaceEntry* space = nullptr;
    bool is_created = false;
  };
  // PermissionDenied: identity.tenant is another tenant. InvalidArgument: identity or recipe.
  // ResourceExhausted: too many spaces. An existing space keeps its recipe.
  absl::StatusOr<Opened> Open(const proto::SpaceIdentity& identity, std::string_view recipe,
                              std::string_view tenant);

  // NotFound: no such space. PermissionDenied: it is another tenant's. Does not allocate but for
  // errors.
  absl::StatusOr<const SpaceEntry*> Find(uint64_t space_id, std::string_view tenant) const;
  // For the operator: any tenant's.
  absl::StatusOr<const SpaceEntry*> Find(uint64_t space_id) const;
  // In order of id.
  std::vector<const SpaceEntry*> List() const;
  // NotFound, InvalidArgument (lists the recipes there are, or the rates of the profile that the
  // space has).
  absl::Status SetRecipe(uint64_t space_id, std::string_view recipe);

  // --- Side objects
  // --------------------------------------------------------------------------------

  // Makes bytes of that kind current for the group: what later images are coded with.
  // InvalidArgument names the field: no such group, bytes that are none of the kind, of another
  // geometry than the group's, or a profile without the rate of the space's recipe.
  // ResourceExhausted. AlreadyExists: it was mined, and one that was installed is current.
  struct Installed {
    codecs::Digest id{};
    bool is_new = false;
  };
  absl::StatusOr<Installed> Install(const SpaceEntry& space, uint32_t group,
                                    proto::SideObjectKind kind, std::span<const std::byte> bytes,
                                    SideObjectOrigin origin = SideObjectOrigin::kInstalled);
  // The space's recipe needs a profile, and the group has none, or one that was mined and lacks the
  // recipe's rate.
  bool WantsProfile(const SpaceEntry& space, uint32_t group);
  // Makes *spec, of a group of the space, one of the space's recipe. Where that has a use for a
  // profile or a bank it is the group's current one, which is returned: *spec is coded with it, and
  // its image has to keep it. Where it needs one that the group has not, or not of that rate:
  // `exact`.
  SideObjectRef Settle(const SpaceEntry& space, codecs::ImageSpec* spec);
  SideObjects& side_objects() { return side_objects_; }
  QuerySquares& query_squares() { return query_squares_; }

  void Report(MetricSink& sink) const;

 private:
  // Of a name, or the default of none.
  absl::StatusOr<codecs::Recipe> RecipeOf(std::string_view name) const;

  const codecs::Recipe default_recipe_;
  SideObjects side_objects_;
  QuerySquares query_squares_;
  mutable Mutex mutex_;
  std::deque<SpaceEntry> spaces_ ABSL_GUARDED_BY(mutex_);  // id - 1 is the index
  absl::flat_hash_map<proto::Fingerprint, SpaceEntry*> by_fingerprint_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, size_t> counts_by_tenant_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
