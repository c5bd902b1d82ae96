// SPDX-License-Identifier: Apache-2.0
#include "service/front/doors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn {

void Doors::Add(std::string_view name, Keep keep) {
  doors_.push_back(std::make_unique<Door>());
  doors_.back()->name = name;
  doors_.back()->keep = std::move(keep);
}

void Doors::Look() {
  for (const auto& door : doors_) {
    const absl::StatusOr<bool> kept = door->keep();
    const absl::Status now =
        kept.ok()
            ? absl::OkStatus()
            : absl::UnavailableError(absl::StrCat(
                  ToAbsl(door->name), ": the socket file is gone: ", kept.status().message()));
    absl::Status before;
    {
      const MutexLock lock(mutex_);
      before = std::exchange(door->state, now);
    }
    if (kept.ok() && *kept) {
      door->made_again.Add();
      LogWarn("daemon", "socket file was missing and has been made again", {{"door", door->name}});
    }
    if (!now.ok() && now != before) {
      LogError("daemon", "socket file was replaced by another process: clients cannot connect",
               {{"door", door->name}, {"error", kept.status()}});
    }
  }
}

absl::Status Doors::state() const {
  const MutexLock lock(mutex_);
  for (const auto& door : doors_) {
    CAIRN_RETURN_IF_ERROR(door->state);
  }
  return absl::OkStatus();
}

void Doors::Report(MetricSink& sink) const {
  const MutexLock lock(mutex_);
  for (const auto& door : doors_) {
    const MetricLabel label{"door", door->name};
    sink.AddGauge("cairn_door_state",
                  "1 while the socket file exists and is the daemon's, by socket.", {&label, 1},
                  door->state.ok() ? 1 : 0);
    sink.AddCounter("cairn_doors_made_again_total",
                    "Missing socket files that were made again, by socket.", {&label, 1},
                    door->made_again.Value());
  }
}

}  // namespace cairn
