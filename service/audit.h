// SPDX-License-Identifier: Apache-2.0
#pragma once
// The audit file. It has one JSON object per line. Lines are written for each change by an operator
// and its outcome, for each peer that was refused, and for each load of a policy or of TLS files,
// whether it succeeded or failed. docs/reference/audit.md lists the lines and their fields.
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
#include <vector>

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
  // durable. Errors: Unavailable; the caller must then not make the change.
  absl::Status Change(std::string_view call, const PeerIdentity& peer, std::string_view detail);
  // Records a refused session. Above kNotesPerSecond, refused sessions are counted but not written.
  void Refused(const PeerIdentity& peer, std::string_view tenant, const absl::Status& reason);
  // Records that a policy was loaded, or why it was rejected.
  void Policy(const absl::Status& outcome);
  // Records that TLS files were loaded, or why they were rejected.
  void Tls(const absl::Status& outcome);

  // The functions below never wait for the drive: Look() writes their lines. Above kNotesPerSecond,
  // lines are counted but not written.
  // Records how an operator's change ended.
  void Outcome(std::string_view call, const PeerIdentity& peer, const absl::Status& outcome);
  void OperatorRefused(std::string_view call, const PeerIdentity& peer, const absl::Status& reason);
  // Records that `peer` presented the ticket of a session of `tenant` that another peer had opened.
  void TicketRefused(const PeerIdentity& peer, std::string_view tenant);
  // Records a refused handshake. `certificate` is the text that logs have; empty: none was
  // presented.
  void HandshakeRefused(std::string_view door, std::string_view address,
                        std::string_view certificate, std::string_view reason,
                        std::string_view why);

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
  struct Line {
    absl::Time time;
    std::string text;  // from the event on
  };

  explicit Audit(std::string path) : path_(std::move(path)) {}
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static Line MakeLine(std::string_view event, std::initializer_list<Field> fields);
  absl::Status Write(std::string_view event, std::initializer_list<Field> fields)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteLine(const Line& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(std::string_view event, std::initializer_list<Field> fields);
  absl::Status Failed(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  Fd file_ ABSL_GUARDED_BY(mutex_);
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_unsynced_ ABSL_GUARDED_BY(mutex_) = false;
  int notes_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last Look()
  std::string failure_ ABSL_GUARDED_BY(mutex_);
  Counter lines_, failures_, omitted_;

  Mutex noted_mutex_;  // never held while waiting for the drive
  std::vector<Line> noted_ ABSL_GUARDED_BY(noted_mutex_);
};

}  // namespace cairn
