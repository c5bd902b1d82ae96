// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"
#include "client/cpp/events.h"
#include "proto/convert.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kCountMax = uint64_t{1} << 40;

constexpr Flag kEventsFlags[] = {
    kSpaceFlag,
    {"--count", "COUNT", "end after COUNT events [never]"},
};

void Print(const EventBatch& batch, bool is_json) {
  if (batch.is_reset && !is_json) {
    absl::PrintF("reset at %d\n", batch.position.next_sequence);
  }
  for (const BlockEvent& event : batch.events) {
    const std::string key = HexOf(proto::ToBytes(event.key));
    const std::string_view kind = event.is_stored ? "stored" : "removed";
    const std::string_view tier = TierName(static_cast<v1::Tier>(event.tier));
    if (is_json) {
      JsonWriter(JsonWriter::Layout::kOneLine)
          .BeginObject()
          .Field("event", kind)
          .Field("tier", tier)
          .Field("key", key)
          .Field("parent", event.parent == BlockKey{} ? "" : HexOf(proto::ToBytes(event.parent)))
          .Field("first_position", event.first_position)
          .Field("tokens", event.token_count)
          .EndObject()
          .Print();
    } else {
      absl::PrintF("%-7s %-4s %s\n", ToAbsl(kind), ToAbsl(tier), key);
    }
  }
  std::fflush(stdout);
}

absl::Status RunEvents(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t count,
                         arguments.GetNumber("--count", kCountMax, kCountMax));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  const auto watch = opened.space->Watch();
  for (uint64_t seen = 0; seen < count;) {  // ends when the user or the daemon ends it
    const absl::StatusOr<EventBatch> batch = watch->Next(timeout);
    if (absl::IsDeadlineExceeded(batch.status()) && !arguments.Has("--timeout")) {
      continue;
    }
    CAIRN_RETURN_IF_ERROR(batch.status());
    Print(*batch, arguments.is_json());
    seen += batch->events.size();
  }
  return absl::OkStatus();
}

}  // namespace

const Command kEvents{
    .name = "events",
    .operands = "",
    .summary = "Prints blocks that enter or leave tiers, until it is interrupted",
    .examples =
        "  cairnctl events --space default/qwen3-8b\n"
        "  cairnctl events --json --count 100\n",
    .details =
        "With --timeout it ends when no event came for that time. With --json each event is\n"
        "one line.\n",
    .flags = kEventsFlags,
    .operands_min = 0,
    .operands_max = 0,
    .run = RunEvents,
};

}  // namespace cairn::cli
