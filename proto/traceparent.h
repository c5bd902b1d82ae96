// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trace that a request belongs to, of its caller's own tracing: a traceparent of W3C Trace
// Context. Frames carry a part of it, and control calls all of it, as metadata of its name.
//
// Thread-safety: values and pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cairn::proto {

// Immutable. A default one is none.
class Traceparent {
 public:
  // The last 8 bytes of the trace id: what frames carry and logs name. 0: there is none.
  uint64_t trace() const { return trace_; }
  // As it was given, but for what a version after 00 may add. Empty: there is none.
  std::string_view text() const { return {text_.data(), trace_ == 0 ? 0 : text_.size()}; }
  bool operator==(const Traceparent&) const = default;

 private:
  friend absl::StatusOr<Traceparent> ParseTraceparent(std::string_view text);
  uint64_t trace_ = 0;
  std::array<char, 55> text_{};
};

// InvalidArgument: not a traceparent (section 3.2.2), or one whose trace() were 0.
absl::StatusOr<Traceparent> ParseTraceparent(std::string_view text);

// As logs name it: 16 hexadecimal digits, or "none".
std::string TraceName(uint64_t trace);

}  // namespace cairn::proto
