// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of a replay, as text and as JSON.
//
// Thread-safety: pure functions. Those that print write to stdout.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/replay/player.h"
#include "client/cli/replay/tally.h"
#include "client/cli/replay/trace.h"
#include "client/cpp/client.h"

namespace cairn::replay {

// What one daemon had of a replay.
struct DaemonFigures {
  std::string address;
  Tally tally{0};
  TallyWindow sum;                        // the sum over the tally's windows
  uint64_t get_bytes = 0, put_bytes = 0;  // on the wire
};

struct Report {
  std::string trace_name;  // as the user gave it
  uint64_t trace_ms = 0;   // from its first request to its last
  uint64_t distinct_blocks = 0;
  Ceiling ceiling;
  std::string recipe, tenant, space_name;
  uint64_t block_bytes = 0;  // size in source form
  PlayOptions options;
  Tally tally{0};   // of all daemons
  TallyWindow sum;  // the sum over the tally's windows
  absl::Duration elapsed;
  uint64_t get_bytes = 0, put_bytes = 0;  // on the wire
  std::vector<DaemonFigures> daemons;
  std::vector<TierFigures> tiers;  // of all daemons together, at the end; empty: unknown
  // Blocks that were evicted during the replay because the index was full, by tier. Unknown if the
  // daemon is on another host.
  std::map<std::string, uint64_t> evicted_for_index;
};

void PrintText(const Report& report);
void PrintJson(const Report& report);
// Returns the input from which cairn.pages.replay makes a page: the JSON, with the figures of each
// window of the trace's time.
std::string PageInputOf(const Report& report);

}  // namespace cairn::replay
