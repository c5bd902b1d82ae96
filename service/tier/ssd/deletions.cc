// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/deletions.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "service/tier/recovery.h"

namespace cairn {
namespace {

constexpr uint32_t kMagic = 0x44564B43;  // "CKVD"
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 32;
constexpr size_t kRecordBytes = 80;
constexpr size_t kRecordCrcAt = 76;
constexpr size_t kFileBytesMax = size_t{64} << 20;

template <typename T>
void Store(T value, std::byte* at) {
  std::memcpy(at, &value, sizeof(value));
}
template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

using Record = std::array<std::byte, kRecordBytes>;
using Header = std::array<std::byte, kHeaderBytes>;

Header EncodeHeader(uint64_t base) {
  Header header{};
  Store(kMagic, header.data());
  Store(kVersion, header.data() + 4);
  Store(uint16_t{kHeaderBytes}, header.data() + 6);
  Store(base, header.data() + 16);
  Store(codecs::Crc32c(header), header.data() + 12);
  return header;
}

Record Encode(const Deletion& deletion) {
  Record record{};
  Store(deletion.epoch, record.data());
  std::memcpy(record.data() + 8, deletion.space.data(), deletion.space.size());
  std::memcpy(record.data() + 40, deletion.key.data(), deletion.key.size());
  Store(codecs::Crc32c(std::span(record).first(kRecordCrcAt)), record.data() + kRecordCrcAt);
  return record;
}

std::optional<Deletion> Parse(std::span<const std::byte, kRecordBytes> record) {
  if (Load<uint32_t>(record.data() + kRecordCrcAt) != codecs::Crc32c(record.first(kRecordCrcAt))) {
    return std::nullopt;
  }
  Deletion deletion = {.epoch = Load<uint64_t>(record.data()), .space = {}, .key = {}};
  std::memcpy(deletion.space.data(), record.data() + 8, deletion.space.size());
  std::memcpy(deletion.key.data(), record.data() + 40, deletion.key.size());
  return deletion;
}

}  // namespace

void TellSink(RecoverySink& sink, const Deletion& deletion) {
  const bool is_space = deletion.key == proto::BlockKey{};
  sink.Deleted(deletion.space,
               is_space ? std::span<const proto::BlockKey>() : std::span(&deletion.key, 1));
}

// --- The file ------------------------------------------------------------------------------------

absl::StatusOr<DeletionHistory> DeletionFile::Read() const {
  CAIRN_ASSIGN_OR_RETURN(const std::string content, ReadFile(path_, kFileBytesMax));
  const auto bytes = std::as_bytes(std::span(content));
  DeletionHistory history;
  if (bytes.size() >= kHeaderBytes) {
    history.base = history.epoch = Load<uint64_t>(bytes.data() + 16);
  }
  const Header expected = EncodeHeader(history.base);
  if (bytes.size() < kHeaderBytes || !std::ranges::equal(bytes.first<kHeaderBytes>(), expected)) {
    return absl::DataLossError(absl::StrCat(path_, ": not a file of deletions"));
  }
  for (size_t at = kHeaderBytes; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    const std::optional<Deletion> deletion = Parse(bytes.subspan(at).first<kRecordBytes>());
    if (!deletion.has_value()) {
      break;
    }
    history.epoch = std::max(history.epoch, deletion->epoch);
    history.deletions.push_back(*deletion);
  }
  std::ranges::sort(history.deletions);
  return history;
}

absl::Status DeletionFile::Write(const DeletionHistory& history) {
  const Header header = EncodeHeader(history.base);
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.reserve(kHeaderBytes + kRecordBytes * history.deletions.size());
  for (const Deletion& deletion : history.deletions) {
    const Record record = Encode(deletion);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  CAIRN_RETURN_IF_ERROR(WriteFileDurably(path_, bytes));
  count_ = history.deletions.size();
  return absl::OkStatus();
}

absl::Status DeletionFile::Append(std::span<const Deletion> deletions) {
  const Fd file(::open(path_.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.is_valid()) {
    return absl::ErrnoToStatus(errno, path_);
  }
  std::vector<std::byte> bytes;
  bytes.reserve(kRecordBytes * deletions.size());
  for (const Deletion& deletion : deletions) {
    const Record record = Encode(deletion);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  // Write after the last complete record. Later bytes may be left from a failed write.
  const auto at = static_cast<off_t>(kHeaderBytes + kRecordBytes * count_);
  if (::pwrite(file.get(), bytes.data(), bytes.size(), at) != std::ssize(bytes) ||
      ::fdatasync(file.get()) != 0) {
    return absl::ErrnoToStatus(errno == 0 ? EIO : errno, path_);
  }
  count_ += deletions.size();
  return absl::OkStatus();
}

// --- The tier's list -----------------------------------------------------------------------------

void Deletions::Join(const std::vector<DeletionHistory>& histories) {
  const MutexLock lock(mutex_);
  for (const DeletionHistory& history : histories) {
    epoch_ = std::max(epoch_, history.epoch);
    deletions_.insert(history.deletions.begin(), history.deletions.end());
  }
  // Go back from the newest epoch, as long as one device's history continues another's.
  base_ = epoch_;
  for (size_t round = 0; round < histories.size(); ++round) {
    for (const DeletionHistory& history : histories) {
      base_ = history.epoch >= base_ ? std::min(base_, history.base) : base_;
    }
  }
  Bound();
}

std::vector<Deletion> Deletions::Join(const DeletionHistory& history) {
  std::vector<Deletion> unknown;
  const MutexLock lock(mutex_);
  for (const Deletion& deletion : history.deletions) {
    if (deletion.epoch > base_ && deletions_.insert(deletion).second) {
      unknown.push_back(deletion);
    }
  }
  epoch_ = std::max(epoch_, history.epoch);
  Bound();
  return unknown;
}

void Deletions::Add(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys,
                    absl::FunctionRef<void(const std::vector<Deletion>&)> tell) {
  const auto now = static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixMicros(MonotonicNow()), 0));
  std::vector<Deletion> added;
  const MutexLock lock(mutex_);
  epoch_ = std::max(epoch_ + 1, now);
  for (const proto::BlockKey& key : keys) {
    added.push_back({.epoch = epoch_, .space = space, .key = key});
  }
  if (keys.empty()) {
    added.push_back({.epoch = epoch_, .space = space, .key = {}});
  }
  deletions_.insert(added.begin(), added.end());
  Bound();
  tell(added);
}

void Deletions::Bound() {
  while (deletions_.size() > count_max_) {
    base_ = std::max(base_, deletions_.begin()->epoch);
    deletions_.erase(deletions_.begin());
  }
}

std::optional<std::vector<Deletion>> Deletions::Missed(uint64_t epoch,
                                                       const DeletionHistory& history) const {
  const MutexLock lock(mutex_);
  if (epoch < base_) {
    return std::nullopt;
  }
  std::vector<Deletion> missed;
  for (const Deletion& deletion : deletions_) {
    if (deletion.epoch > epoch || (deletion.epoch > history.base &&
                                   !std::ranges::binary_search(history.deletions, deletion))) {
      missed.push_back(deletion);
    }
  }
  return missed;
}

DeletionHistory Deletions::All() const {
  const MutexLock lock(mutex_);
  return {.base = base_,
          .epoch = epoch_,
          .deletions = std::vector<Deletion>(deletions_.begin(), deletions_.end())};
}

uint64_t Deletions::epoch() const {
  const MutexLock lock(mutex_);
  return epoch_;
}

}  // namespace cairn
