// SPDX-License-Identifier: Apache-2.0
// Bytes of a drive as the list of hints that a tier keeps. A list that parses has no priority above
// the limit, and is written as it was read.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/check.h"
#include "service/limits.h"
#include "service/tier/hint_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto hints = cairn::ParseHints(bytes);
  if (!hints.ok()) {
    CAIRN_CHECK(absl::IsDataLoss(hints.status()) || absl::IsUnimplemented(hints.status()));
    return 0;
  }
  for (const cairn::HintRecord& hint : *hints) {
    CAIRN_CHECK(hint.priority <= cairn::limits::kRetainPriorityMax);
  }
  CAIRN_CHECK(cairn::SerializeHints(*hints) == bytes);
  return 0;
}
