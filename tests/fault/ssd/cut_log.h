// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process wrote to the files of a folder and has not synced, so that a test can take it back
// as a power cut does: pages of 4 KiB at random, each to any of its earlier versions, some of them
// torn at a sector of 512 bytes; files that grew, at any length. Names are taken as durable.
//
// cut_calls.cc records it, in a process that links it and has both variables; RevertUnsynced() is
// for the process after it.

#include <cstdint>
#include <functional>
#include <random>
#include <string>

namespace cairn {

inline constexpr char kCutRootVariable[] = "CAIRN_CUT_ROOT";  // the folder
inline constexpr char kCutLogVariable[] = "CAIRN_CUT_LOG";    // outside of it

// A record, followed by the file's path and, of a write, what was there before.
struct CutRecord {
  // kSyncFailed: no later sync makes durable what was written before it.
  enum Kind : uint32_t { kWrite = 1, kSyncBegins = 2, kSyncEnds = 3, kSyncFailed = 4 };
  uint32_t kind = kWrite;
  uint32_t path_bytes = 0;
  uint64_t sync = 0;        // the number of a sync
  uint64_t file_bytes = 0;  // of the file before
  uint64_t offset = 0;      // of a write, as are those that follow
  uint64_t bytes = 0;       // written
  uint64_t old_bytes = 0;   // less where the file ended
};

// From now on one of `each` syncs of files with `path` in theirs fails, at random. Of a process
// that links cut_calls.cc, once.
void FailSyncs(const std::string& path, uint64_t each, uint64_t seed);

struct CutFigures {
  uint64_t writes = 0;    // recorded
  uint64_t unsynced = 0;  // of those
  uint64_t pages = 0;     // taken back
};
// `is_believed`: whether a sync of that file made its bytes durable, not only its length. False is
// for a test of the test.
CutFigures RevertUnsynced(const std::string& log_path, std::mt19937_64& random,
                          const std::function<bool(const std::string& path)>& is_believed);

}  // namespace cairn
