// SPDX-License-Identifier: Apache-2.0
#include "proto/traceparent.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cairn::proto {
namespace {

// VERSION-TRACE-PARENT-FLAGS; in a later version, more fields may follow a dash.
constexpr size_t kTraceAt = 3, kParentAt = 36, kFlagsAt = 53, kEnd = 55;

bool IsHex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
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

absl::StatusOr<Traceparent> ParseTraceparent(std::string_view text) {
  uint64_t trace = 0;
  if (!IsTraceparent(text) ||
      !absl::SimpleHexAtoi(ToAbsl(text.substr(kTraceAt + 16, 16)), &trace) || trace == 0) {
    return absl::InvalidArgumentError(
        "traceparent: expected 00-TRACE-PARENT-FLAGS, of 32, 16 and 2 lower-case hexadecimal "
        "digits, the last 16 of the trace not all zero");
  }
  Traceparent result;
  result.trace_ = trace;
  std::ranges::copy(text.substr(0, kEnd), result.text_.begin());
  std::ranges::fill_n(result.text_.begin(), 2, '0');  // writes version 00
  return result;
}

std::string TraceName(uint64_t trace) {
  return trace == 0 ? "none" : absl::StrCat(absl::Hex(trace, absl::kZeroPad16));
}

}  // namespace cairn::proto
