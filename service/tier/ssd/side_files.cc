// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/side_files.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "proto/block_key.h"
#include "proto/side_object.h"

namespace cairn {
namespace {

std::optional<codecs::Digest> DigestOf(std::string_view name) {
  codecs::Digest id{};
  if (name.size() != 2 * id.size()) {
    return std::nullopt;
  }
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < id.size(); ++i) {
    const int high = digit(name[2 * i]), low = digit(name[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    id[i] = static_cast<codecs::Digest::value_type>(16 * high + low);
  }
  return id;
}

}  // namespace

std::string SideFiles::PathOf(const codecs::Digest& id) const {
  return absl::StrCat(folder_, "/", proto::Hex(std::as_bytes(std::span(id))));
}

absl::Status SideFiles::Open() {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::vector<std::filesystem::path> leftovers;
  const MutexLock lock(mutex_);
  for (auto entry = std::filesystem::directory_iterator(folder_, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (const std::optional<codecs::Digest> id = DigestOf(name); id.has_value()) {
      const uint64_t bytes = entry->file_size(error);
      files_.emplace(*id, bytes);
      bytes_ += bytes;
    } else {  // a write that was not finished
      leftovers.push_back(entry->path());
    }
  }
  for (const std::filesystem::path& path : leftovers) {
    std::filesystem::remove(path, error);
  }
  return error ? absl::ErrnoToStatus(error.value(), folder_) : absl::OkStatus();
}

bool SideFiles::Has(const codecs::Digest& id) const {
  const MutexLock lock(mutex_);
  return files_.contains(id);
}

absl::Status SideFiles::Write(const codecs::Digest& id, std::span<const std::byte> bytes) {
  {
    const MutexLock lock(mutex_);
    if (files_.contains(id)) {
      return absl::OkStatus();
    }
    if (bytes_ + bytes.size() > bytes_max_) {
      return absl::ResourceExhaustedError(absl::StrCat("side object of ", bytes.size(),
                                                       " bytes: ", bytes_, " of ", bytes_max_,
                                                       " are in use on the device"));
    }
  }
  CAIRN_RETURN_IF_ERROR(WriteFileDurably(PathOf(id), bytes));
  const MutexLock lock(mutex_);
  bytes_ += files_.emplace(id, bytes.size()).second ? bytes.size() : 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> SideFiles::Read(const codecs::Digest& id) {
  CAIRN_ASSIGN_OR_RETURN(const std::string content,
                         ReadFile(PathOf(id), proto::kSideObjectBytesMax));
  const auto bytes = std::as_bytes(std::span(content));
  if (proto::SideObjectId(bytes) != id) {
    return absl::DataLossError(absl::StrCat(PathOf(id), ": its content has another digest"));
  }
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

void SideFiles::KeepOnly(const absl::flat_hash_set<codecs::Digest>& ids) {
  const MutexLock lock(mutex_);
  absl::erase_if(files_, [&](const auto& file) {
    if (ids.contains(file.first)) {
      return false;
    }
    ::unlink(PathOf(file.first).c_str());
    bytes_ -= file.second;
    return true;
  });
}

uint64_t SideFiles::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace cairn
