// SPDX-License-Identifier: Apache-2.0
#include "service/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn {

absl::StatusOr<std::unique_ptr<Audit>> Audit::Open(const std::string& path) {
  auto audit = std::unique_ptr<Audit>(new Audit(path));
  const MutexLock lock(audit->mutex_);
  CAIRN_RETURN_IF_ERROR(audit->OpenFile());
  CAIRN_RETURN_IF_ERROR(audit->Write("start", {}));
  return audit;
}

absl::Status Audit::OpenFile() {
  file_.Reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat facts {};
  if (!file_.is_valid()) return Failed("open");
  if (::fstat(file_.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    file_.Reset();
    errno = EINVAL;
    return Failed("open");
  }
  return absl::OkStatus();
}

absl::Status Audit::Failed(std::string_view what) {
  failures_.Add();
  const std::string text =
      absl::StrCat("audit: ", path_, ": ", ToAbsl(what), ": ", std::strerror(errno));
  if (text != failure_) LogError("audit", "a line was not written", {{"error", text}});
  failure_ = text;
  return absl::UnavailableError(text);
}

Audit::Line Audit::MakeLine(std::string_view event, std::initializer_list<Field> fields) {
  Line line{.time = absl::Now(), .text = "\"event\":"};
  AppendJsonString(event, &line.text);
  for (const Field& field : fields) {
    absl::StrAppend(&line.text, ",\"", ToAbsl(field.name), "\":");
    AppendJsonString(field.value, &line.text);
  }
  return line;
}

absl::Status Audit::Write(std::string_view event, std::initializer_list<Field> fields) {
  return WriteLine(MakeLine(event, fields));
}

absl::Status Audit::WriteLine(const Line& content) {
  if (!file_.is_valid()) CAIRN_RETURN_IF_ERROR(OpenFile());
  const std::string line =
      absl::StrCat("{\"time\":\"", absl::FormatTime(content.time, absl::UTCTimeZone()),
                   "\",\"number\":", number_ + 1, ",", content.text, "}\n");
  struct stat before {};
  if (::fstat(file_.get(), &before) != 0) return Failed("stat");
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    if (written >= 0) errno = ENOSPC;
    const int error = errno;
    // Remove the incomplete line: it would make the next line unreadable, too.
    if (::ftruncate(file_.get(), before.st_size) != 0) file_.Reset();
    errno = error;
    return Failed("write");
  }
  ++number_;
  lines_.Add();
  is_unsynced_ = true;
  return absl::OkStatus();
}

absl::Status Audit::Change(std::string_view call, const PeerIdentity& peer,
                           std::string_view detail) {
  const std::string who = peer.ToString();
  const MutexLock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(Write("change", {{"call", call}, {"peer", who}, {"detail", detail}}));
  if (::fdatasync(file_.get()) != 0) return Failed("sync");
  is_unsynced_ = false;
  failure_.clear();
  return absl::OkStatus();
}

void Audit::Refused(const PeerIdentity& peer, std::string_view tenant, const absl::Status& reason) {
  const std::string who = peer.ToString();
  const absl::string_view why = reason.message();
  const MutexLock lock(mutex_);
  if (++notes_ > kNotesPerSecond) return omitted_.Add();
  static_cast<void>(Write("refused", {{"peer", who}, {"tenant", tenant}, {"reason", ToStd(why)}}));
}

void Audit::Policy(const absl::Status& outcome) {
  const absl::string_view why = outcome.message();
  const MutexLock lock(mutex_);
  static_cast<void>(outcome.ok() ? Write("policy loaded", {})
                                 : Write("policy not taken", {{"reason", ToStd(why)}}));
}

void Audit::Tls(const absl::Status& outcome) {
  const absl::string_view why = outcome.message();
  const MutexLock lock(mutex_);
  static_cast<void>(outcome.ok() ? Write("tls loaded", {})
                                 : Write("tls not taken", {{"reason", ToStd(why)}}));
}

void Audit::Note(std::string_view event, std::initializer_list<Field> fields) {
  Line line = MakeLine(event, fields);
  const MutexLock lock(noted_mutex_);
  if (noted_.size() >= kNotesPerSecond) return omitted_.Add();
  noted_.push_back(std::move(line));
}

void Audit::Outcome(std::string_view call, const PeerIdentity& peer, const absl::Status& outcome) {
  const std::string who = peer.ToString(), what = outcome.ok() ? "OK" : outcome.ToString();
  Note("outcome", {{"call", call}, {"peer", who}, {"outcome", what}});
}

void Audit::OperatorRefused(std::string_view call, const PeerIdentity& peer,
                            const absl::Status& reason) {
  const std::string who = peer.ToString();
  Note("operator refused",
       {{"call", call}, {"peer", who}, {"reason", ToStd(absl::string_view(reason.message()))}});
}

void Audit::TicketRefused(const PeerIdentity& peer, std::string_view tenant) {
  const std::string who = peer.ToString();
  Note("ticket refused", {{"peer", who}, {"tenant", tenant}});
}

void Audit::HandshakeRefused(std::string_view door, std::string_view address,
                             std::string_view certificate, std::string_view reason,
                             std::string_view why) {
  Note("handshake refused", {{"door", door},
                             {"address", address},
                             {"certificate", certificate},
                             {"reason", reason},
                             {"why", why}});
}

void Audit::Look() {
  std::vector<Line> noted;
  {
    const MutexLock lock(noted_mutex_);
    noted.swap(noted_);
  }
  const MutexLock lock(mutex_);
  notes_ = 0;
  for (const Line& line : noted) static_cast<void>(WriteLine(line));
  if (is_unsynced_ && file_.is_valid()) {
    if (::fdatasync(file_.get()) == 0) {
      is_unsynced_ = false;
      failure_.clear();
    } else {
      static_cast<void>(Failed("sync"));
    }
  }
  struct stat there {
  }, ours{};
  const bool is_same = file_.is_valid() && ::stat(path_.c_str(), &there) == 0 &&
                       ::fstat(file_.get(), &ours) == 0 && there.st_ino == ours.st_ino &&
                       there.st_dev == ours.st_dev;
  if (is_same || !OpenFile().ok()) return;
  if (Write("new file", {}).ok()) failure_.clear();
}

std::string Audit::remark() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void Audit::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_audit_lines_total", "Lines of the audit file.", {}, lines_.Value());
  sink.AddCounter("cairn_audit_failures_total",
                  "Lines of the audit file that could not be written or synced.", {},
                  failures_.Value());
  sink.AddCounter("cairn_audit_omitted_total",
                  "Lines that were left out of the audit file: more than 32 of a kind in a second.",
                  {}, omitted_.Value());
}

}  // namespace cairn
