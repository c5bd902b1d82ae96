// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device's folder of the SSD tier (docs/internals/formats/ssd.md) while no process uses it. Finds
// places in its files, and damages them.
//
// Thread-safety: Thread-compatible.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "proto/block_key.h"

namespace cairn {

class TierFolder {
 public:
  explicit TierFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return absl::StrCat(path_, "/", name); }
  std::string Segment(uint64_t slot) const { return File(absl::StrFormat("segments/%06d", slot)); }
  // Returns the existing segments, by slot.
  std::vector<std::string> Segments() const { return FilesOf("segments", ""); }
  // Returns the ledger's files whose name begins or ends with `kind`.
  std::vector<std::string> Index(const std::string& kind) const { return FilesOf("index", kind); }

  static void RemoveAll(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      std::filesystem::remove(path);
    }
  }
  static void Flip(const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 0x10));
    EXPECT_TRUE(file.good()) << path;
  }
  static void Zero(const std::string& path, uint64_t at, uint64_t bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    const std::string zeros(bytes, '\0');
    file.write(zeros.data(), static_cast<std::streamsize>(bytes));
    EXPECT_TRUE(file.good()) << path;
  }
  void Swap(const std::string& a, const std::string& b) const {
    std::filesystem::rename(a, File("aside"));
    std::filesystem::rename(b, a);
    std::filesystem::rename(File("aside"), b);
  }
  // Replaces the ledger with that of the other folder.
  void TakeIndexOf(const TierFolder& other) const {
    std::filesystem::remove_all(File("index"));
    std::filesystem::copy(other.File("index"), File("index"));
  }

  struct Place {
    std::string segment;
    uint64_t offset = 0;
  };
  // Returns the places of image headers, by the key in each header. Includes headers of removed
  // images and of earlier uses of a segment.
  std::multimap<proto::BlockKey, Place> Headers() const {
    constexpr uint64_t kPage = 4096;
    std::multimap<proto::BlockKey, Place> found;
    for (const std::string& path : Segments()) {
      const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      std::array<char, 96> header;
      constexpr ssize_t kBytes = header.size();
      for (uint64_t at = kPage;
           ::pread(file.get(), header.data(), kBytes, static_cast<off_t>(at)) == kBytes;
           at += kPage) {
        if (std::string_view(header.data(), 4) == "CKVI") {
          proto::BlockKey key;
          std::memcpy(key.data(), &header[64], key.size());
          found.emplace(key, Place{path, at});
        }
      }
    }
    return found;
  }
  // Returns the number of bytes that the file system has allocated for its files.
  uint64_t AllocatedBytes() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      struct stat facts {};
      bytes += ::lstat(entry.path().c_str(), &facts) == 0
                   ? static_cast<uint64_t>(facts.st_blocks) * 512
                   : 0;
    }
    return bytes;
  }

 private:
  std::vector<std::string> FilesOf(const std::string& folder, const std::string& kind) const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(File(folder))) {
      const std::string name = entry.path().filename();
      if (absl::StartsWith(name, kind) || absl::EndsWith(name, kind)) {
        paths.push_back(entry.path());
      }
    }
    EXPECT_FALSE(paths.empty()) << folder << "/" << kind;
    std::ranges::sort(paths);
    return paths;
  }

  std::string path_;
};

}  // namespace cairn
