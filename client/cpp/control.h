// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's control plane: one gRPC channel, with one session that is kept open.
//
// Its thread ("session", docs/internals/concurrency.md) reads the session's stream. When the stream
// ends, the thread opens a new session, with backoff. The new session has a new epoch and ticket.
// Space ids, data connections and leases of the old session are then invalid.
//
// Thread-safety: Thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cairn/v1/events.pb.h"
#include "cairn/v1/store.pb.h"
#include "client/cpp/event_reader.h"
#include "client/cpp/options.h"
#include "proto/frame.h"
#include "transport/tls/tls_files.h"

namespace cairn {

// The daemon's answer to opening a session.
struct SessionInfo {
  uint64_t epoch = 0;  // 1, 2, … for this client; increases with every reconnect
  uint64_t session_id = 0;
  proto::Ticket ticket{};
  std::vector<std::string> data_addresses;
  std::string daemon_version;
  uint64_t payload_bytes_max = 0;
  bool takes_engine_hashes = false;
  bool takes_tokens = false;
};

class Control {
 public:
  // Opens the first session. When a session ends, the session thread calls `ended` with the
  // session's epoch. Objects that `ended` uses must outlive the Control. `tls` holds the files that
  // options.tls names, or is null without TLS. It must outlive the Control. Errors: Unavailable (no
  // daemon answers), DeadlineExceeded.
  static absl::StatusOr<std::unique_ptr<Control>> Open(const ConnectOptions& options,
                                                       transport::TlsFiles* tls,
                                                       absl::Time deadline,
                                                       std::function<void(uint64_t epoch)> ended);
  virtual ~Control() = default;  // ends the session and joins the thread

  // Returns the current session. If there is none, waits briefly for a new one, at most until
  // `deadline`. Errors: Unavailable (no session is open; the message has the last failure).
  virtual absl::StatusOr<SessionInfo> Session(absl::Time deadline) = 0;
  virtual uint64_t reconnect_count() const = 0;

  // The calls of cairn.v1.Store and cairn.v1.Events. Each sets the ticket in its request.
  virtual absl::StatusOr<v1::OpenSpaceReply> OpenSpace(v1::OpenSpaceRequest request,
                                                       absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::MatchReply> Match(v1::MatchRequest request, absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::PrefetchReply> Prefetch(v1::PrefetchRequest request,
                                                     absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ReleaseReply> Release(v1::ReleaseRequest request,
                                                   absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ContainsReply> Contains(v1::ContainsRequest request,
                                                     absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ExplainReply> Explain(v1::ExplainRequest request,
                                                   absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::WhereReply> Where(v1::WhereRequest request, absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::RetainReply> Retain(v1::RetainRequest request,
                                                 absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::DemoteReply> Demote(v1::DemoteRequest request,
                                                 absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::DeleteReply> Delete(v1::DeleteRequest request,
                                                 absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::InvalidateReply> Invalidate(v1::InvalidateRequest request,
                                                         absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::StatsReply> Stats(v1::StatsRequest request, absl::Time deadline) = 0;
  // Sends the content in parts. REQUIRES: `first` has no content.
  virtual absl::StatusOr<v1::PutSideObjectReply> PutSideObject(v1::PutSideObjectRequest first,
                                                               std::span<const std::byte> content,
                                                               absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::GetSideObjectReply> GetSideObject(v1::GetSideObjectRequest request,
                                                               absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListSideObjectsReply> ListSideObjects(
      v1::ListSideObjectsRequest request, absl::Time deadline) = 0;
  // Starts the call. EventReader::Read() returns the errors of the call.
  virtual absl::StatusOr<std::unique_ptr<EventReader>> WatchEvents(v1::WatchEventsRequest request,
                                                                   absl::Time deadline) = 0;
};

}  // namespace cairn
