// SPDX-License-Identifier: Apache-2.0
#pragma once
// The socket files of the daemon. A file can be deleted, moved or replaced without the daemon
// noticing. Look() makes a missing file again; if another process listens at the path, the daemon
// is not ready and says why.
//
// Thread-safety: call Add() before all others. Look() is Owned by one thread, the rest is
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
  // SocketFile::Keep(): returns true if the file was missing and was made again.
  using Keep = std::function<absl::StatusOr<bool>()>;
  // `name`: the setting that it comes from. Static storage.
  void Add(std::string_view name, Keep keep);
  void Look();
  // OK, or the problem of the first file that is not ours.
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
