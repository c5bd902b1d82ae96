// SPDX-License-Identifier: Apache-2.0
#pragma once
// A traceparent of W3C Trace Context. It names the trace to which a request belongs in the caller's
// own tracing system. Frames carry only a part of it. Control calls carry all of it, as metadata
// "traceparent".
//
// Thread-safety: values and pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cairn::proto {

// Immutable. A default-constructed Traceparent means no trace.
class Traceparent {
 public:
  // The last 8 bytes of the trace id, which frames carry and logs name. 0: no trace.
  uint64_t trace() const { return trace_; }
  // The text as it was given. Parts that only versions after 00 have are left out. Empty: no trace.
  std::string_view text() const { return {text_.data(), trace_ == 0 ? 0 : text_.size()}; }
  bool operator==(const Traceparent&) const = default;

 private:
  friend absl::StatusOr<Traceparent> ParseTraceparent(std::string_view text);
  uint64_t trace_ = 0;
  std::array<char, 55> text_{};
};

// Errors: InvalidArgument if the text is not a traceparent (section 3.2.2 of W3C Trace Context), or
// if trace() would be 0.
absl::StatusOr<Traceparent> ParseTraceparent(std::string_view text);

// Formats the trace id for logs: 16 hexadecimal digits, or "none".
std::string TraceName(uint64_t trace);

}  // namespace cairn::proto
