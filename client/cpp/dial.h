// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens a data connection with the transport that the address names. Private to client/cpp.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/cpp/options.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn {

// The seq of the first frame of every connection. Each later request increments it.
inline constexpr uint64_t kHelloSeq = 1;

// Returns the milliseconds left until `deadline`, as a frame carries them: 1 to kDeadlineMsMax.
inline uint32_t MillisecondsLeft(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow());
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 1, proto::kDeadlineMsMax));
}

absl::StatusOr<std::unique_ptr<transport::Connection>> DialTransport(const DialRequest& request);

}  // namespace cairn
