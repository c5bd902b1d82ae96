// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the blocks of one space are coded with: its policy, the side objects of its groups, and what
// is known of the queries that read it. The bytes are in SideObjects and QuerySquares, which hold
// those of all spaces under one budget each; they let go of this space's when this is destroyed.
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

// What is done with the blocks of a space; not part of its identity.
struct SpacePolicy {
  // Of a recipe that needs a side object this is the name alone.
  codecs::Recipe recipe;
  // Of their copies in the lasting tier. nullopt: they have the bytes of the image.
  std::optional<codecs::Recipe> cold_recipe = std::nullopt;
  // Since a block was first published: then it is gone. 0: never.
  uint32_t ttl_s = 0;
};

// When a block that is published now is gone; 0: never.
uint32_t ExpiryAt(const SpacePolicy& policy, absl::Time now);

class SpaceCoding {
 public:
  // `tenant` and `groups` are the space's, and outlive this, as do the two stores.
  SpaceCoding(uint64_t space_id, std::string_view tenant,
              std::span<const codecs::GroupShape> groups, const SpacePolicy& policy,
              SideObjects& side_objects, QuerySquares& query_squares);
  ~SpaceCoding();
  SpaceCoding(const SpaceCoding&) = delete;
  SpaceCoding& operator=(const SpaceCoding&) = delete;

  // --- The policy

  // The one in force for puts from now on.
  SpacePolicy policy() const;
  codecs::Recipe recipe() const { return policy().recipe; }
  // Returns true if an image of that recipe is of the space's: both have the same name.
  bool IsInForce(const codecs::Recipe& recipe) const;
  // InvalidArgument: an installed profile lacks the rate; the message lists the rates it has.
  absl::Status SetPolicy(const SpacePolicy& policy);

  // --- Side objects

  // Makes bytes of that kind current for the group: later images are coded with them.
  // InvalidArgument names the field: no such group, bytes that are none of the kind, of another
  // geometry than the group's, or a profile without the rate of the space's recipe.
  // ResourceExhausted. AlreadyExists: it was mined, and one that was installed is current.
  struct Installed {
    codecs::Digest id{};
    bool is_new = false;
  };
  absl::StatusOr<Installed> Install(uint32_t group, proto::SideObjectKind kind,
                                    std::span<const std::byte> bytes,
                                    SideObjectOrigin origin = SideObjectOrigin::kInstalled);
  // Has bytes of that kind that images of the group name, without making them current.
  // InvalidArgument, ResourceExhausted: as Install(), but that any rate does.
  absl::StatusOr<SideObjectRef> Keep(uint32_t group, proto::SideObjectKind kind,
                                     std::span<const std::byte> bytes);
  // Returns true if the recipe needs a profile, and the group has none, or one that was mined and
  // lacks the recipe's rate.
  bool WantsProfile(uint32_t group) const;
  // The group's current profile if it was mined; else empty.
  SideObjectRef MinedProfile(uint32_t group) const;
  // Makes the profile of that id, if it is current and was mined, current no more. False if not.
  bool Withdraw(uint32_t group, const codecs::Digest& id);
  // Makes *spec, of a group of the space, one of the space's recipe. Where the recipe has a use for
  // a profile or a bank it is the group's current one, which is returned: *spec is coded with it,
  // and its image has to keep it. `exact` where the group lacks what the recipe needs.
  SideObjectRef Settle(codecs::ImageSpec* spec) const;
  // Empty: the space has none of that id.
  SideObjectRef Find(const codecs::Digest& id) const;
  std::vector<SideObjects::Listed> List() const;

  // --- For those who write it down

  // Of policy and current side objects as they are now. Another with each change of them, also
  // among the spaces of this process.
  uint64_t version() const;
  // Fills in version, policy and current. Returns what current names, in its order.
  std::vector<SideObjectRef> Describe(SpaceRecord* record) const;

  // --- Queries

  // As QuerySquares, for a group of this space.
  bool AddQuerySquares(uint32_t group, const codecs::Slice& slice, std::span<const float> means,
                       uint32_t tokens);
  QuerySquares::Snapshot query_squares(uint32_t group) const;
  uint64_t query_tokens(uint32_t group) const;
  // What is known of them is gone, as the space's blocks are.
  void ForgetQuerySquares();

 private:
  SideObjectRef Current(uint32_t group, proto::SideObjectKind kind) const;
  // What Install() and Keep() refuse of bytes alone.
  absl::StatusOr<std::unique_ptr<SideObject>> Parse(uint32_t group, proto::SideObjectKind kind,
                                                    std::span<const std::byte> bytes) const;

  const uint64_t space_id_;
  const std::string_view tenant_;
  const std::span<const codecs::GroupShape> groups_;
  SideObjects& side_objects_;
  QuerySquares& query_squares_;
  mutable Mutex changes_;  // of the policy and of what is current; held over each
  uint64_t version_ ABSL_GUARDED_BY(changes_);
  mutable Mutex mutex_;
  SpacePolicy policy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
