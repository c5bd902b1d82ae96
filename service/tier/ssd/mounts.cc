// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/mounts.h"

#include <mntent.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

using Path = std::filesystem::path;

// As the kernel names it: without links, without a slash at the end.
Path Canonical(const Path& path) {
  std::error_code error;
  const Path canonical = std::filesystem::weakly_canonical(path, error);
  const Path& whole = error ? path : canonical;
  return whole.has_filename() || !whole.has_relative_path() ? whole : whole.parent_path();
}

// Of a table in the form of fstab(5).
std::vector<Path> MountPoints(const std::string& table) {
  std::vector<Path> points;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::setmntent(table.c_str(), "re"), ::endmntent);
  if (file == nullptr) {
    return points;
  }
  mntent entry = {};
  std::array<char, 4096> text{};
  while (::getmntent_r(file.get(), &entry, text.data(), text.size()) != nullptr) {
    points.emplace_back(entry.mnt_dir);  // of swap it is no path
  }
  return points;
}

bool IsWithin(const Path& folder, const Path& point) {
  return std::mismatch(point.begin(), point.end(), folder.begin(), folder.end()).first ==
         point.end();
}

}  // namespace

absl::Status CheckMounted(const std::string& folder, const std::string& fstab) {
  const std::vector<Path> mounted = MountPoints("/proc/self/mounts");
  const Path wanted = Canonical(folder);
  for (const Path& entry : MountPoints(fstab)) {
    const Path point = entry.is_absolute() ? Canonical(entry) : entry;
    if (IsWithin(wanted, point) && !mounted.empty() &&
        std::find(mounted.begin(), mounted.end(), point) == mounted.end()) {
      return absl::UnavailableError(absl::StrCat(point.string(), " is not mounted, but ", fstab,
                                                 " lists a file system there"));
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn
