// SPDX-License-Identifier: Apache-2.0
#pragma once
// The socket files of the daemon. Other programs can delete, move or replace a file without the
// daemon noticing. Look() makes a missing file again. If another process listens at the path,
// Look() records and logs it. state() then returns the error, so that the daemon is not ready.
//
// Thread-safety: call Add() before all other functions. Look() is Owned by one thread. The rest is
// Thread-safe.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric.h"
#include "base/mutex.h"

namespace cairn {

class Doors {
 public:
  // Returns true if the file was missing and was made again, as SocketFile::Keep() does.
  using Keep = std::function<absl::StatusOr<bool>()>;
  // `name` is the setting that holds the path. It has static storage.
  void Add(std::string_view name, Keep keep);
  void Look();
  // Returns OK, or the error of the first file that no longer belongs to this daemon.
  absl::Status state() const;
  void Report(MetricSink& sink) const;

 private:
  struct Door {
    std::string_view name;
    Keep keep;
    Counter made_again;
    absl::Status state;  // guarded by mutex_
  };

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Door>> doors_;
};

}  // namespace cairn
