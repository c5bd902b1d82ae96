// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hints in the form in which a persistent tier stores them for the next process. They are one list,
// which is always written as a whole.
//
//    ┌────────────┬──────────────────────────────────────────────────────────────────────┐
//    │ u8 version │ records: fingerprint 32 | key 32 | u32 LE due | u8 priority          │ …
//    └────────────┴──────────────────────────────────────────────────────────────────────┘

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/block_key.h"

namespace cairn {

struct HintRecord {
  proto::Fingerprint space{};
  proto::BlockKey key{};
  uint32_t due_unix_s = 0;
  uint8_t priority = 0;  // 0: demoted at due_unix_s; else retained until then
  friend bool operator==(const HintRecord&, const HintRecord&) = default;
};

std::string SerializeHints(std::span<const HintRecord> hints);
// Errors: Unimplemented (another version), DataLoss (truncated, or an invalid priority).
absl::StatusOr<std::vector<HintRecord>> ParseHints(std::string_view bytes);

}  // namespace cairn
