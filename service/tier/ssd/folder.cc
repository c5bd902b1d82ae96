// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/folder.h"

#include <mntent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "codecs/types/bytes.h"
#include "proto/block_key.h"
#include "proto/side_object.h"

namespace cairn {

// --- Layouts -------------------------------------------------------------------------------------

namespace {

using codecs::Load;
using codecs::Store;

constexpr uint32_t kTierMetaMagic = 0x54564B43;  // "CKVT"
constexpr uint32_t kSegmentMagic = 0x53564B43;   // "CKVS"

// Offsets of fields that both layouts have.
constexpr size_t kMagic = 0;    // u32
constexpr size_t kVersion = 4;  // u16
constexpr size_t kBytes = 6;    // u16
constexpr size_t kFlags = 8;    // u32, 0
constexpr size_t kCrc = 12;     // u32
constexpr size_t kTierId = 16;  // 16 bytes
constexpr size_t kStartBytes = 16;

constexpr size_t kMetaSegmentBytes = 32;  // u64
constexpr size_t kMetaTail = 40;          // 0

constexpr size_t kSeq = 32;           // u64
constexpr size_t kSegmentBytes = 40;  // u64
constexpr size_t kSlot = 48;          // u32
constexpr size_t kSegmentTail = 52;   // 0

uint32_t CrcOf(std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, 4> kZero{};
  uint32_t crc = codecs::Crc32c(bytes.first(kCrc));
  crc = codecs::ExtendCrc32c(crc, kZero);
  return codecs::ExtendCrc32c(crc, bytes.subspan(kCrc + kZero.size()));
}

void StoreStart(uint32_t magic, uint16_t version, std::span<std::byte> target) {
  std::memset(target.data(), 0, target.size());
  Store(target.data() + kMagic, magic);
  Store(target.data() + kVersion, version);
  Store(target.data() + kBytes, static_cast<uint16_t>(target.size()));
}

void Seal(std::span<std::byte> target) { Store(target.data() + kCrc, CrcOf(target)); }

absl::Status Damaged(absl::string_view what, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(what, ": ", why));
}

absl::Status CheckStart(absl::string_view what, uint32_t magic, uint16_t version, size_t size,
                        std::span<const std::byte> bytes) {
  if (bytes.size() < kStartBytes) {
    return Damaged(what, "cut short");
  }
  const std::byte* base = bytes.data();
  if (Load<uint32_t>(base + kMagic) != magic) {
    return Damaged(what, "another magic");
  }
  if (Load<uint16_t>(base + kBytes) != bytes.size()) {
    return Damaged(what, "another length than it states");
  }
  if (Load<uint32_t>(base + kCrc) != CrcOf(bytes)) {
    return Damaged(what, "checksum does not match");
  }
  if (const auto found = Load<uint16_t>(base + kVersion); found != version) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": version ", found, "; this program knows ", version));
  }
  return bytes.size() == size && Load<uint32_t>(base + kFlags) == 0
             ? absl::OkStatus()
             : Damaged(what, "a field is out of range");
}

bool IsSegmentSize(uint64_t bytes) {
  return bytes >= kSegmentBytesMin && bytes <= kSegmentBytesMax && bytes % kSegmentHeaderBytes == 0;
}

}  // namespace

void EncodeTierMeta(const TierMeta& meta, std::span<std::byte, kTierMetaBytes> target) {
  CAIRN_CHECK(IsSegmentSize(meta.segment_bytes));
  StoreStart(kTierMetaMagic, kTierMetaVersion, target);
  Store(target.data() + kTierId, meta.tier_id);
  Store(target.data() + kMetaSegmentBytes, meta.segment_bytes);
  Seal(target);
}

void EncodeSegmentHeader(const SegmentHeader& header,
                         std::span<std::byte, kSegmentHeaderBytes> target) {
  CAIRN_CHECK(IsSegmentSize(header.segment_bytes) && header.seq != 0);
  StoreStart(kSegmentMagic, kSegmentVersion, target);
  Store(target.data() + kTierId, header.tier_id);
  Store(target.data() + kSeq, header.seq);
  Store(target.data() + kSegmentBytes, header.segment_bytes);
  Store(target.data() + kSlot, header.slot);
  Seal(target);
}

absl::StatusOr<TierMeta> ParseTierMeta(std::span<const std::byte> bytes) {
  CAIRN_RETURN_IF_ERROR(
      CheckStart(kTierMetaFile, kTierMetaMagic, kTierMetaVersion, kTierMetaBytes, bytes));
  const std::byte* base = bytes.data();
  const TierMeta meta{.tier_id = Load<SsdTierId>(base + kTierId),
                      .segment_bytes = Load<uint64_t>(base + kMetaSegmentBytes)};
  if (!IsSegmentSize(meta.segment_bytes) ||
      !codecs::IsZero(base + kMetaTail, kTierMetaBytes - kMetaTail)) {
    return Damaged(kTierMetaFile, "a field is out of range");
  }
  return meta;
}

absl::StatusOr<SegmentHeader> ParseSegmentHeader(std::span<const std::byte> bytes) {
  constexpr char kWhat[] = "segment header";
  CAIRN_RETURN_IF_ERROR(
      CheckStart(kWhat, kSegmentMagic, kSegmentVersion, kSegmentHeaderBytes, bytes));
  const std::byte* base = bytes.data();
  const SegmentHeader header{.tier_id = Load<SsdTierId>(base + kTierId),
                             .slot = Load<uint32_t>(base + kSlot),
                             .seq = Load<uint64_t>(base + kSeq),
                             .segment_bytes = Load<uint64_t>(base + kSegmentBytes)};
  if (!IsSegmentSize(header.segment_bytes) || header.seq == 0 ||
      !codecs::IsZero(base + kSegmentTail, kSegmentHeaderBytes - kSegmentTail)) {
    return Damaged(kWhat, "a field is out of range");
  }
  return header;
}

absl::Status WriteTierMeta(const std::string& folder, const TierMeta& meta) {
  std::array<std::byte, kTierMetaBytes> bytes;
  EncodeTierMeta(meta, bytes);
  return WriteFileDurably(absl::StrCat(folder, "/", kTierMetaFile), bytes);
}

absl::StatusOr<TierMeta> ReadTierMeta(const std::string& folder) {
  // A later version may be longer.
  constexpr size_t kBytesMax = size_t{64} << 10;
  const auto text = ReadFile(absl::StrCat(folder, "/", kTierMetaFile), kBytesMax);
  if (!text.ok()) {
    return absl::IsResourceExhausted(text.status())
               ? Damaged(kTierMetaFile, text.status().message())
               : text.status();
  }
  return ParseTierMeta(std::as_bytes(std::span(*text)));
}

// --- Side objects --------------------------------------------------------------------------------

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
    } else {  // left by an interrupted write
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

// --- Mounts --------------------------------------------------------------------------------------

namespace {

using Path = std::filesystem::path;

// Returns the path as the kernel names it, without links and without a slash at the end.
Path Canonical(const Path& path) {
  std::error_code error;
  const Path canonical = std::filesystem::weakly_canonical(path, error);
  const Path& whole = error ? path : canonical;
  return whole.has_filename() || !whole.has_relative_path() ? whole : whole.parent_path();
}

// Returns the mount points in a table in the format of fstab(5).
std::vector<Path> MountPoints(const std::string& table) {
  std::vector<Path> points;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::setmntent(table.c_str(), "re"), ::endmntent);
  if (file == nullptr) {
    return points;
  }
  mntent entry = {};
  std::array<char, 4096> text{};
  while (::getmntent_r(file.get(), &entry, text.data(), text.size()) != nullptr) {
    points.emplace_back(entry.mnt_dir);  // not a path for swap
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
