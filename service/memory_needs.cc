// SPDX-License-Identifier: Apache-2.0
#include "service/memory_needs.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "service/daemon_options.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr uint64_t kRestBytes = 64_MiB;
// What a member of a cluster may have of blocks of others: leased and deleted ones, announcements,
// offers and deletions that wait (65,536 of each), and one list of all members.
constexpr uint64_t kMemberTablesBytes = 64_MiB;

// Returns true if the arena gets reserved huge pages. `room` does not count these.
bool HasHugePages(const Config& config, const MemoryRoom& room) {
  return config.huge_pages == "required" || room.huge_page_bytes >= StartBytesOf(config);
}

uint64_t IndexBytesMaxOf(const Config& config) {
  if (const std::optional<uint64_t> bytes = IndexBytesOf(config); bytes.has_value()) return *bytes;
  uint64_t bytes = AwakeBytesMaxOf(config);
  for (const SsdFolder& folder : SsdFoldersOf(config)) {
    bytes += limits::SsdImagesAuto(folder.budget_bytes) * limits::kIndexBytesAtRest;
  }
  return bytes;
}

uint64_t WriteBufferBytesOf(const Config& config) {
  uint64_t bytes = 0;
  for (const SsdFolder& folder : SsdFoldersOf(config)) {
    bytes += 2 * limits::SsdWriteBufferBytes(folder.budget_bytes);
  }
  return bytes;
}

}  // namespace

uint64_t StartBytesOf(const Config& config) { return config.host_bytes + config.staging_bytes; }

uint64_t BytesMaxOf(const Config& config) {
  return StartBytesOf(config) + IndexBytesMaxOf(config) + WriteBufferBytesOf(config) +
         (config.members == "off" ? 0 : config.location_bytes + kMemberTablesBytes) + kRestBytes;
}

absl::Status CheckMemoryRoom(const Config& config, const MemoryRoom& room) {
  if (HasHugePages(config, room) || StartBytesOf(config) <= room.bytes) return absl::OkStatus();
  const uint64_t beside = BytesMaxOf(config) - config.host_bytes;
  const uint64_t fitting = room.bytes - std::min(room.bytes, beside);
  return absl::FailedPreconditionError(absl::StrCat(
      "host-bytes ", FormatBytes(config.host_bytes), " and staging-bytes ",
      FormatBytes(config.staging_bytes), " are allocated at start, but this process may use only ",
      FormatBytes(room.bytes), ", limited by ", room.bound, ": ",
      fitting >= limits::kHostBytesMin
          ? absl::StrCat("lower host-bytes to ", fitting / kMiB, "MiB at most")
          : "lower both",
      ", or raise that limit",
      MayWaitForRoom(config, room)
          ? absl::StrCat("; ", FormatBytes(room.shared_bytes),
                         " of shared memory are in use: a client that is stopped may still map the "
                         "memory of an earlier daemon (docs/guides/runbook.md)")
          : ""));
}

bool MayWaitForRoom(const Config& config, const MemoryRoom& room) {
  return StartBytesOf(config) > room.bytes &&
         StartBytesOf(config) - room.bytes <= room.shared_bytes;
}

std::string MemoryWarning(const Config& config, const MemoryRoom& room) {
  const uint64_t bytes =
      BytesMaxOf(config) - (HasHugePages(config, room) ? StartBytesOf(config) : 0);
  if (bytes <= room.bytes) return "";
  return absl::StrCat("host tier, staging, a full index and the rest need ", FormatBytes(bytes),
                      ", but this process may use only ", FormatBytes(room.bytes), ", limited by ",
                      room.bound, ": the kernel may kill it once the index is full");
}

}  // namespace cairn
