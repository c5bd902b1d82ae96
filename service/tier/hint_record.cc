// SPDX-License-Identifier: Apache-2.0
#include "service/tier/hint_record.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kKeyAt = 32, kDueAt = 64, kPriorityAt = 68, kRecordBytes = 69;

}  // namespace

std::string SerializeHints(std::span<const HintRecord> hints) {
  std::string bytes(1 + hints.size() * kRecordBytes, '\0');
  bytes[0] = static_cast<char>(kVersion);
  char* at = bytes.data() + 1;
  for (const HintRecord& hint : hints) {
    std::memcpy(at, hint.space.data(), hint.space.size());
    std::memcpy(at + kKeyAt, hint.key.data(), hint.key.size());
    for (size_t i = 0; i < sizeof(hint.due_unix_s); ++i) {
      at[kDueAt + i] = static_cast<char>(hint.due_unix_s >> (8 * i) & 0xFF);
    }
    at[kPriorityAt] = static_cast<char>(hint.priority);
    at += kRecordBytes;
  }
  return bytes;
}

absl::StatusOr<std::vector<HintRecord>> ParseHints(std::string_view bytes) {
  if (bytes.empty() || (bytes.size() - 1) % kRecordBytes != 0) {
    return absl::DataLossError(absl::StrCat("hints: ", bytes.size(), " bytes are no list"));
  }
  if (static_cast<uint8_t>(bytes[0]) != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("hints: version ", static_cast<uint8_t>(bytes[0])));
  }
  std::vector<HintRecord> hints((bytes.size() - 1) / kRecordBytes);
  const char* at = bytes.data() + 1;
  for (HintRecord& hint : hints) {
    std::memcpy(hint.space.data(), at, hint.space.size());
    std::memcpy(hint.key.data(), at + kKeyAt, hint.key.size());
    for (size_t i = 0; i < sizeof(hint.due_unix_s); ++i) {
      hint.due_unix_s |= uint32_t{static_cast<uint8_t>(at[kDueAt + i])} << (8 * i);
    }
    hint.priority = static_cast<uint8_t>(at[kPriorityAt]);
    if (hint.priority > limits::kRetainPriorityMax) {
      return absl::DataLossError(absl::StrCat("hints: priority ", hint.priority));
    }
    at += kRecordBytes;
  }
  return hints;
}

}  // namespace cairn
