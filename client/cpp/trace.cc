// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/trace.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/text.h"

namespace cairn {
namespace {

thread_local uint64_t current_trace = 0;

// VERSION-TRACE-PARENT-FLAGS; what a later version has behind follows a dash.
constexpr size_t kTraceAt = 3, kParentAt = 36, kFlagsAt = 53, kEnd = 55;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
  });
}

bool IsTraceparent(std::string_view text) {
  if (text.size() < kEnd) {
    return false;
  }
  const std::string_view version = text.substr(0, 2);
  const bool ends = text.size() == kEnd || (version != "00" && text[kEnd] == '-');
  return ends && version != "ff" && IsHex(version) && text[kTraceAt - 1] == '-' &&
         IsHex(text.substr(kTraceAt, 32)) && text[kParentAt - 1] == '-' &&
         IsHex(text.substr(kParentAt, 16)) && text[kFlagsAt - 1] == '-' &&
         IsHex(text.substr(kFlagsAt, 2));
}

}  // namespace

absl::StatusOr<uint64_t> ParseTraceparent(std::string_view traceparent) {
  uint64_t trace = 0;
  if (!IsTraceparent(traceparent) ||
      !absl::SimpleHexAtoi(ToAbsl(traceparent.substr(kTraceAt + 16, 16)), &trace) || trace == 0) {
    return absl::InvalidArgumentError(
        "traceparent: expected 00-TRACE-PARENT-FLAGS, of 32, 16 and 2 lower-case hexadecimal "
        "digits, the last 16 of the trace not all zero");
  }
  return trace;
}

uint64_t CurrentTrace() { return current_trace; }
void SetTrace(uint64_t trace) { current_trace = trace; }

}  // namespace cairn
