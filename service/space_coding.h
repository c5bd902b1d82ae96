// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the blocks of one space are encoded: its policy, the side objects of its groups, and
// statistics of the queries that read it. SideObjects and QuerySquares store the bytes, each
// with one budget for all spaces. They release the bytes of this space when it is destroyed.
//
// Thread-safety: Thread-safe.
// Locks:         changes < recipe < side objects.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "service/index/query_squares.h"
#include "service/index/side_objects.h"
#include "service/tier/space_record.h"

namespace cairn {

// The policy for the blocks of a space; not part of its identity.
struct SpacePolicy {
  // For a recipe that needs a side object: without the side object's parameters.
  codecs::Recipe recipe;
  // The recipe of copies in the SSD tier; nullopt: copies have the bytes of the image.
  std::optional<codecs::Recipe> cold_recipe = std::nullopt;
  // Blocks expire this long after they were first published. 0: never.
  uint32_t ttl_s = 0;
};

// Returns when a block expires that is published now; 0: never.
uint32_t ExpiryAt(const SpacePolicy& policy, absl::Time now);

class SpaceCoding {
 public:
  // `tenant` and `groups` belong to the space. They, `side_objects` and `query_squares` must
  // outlive this object.
  SpaceCoding(uint64_t space_id, std::string_view tenant,
              std::span<const codecs::GroupShape> groups, const SpacePolicy& policy,
              SideObjects& side_objects, QuerySquares& query_squares);
  ~SpaceCoding();
  SpaceCoding(const SpaceCoding&) = delete;
  SpaceCoding& operator=(const SpaceCoding&) = delete;

  // --- The policy

  // The policy for puts from now on.
  SpacePolicy policy() const;
  codecs::Recipe recipe() const { return policy().recipe; }
  // Returns true if an image of that recipe matches the space's recipe: both have the same name.
  bool IsInForce(const codecs::Recipe& recipe) const;
  // Errors: InvalidArgument if an installed profile lacks the rate; the message lists its rates.
  absl::Status SetPolicy(const SpacePolicy& policy);

  // --- Side objects

  // Makes bytes of that kind the group's current side object: later images are encoded with it.
  // Errors: InvalidArgument (names the field: no such group, bytes not of the kind, another
  // geometry than the group's, or a profile without the rate of the space's recipe),
  // ResourceExhausted, AlreadyExists (it was mined, and an installed one is current).
  struct Installed {
    codecs::Digest id{};
    bool is_new = false;
  };
  absl::StatusOr<Installed> Install(uint32_t group, proto::SideObjectKind kind,
                                    std::span<const std::byte> bytes,
                                    SideObjectOrigin origin = SideObjectOrigin::kInstalled);
  // Stores bytes of that kind that images of the group name, without making them current. Errors:
  // as for Install(), but any rate is accepted.
  absl::StatusOr<SideObjectRef> Keep(uint32_t group, proto::SideObjectKind kind,
                                     std::span<const std::byte> bytes);
  // Returns true if the recipe needs a profile, and the group has none or a mined one without the
  // recipe's rate.
  bool WantsProfile(uint32_t group) const;
  // Returns the group's current profile if it was mined; else empty.
  SideObjectRef MinedProfile(uint32_t group) const;
  // Ends the use of a mined profile for later puts. Returns false if the profile of that id is not
  // current, or was not mined.
  bool Withdraw(uint32_t group, const codecs::Digest& id);
  // Sets the recipe of *spec to the space's. If the recipe uses a profile or a bank, sets the
  // group's current one and returns it; the image must hold it. Sets `exact` if the group lacks a
  // side object that the recipe needs.
  SideObjectRef ChooseRecipe(codecs::ImageSpec* spec) const;
  // Returns empty if the space has no side object of that id.
  SideObjectRef Find(const codecs::Digest& id) const;
  std::vector<SideObjects::Listed> List() const;

  // --- For writing records

  // The version of policy and current side objects. Every change gives a new version, unique among
  // the spaces of this process.
  uint64_t version() const;
  // Fills in version, policy and current side objects. Returns the side objects in the order of
  // `current`.
  std::vector<SideObjectRef> Describe(SpaceRecord* record) const;

  // --- Queries

  // Like QuerySquares, for a group of this space.
  bool AddQuerySquares(uint32_t group, const codecs::Slice& slice, std::span<const float> means,
                       uint32_t tokens);
  QuerySquares::Snapshot query_squares(uint32_t group) const;
  uint64_t query_tokens(uint32_t group) const;
  // Drops the statistics, when the space's blocks are deleted.
  void ForgetQuerySquares();

 private:
  SideObjectRef Current(uint32_t group, proto::SideObjectKind kind) const;
  // The checks of Install() and Keep() that need only the bytes.
  absl::StatusOr<std::unique_ptr<SideObject>> Parse(uint32_t group, proto::SideObjectKind kind,
                                                    std::span<const std::byte> bytes) const;

  const uint64_t space_id_;
  const std::string_view tenant_;
  const std::span<const codecs::GroupShape> groups_;
  SideObjects& side_objects_;
  QuerySquares& query_squares_;
  mutable Mutex changes_;  // of policy and current side objects; held during each
  uint64_t version_ ABSL_GUARDED_BY(changes_);
  mutable Mutex mutex_;
  SpacePolicy policy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
