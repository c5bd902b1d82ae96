// SPDX-License-Identifier: Apache-2.0
#pragma once
// The control plane of a client: one gRPC channel, and one session kept open on it.
//
// A thread of its own ("session", docs/concurrency.md) reads the session's stream. When the stream
// ends the client is without a session; the thread opens a new one, with backoff, under a new epoch
// and ticket. What was bound to the old one (space ids, data connections, leases) is void.
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

namespace cairn {

// What the daemon said when it opened a session.
struct SessionInfo {
  uint64_t epoch = 0;  // 1, 2, … of this client; goes up with every reconnect
  uint64_t session_id = 0;
  proto::Ticket ticket{};
  std::vector<std::string> data_addresses;
  std::string daemon_version;
  uint64_t payload_bytes_max = 0;
};

class Control {
 public:
  // Opens the first session. Unavailable when nothing answers there, DeadlineExceeded.
  // `ended` runs on its thread when a session has ended, with its epoch; outlives it.
  static absl::StatusOr<std::unique_ptr<Control>> Open(const ConnectOptions& options,
                                                       absl::Time deadline,
                                                       std::function<void(uint64_t epoch)> ended);
  virtual ~Control() = default;  // ends the session and joins the thread

  // The session in force. While there is none it waits a moment, `deadline` at the latest, then
  // answers Unavailable with the last failure.
  virtual absl::StatusOr<SessionInfo> Session(absl::Time deadline) = 0;
  virtual uint64_t reconnect_count() const = 0;

  // The calls of cairn.v1.Store and cairn.v1.Events. The ticket is filled in here.
  virtual absl::StatusOr<v1::OpenSpaceReply> OpenSpace(v1::OpenSpaceRequest request,
                                                       absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::MatchReply> Match(v1::MatchRequest request, absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::PrefetchReply> Prefetch(v1::PrefetchRequest request,
                                                     absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ReleaseReply> Release(v1::ReleaseRequest request,
                                                   absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ContainsReply> Contains(v1::ContainsRequest request,
                                                     absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::DeleteReply> Delete(v1::DeleteRequest request,
                                                 absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::InvalidateReply> Invalidate(v1::InvalidateRequest request,
                                                         absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::StatsReply> Stats(v1::StatsRequest request, absl::Time deadline) = 0;
  // In parts: `first` without content.
  virtual absl::StatusOr<v1::PutSideObjectReply> PutSideObject(v1::PutSideObjectRequest first,
                                                               std::span<const std::byte> content,
                                                               absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::GetSideObjectReply> GetSideObject(v1::GetSideObjectRequest request,
                                                               absl::Time deadline) = 0;
  virtual absl::StatusOr<v1::ListSideObjectsReply> ListSideObjects(
      v1::ListSideObjectsRequest request, absl::Time deadline) = 0;
  // A call that has begun; what comes of it its reads say.
  virtual absl::StatusOr<std::unique_ptr<EventReader>> WatchEvents(v1::WatchEventsRequest request,
                                                                   absl::Time deadline) = 0;
};

}  // namespace cairn
