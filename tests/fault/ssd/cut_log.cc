// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/ssd/cut_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace cairn {
namespace {

constexpr uint64_t kPage = 4096, kSector = 512;

struct Write {
  uint64_t offset = 0, bytes = 0;
  std::string_view old;
  bool is_durable = false;
  bool is_forgotten = false;  // by a sync that failed
};
struct SyncUnderWay {
  size_t writes = 0;        // that came before
  uint64_t file_bytes = 0;  // then
};
struct File {
  std::vector<Write> writes;   // in order
  uint64_t durable_bytes = 0;  // its length, at least
  std::map<uint64_t, SyncUnderWay> syncs;
};

void Add(const CutRecord& record, std::string_view old, bool is_believed, File& file) {
  if (record.kind == CutRecord::kWrite) {
    file.writes.push_back({.offset = record.offset, .bytes = record.bytes, .old = old});
  } else if (record.kind == CutRecord::kSyncBegins) {
    file.syncs[record.sync] = {.writes = file.writes.size(), .file_bytes = record.file_bytes};
  } else if (record.kind == CutRecord::kSyncFailed) {
    for (Write& write : file.writes) {
      write.is_forgotten = !write.is_durable;
    }
  } else {
    const SyncUnderWay& over = file.syncs[record.sync];
    file.durable_bytes = std::max(file.durable_bytes, over.file_bytes);
    for (size_t i = 0; is_believed && i < over.writes; ++i) {
      file.writes[i].is_durable |= !file.writes[i].is_forgotten;
    }
  }
}

std::map<std::string, File> Parse(std::string_view log,
                                  const std::function<bool(const std::string& path)>& is_believed) {
  std::map<std::string, File> files;
  while (log.size() >= sizeof(CutRecord)) {  // ends: each turn takes a record off
    CutRecord record;
    std::memcpy(&record, log.data(), sizeof(record));
    const uint64_t bytes = sizeof(record) + record.path_bytes + record.old_bytes;
    if (bytes > log.size()) {
      break;  // the process ended in it
    }
    const std::string path(log.substr(sizeof(record), record.path_bytes));
    const auto [found, is_new] = files.try_emplace(path);
    if (is_new && record.kind == CutRecord::kWrite) {
      found->second.durable_bytes = record.file_bytes;  // of the process before
    }
    Add(record, log.substr(bytes - record.old_bytes, record.old_bytes), is_believed(path),
        found->second);
    log.remove_prefix(bytes);
  }
  return files;
}

// Puts back what a write replaced, from the last write to the first, each page until one stays.
uint64_t RevertPages(int fd, const File& file, std::mt19937_64& random) {
  std::map<uint64_t, bool> is_settled;  // by page
  uint64_t reverted = 0;
  for (const Write& write : std::views::reverse(file.writes)) {
    for (uint64_t at = 0; at < write.bytes;) {  // ends: each turn passes a page
      const uint64_t page = (write.offset + at) / kPage;
      const uint64_t next = std::min((page + 1) * kPage - write.offset, write.bytes);
      bool& settled = is_settled[page];
      settled = settled || write.is_durable || random() % 2 == 0;
      if (!settled && at < write.old.size()) {
        uint64_t bytes = std::min<uint64_t>(next, write.old.size()) - at;
        if (random() % 4 == 0) {  // torn
          bytes = std::min(bytes, kSector * (1 + random() % 7));
          settled = true;
        }
        const auto put =
            ::pwrite(fd, write.old.data() + at, bytes, static_cast<off_t>(write.offset + at));
        CAIRN_CHECK(put == static_cast<ssize_t>(bytes));
        ++reverted;
      }
      at = next;
    }
  }
  return reverted;
}

}  // namespace

CutFigures RevertUnsynced(const std::string& log_path, std::mt19937_64& random,
                          const std::function<bool(const std::string& path)>& is_believed) {
  std::ifstream stream(log_path, std::ios::binary);
  const std::string log((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  CutFigures figures;
  for (const auto& [path, file] : Parse(log, is_believed)) {
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.is_valid()) {
      continue;  // removed since, or renamed after a sync
    }
    for (const Write& write : file.writes) {
      ++figures.writes;
      figures.unsynced += write.is_durable ? 0 : 1;
    }
    figures.pages += RevertPages(fd.get(), file, random);
    const uint64_t bytes = std::filesystem::file_size(path);
    if (bytes > file.durable_bytes && random() % 2 == 0) {
      const uint64_t kept = file.durable_bytes + random() % (bytes - file.durable_bytes + 1);
      CAIRN_CHECK(::ftruncate(fd.get(), static_cast<off_t>(kept)) == 0);
    }
  }
  return figures;
}

}  // namespace cairn
