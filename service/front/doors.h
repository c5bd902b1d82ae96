// SPDX-License-Identifier: Apache-2.0
#pragma once
// The socket files by which clients and operators come in. Such a file can be swept away, moved, or
// replaced by somebody else's, and the daemon behind it notices nothing by itself. Look() does:
// what has gone is made again, and where another listens the daemon is not ready and says so.
//
// Thread-safety: Add() before the first of the others. Look() is Owned by one thread, the rest is
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
  // What SocketFile::Keep() is: true where the file had gone and was made again.
  using Keep = std::function<absl::StatusOr<bool>()>;
  // `name`: the knob it comes from. Static storage.
  void Add(std::string_view name, Keep keep);
  void Look();
  // OK, or what is wrong with the first of them that is not ours.
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
