// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts policies of spaces from and to messages. Pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "cairn/v1/store.pb.h"
#include "proto/convert.h"
#include "service/spaces.h"

namespace cairn {

// Errors: those of Spaces::PolicyOf().
inline absl::StatusOr<SpacePolicy> FromPolicy(const Spaces& spaces, const v1::SpacePolicy& policy) {
  return spaces.PolicyOf(policy.recipe(), policy.cold_recipe(), policy.ttl_seconds());
}

inline v1::SpacePolicy ToPolicy(const SpacePolicy& policy) {
  v1::SpacePolicy message;
  message.set_recipe(proto::ToRecipeName(policy.recipe));
  if (policy.cold_recipe.has_value()) {
    message.set_cold_recipe(proto::ToRecipeName(*policy.cold_recipe));
  }
  message.set_ttl_seconds(policy.ttl_s);
  return message;
}

}  // namespace cairn
