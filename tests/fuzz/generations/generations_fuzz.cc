// SPDX-License-Identifier: Apache-2.0
// Bytes of a member, or of a drive, as the list of generations of spaces. A list that parses is
// written as it was read, and no entry of it makes another entry lower.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/check.h"
#include "service/members/generations.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto list = cairn::ParseGenerations(bytes);
  if (!list.ok()) {
    CAIRN_CHECK(absl::IsInvalidArgument(list.status()));
    return 0;
  }
  CAIRN_CHECK(cairn::SerializeGenerations(*list) == bytes);
  cairn::Generations generations(
      {.drop = [](std::string_view, const cairn::proto::Fingerprint&) { return uint64_t{0}; },
       .save = [](const std::string& saved) { CAIRN_CHECK(cairn::ParseGenerations(saved).ok()); }});
  generations.Restore(bytes);
  for (const cairn::SpaceGeneration& one : *list) {
    CAIRN_CHECK(generations.Of(one.tenant, one.space) >= one.generation);
  }
  return 0;
}
