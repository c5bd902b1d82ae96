// SPDX-License-Identifier: Apache-2.0
// Bytes of a member, or of a drive, as the list of policies of spaces. A list that parses is
// written as it was read, and no entry of it replaces a newer one.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/check.h"
#include "service/members/space_policies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto list = cairn::ParsePolicies(bytes);
  if (!list.ok()) {
    CAIRN_CHECK(absl::IsInvalidArgument(list.status()));
    return 0;
  }
  CAIRN_CHECK(cairn::SerializePolicies(*list) == bytes);
  cairn::SpacePolicies policies(
      {.use = [](const cairn::ToldPolicy&) { return absl::OkStatus(); },
       .save = [](const std::string& saved) { CAIRN_CHECK(cairn::ParsePolicies(saved).ok()); }});
  policies.Restore(bytes);
  for (const cairn::ToldPolicy& one : *list) {
    const std::optional<cairn::ToldPolicy> kept = policies.Of(one.tenant, one.space);
    CAIRN_CHECK(kept.has_value() && kept->epoch >= one.epoch);
  }
  return 0;
}
