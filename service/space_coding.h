// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the blocks of one space are encoded: the space's policy, the side objects of its groups, and
// statistics of the queries that read its blocks. The bytes of side objects and statistics are
// stored in SideObjects and QuerySquares, each with one budget for all spaces. When a space is
// destroyed, they free its bytes.
//
// Thread-safety: Thread-safe. Locks: changes < recipe < side objects.

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

// The policy for the blocks of a space. It is not part of the space's identity.
struct SpacePolicy {
  // The recipe, without the parameters that come from a side object.
  codecs::Recipe recipe;
  // The recipe of copies in the SSD tier. nullopt: these copies have the same bytes as the image.
  std::optional<codecs::Recipe> cold_recipe = std::nullopt;
  // The time from the first publication of a block to its expiry. 0: blocks do not expire.
  uint32_t ttl_s = 0;
};

// Returns when a block expires that is published now. 0: never.
uint32_t ExpiryAt(const SpacePolicy& policy, absl::Time now);

class SpaceCoding {
 public:
  // `tenant` and `groups` belong to the space. All references must outlive this object.
  SpaceCoding(uint64_t space_id, std::string_view tenant,
              std::span<const codecs::GroupShape> groups, const SpacePolicy& policy,
              SideObjects& side_objects, QuerySquares& query_squares);
  ~SpaceCoding();
  SpaceCoding(const SpaceCoding&) = delete;
  SpaceCoding& operator=(const SpaceCoding&) = delete;

  // --- The policy

  // The policy for new puts.
  SpacePolicy policy() const;
  codecs::Recipe recipe() const { return policy().recipe; }
  // Returns true if an image of that recipe matches the space's policy, that is, if the names of
  // the recipes are equal.
  bool IsInForce(const codecs::Recipe& recipe) const;
  // Errors: InvalidArgument if an installed profile lacks the recipe's rate. The message lists the
  // profile's rates.
  absl::Status SetPolicy(const SpacePolicy& policy);

  // --- Side objects

  // Makes the bytes the group's current side object of that kind. New images are encoded with it.
  // Errors:
  //   InvalidArgument    there is no such group, the bytes are not of that kind or have another
  //                      geometry than the group, or a profile lacks the rate of the space's
  //                      recipe. The message names the field
  //   ResourceExhausted  there is no room for the bytes
  //   AlreadyExists      `origin` is kMined, and an installed side object is current
  struct Installed {
    codecs::Digest id{};
    bool is_new = false;
  };
  absl::StatusOr<Installed> Install(uint32_t group, proto::SideObjectKind kind,
                                    std::span<const std::byte> bytes,
                                    SideObjectOrigin origin = SideObjectOrigin::kInstalled);
  // Stores a side object that images of the group name, without making it current. Errors: those of
  // Install(), but a profile may have any rates.
  absl::StatusOr<SideObjectRef> Keep(uint32_t group, proto::SideObjectKind kind,
                                     std::span<const std::byte> bytes);
  // Returns true if the recipe needs a profile, and the group has none, or has a mined one without
  // the recipe's rate.
  bool WantsProfile(uint32_t group) const;
  // Returns an empty reference if the group has none.
  SideObjectRef CurrentProfile(uint32_t group) const {
    return Current(group, proto::SideObjectKind::kProfile);
  }
  // Returns the group's current profile if it was mined. Otherwise returns an empty reference.
  SideObjectRef MinedProfile(uint32_t group) const;
  // Stops the use of a mined profile for new puts. Returns false if the profile with that id is not
  // current, or was not mined.
  bool Withdraw(uint32_t group, const codecs::Digest& id);
  // Sets the recipe of *spec to the space's recipe. If that recipe uses a profile or a bank, adds
  // the group's current one and returns a reference to it, which the image must keep. If the group
  // lacks a side object that the recipe needs, sets the recipe `exact` instead.
  SideObjectRef ChooseRecipe(codecs::ImageSpec* spec) const;
  // Returns an empty reference if the space has no side object with that id.
  SideObjectRef Find(const codecs::Digest& id) const;
  std::vector<SideObjects::Listed> List() const;

  // --- For writing records of the space

  // The version of the policy and of the current side objects. Every change makes a new version
  // number, which is unique among all spaces of this process.
  uint64_t version() const;
  // Sets version, policy and current side objects in *record. Returns the side objects in the order
  // of record->current.
  std::vector<SideObjectRef> Describe(SpaceRecord* record) const;

  // --- Queries

  // Does the same as QuerySquares::Add() for a group of this space.
  bool AddQuerySquares(uint32_t group, const codecs::Slice& slice, std::span<const float> means,
                       uint32_t tokens);
  QuerySquares::Snapshot query_squares(uint32_t group) const;
  uint64_t query_tokens(uint32_t group) const;
  // Drops the statistics. Must be called when the space's blocks are deleted.
  void ForgetQuerySquares();

 private:
  SideObjectRef Current(uint32_t group, proto::SideObjectKind kind) const;
  // Parses the bytes, and makes those checks of Install() and Keep() that depend only on the bytes
  // and the group.
  absl::StatusOr<std::unique_ptr<SideObject>> Parse(uint32_t group, proto::SideObjectKind kind,
                                                    std::span<const std::byte> bytes) const;

  const uint64_t space_id_;
  const std::string_view tenant_;
  const std::span<const codecs::GroupShape> groups_;
  SideObjects& side_objects_;
  QuerySquares& query_squares_;
  mutable Mutex changes_;  // held during each change of policy or current side objects
  uint64_t version_ ABSL_GUARDED_BY(changes_);
  mutable Mutex mutex_;
  SpacePolicy policy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
