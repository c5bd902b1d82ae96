// SPDX-License-Identifier: Apache-2.0
#pragma once
// The audit file. It has one line of JSON for each change by an operator, each refused session, and
// each policy that was loaded or rejected.
//
// The line of a change is durable before the change is made. If the line cannot be written, the
// change is refused. Other lines become durable within a second, and their callers do not wait.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"

namespace cairn {

class Audit {
 public:
  // Opens the file for appending. Only the daemon's user may read it. Errors: Unavailable; the text
  // names the path.
  static absl::StatusOr<std::unique_ptr<Audit>> Open(const std::string& path);

  // Writes the line of a change that an operator is about to make. Returns when the line is
  // durable. Errors: Unavailable; then the change must not be made.
  absl::Status Change(std::string_view call, const PeerIdentity& peer, std::string_view detail);
  // Records a refused session. Above kNotesPerSecond, refused sessions are counted but not written.
  void Refused(const PeerIdentity& peer, std::string_view tenant, const absl::Status& reason);
  // Records that a policy was loaded, or why it was rejected.
  void Policy(const absl::Status& outcome);

  // Makes the written lines durable. If the file was moved, opens a new one. Call it once a second.
  void Look();
  // Returns why the last line could not be written, or an empty string if it was written.
  std::string remark() const;
  void Report(MetricSink& sink) const;

 private:
  static constexpr int kNotesPerSecond = 32;
  struct Field {
    std::string_view name, value;
  };

  explicit Audit(std::string path) : path_(std::move(path)) {}
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(std::string_view event, std::initializer_list<Field> fields)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Failed(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  Fd file_ ABSL_GUARDED_BY(mutex_);
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_unsynced_ ABSL_GUARDED_BY(mutex_) = false;
  int notes_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last Look()
  std::string failure_ ABSL_GUARDED_BY(mutex_);
  Counter lines_, failures_, omitted_;
};

}  // namespace cairn
