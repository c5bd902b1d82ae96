// SPDX-License-Identifier: Apache-2.0
#pragma once
// ucx_perftest, the yardstick of the UCX transport.

#include <cstddef>
#include <optional>

namespace cairn::bench {

// Bytes per second of `ucx_perftest -t ucp_am_bw` over TCP on loopback: `messages` of `bytes`, at
// most `depth` of them in flight. nullopt when the program is not there or fails.
std::optional<double> RunPerftest(size_t bytes, size_t messages, int depth);

}  // namespace cairn::bench
