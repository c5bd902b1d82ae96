// SPDX-License-Identifier: Apache-2.0
#include "base/memory_room.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"

namespace cairn {
namespace {

constexpr uint64_t kFileBytesMax = 64 * kKiB;
// Cgroup version 1 writes a number near the size of the address space for "no limit".
constexpr uint64_t kNoLimitBytes = uint64_t{1} << 60;

std::string TextOf(const std::string& path) { return ReadFile(path, kFileBytesMax).value_or(""); }

// Reads a limit such as "4096". Returns UINT64_MAX for "max", for other texts, and for version 1's
// "no limit".
uint64_t LimitIn(const std::string& path) {
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(TextOf(path)), &bytes)) return UINT64_MAX;
  return bytes < kNoLimitBytes ? bytes : UINT64_MAX;
}

struct Names {
  std::string_view limit, use, inactive;
};
constexpr Names kNames1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names kNames2 = {"memory.max", "memory.current", "inactive_file"};

void BoundByGroup(const std::string& folder, const Names& names, MemoryRoom* room) {
  const std::string path = absl::StrCat(folder, "/", ToAbsl(names.limit));
  const uint64_t limit = LimitIn(path);
  if (limit == UINT64_MAX) return;
  room->cgroup_limit_bytes = std::min(room->cgroup_limit_bytes, limit);
  uint64_t used = LimitIn(absl::StrCat(folder, "/", ToAbsl(names.use)));
  if (used == UINT64_MAX) used = 0;
  const uint64_t files = NumberOf(TextOf(folder + "/memory.stat"), names.inactive);
  used -= std::min(used, files);
  const uint64_t left = limit - std::min(limit, used);
  if (left < room->bytes) {
    room->bytes = left;
    room->bound = absl::StrCat(path, " (", FormatBytes(limit), ", ", FormatBytes(used), " in use)");
  }
}

// Applies the limits of this process's group and of its parents. In a container, the mount may
// begin at the process's own group, while `path` is a path of the host. Then only the root of the
// mount exists.
void BoundByGroups(const std::string& mount, std::string path, const Names& names,
                   MemoryRoom* room) {
  while (path.size() > 1) {
    BoundByGroup(mount + path, names, room);
    path.resize(path.rfind('/'));
  }
  BoundByGroup(mount, names, room);
}

}  // namespace

uint64_t NumberOf(const std::string& text, std::string_view name) {
  for (const auto line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words =
        absl::StrSplit(std::string(line), absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t number = 0;
    if (words.size() >= 2 && words[0] == name && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return 0;
}

MemoryRoom FindMemoryRoom(const std::string& root) {
  MemoryRoom room;
  const std::string info = TextOf(root + "/proc/meminfo");
  room.huge_page_bytes = NumberOf(info, "HugePages_Free:") * NumberOf(info, "Hugepagesize:") * kKiB;
  room.shared_bytes = NumberOf(info, "Shmem:") * kKiB;
  if (const uint64_t free_bytes = NumberOf(info, "MemAvailable:") * kKiB; free_bytes > 0) {
    room.bytes = free_bytes;
    room.bound = absl::StrCat("MemAvailable of /proc/meminfo (", FormatBytes(free_bytes), ")");
  }
  const std::string mounts = root + "/sys/fs/cgroup";
  for (const auto line : absl::StrSplit(TextOf(root + "/proc/self/cgroup"), '\n')) {
    // Version 2 has the line "0::/path", version 1 "4:memory:/path".
    const std::vector<std::string> parts =
        absl::StrSplit(std::string(line), absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) BoundByGroups(mounts, parts[2], kNames2, &room);
    if (parts[1] == "memory") BoundByGroups(mounts + "/memory", parts[2], kNames1, &room);
  }
  return room;
}

}  // namespace cairn
