// SPDX-License-Identifier: Apache-2.0
#pragma once
// Members from etcd (v3 API, 3.4 and later). Each daemon puts a key of its own under a lease, and
// watches those of all.
//
//   PREFIX/NAME -> HOST:PORT [ZONE]
//
// The lease is renewed on the thread `member-lease`, the keys are watched on `member-watch`. Each
// has a channel of its own. Every call has a deadline. A failed call moves its thread to the next
// endpoint, with backoff. A watch that is silent for `silence` is given up, because an etcd
// that hangs keeps its connections open and so causes no error.
//
// Without `access.ca`, etcd is spoken to in plain text. The files of `access` are read anew for
// each new channel: at the start, and after each failure. The password is in no log and no error.
//
// With a user, each thread has a token of its own. If etcd refuses the token of a call, the thread
// asks for another one and repeats the call once. An etcd whose authentication is off needs no
// token.
//
// Stopping does not revoke the lease. So a daemon that restarts before its lease expires stays a
// member throughout.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "service/members/member_source.h"

namespace cairn {

// How etcd is reached. All but `user` are paths. Empty: there is none.
struct EtcdAccess {
  std::string ca;                   // PEM: the CAs of etcd's certificate
  std::string certificate, key;     // PEM; both or none; need `ca`
  std::string user, password_file;  // both or none
};
// Reads the files. Errors: those of ReadFile(); InvalidArgument if there is no password in its
// file.
absl::Status CheckEtcdFiles(const EtcdAccess& access);

struct EtcdOptions {
  std::vector<std::string> endpoints;  // HOST:PORT; tried in turn
  EtcdAccess access;
  std::string prefix;                          // without the last slash
  std::optional<ListedMember> self;            // announced; nullopt: only watches
  absl::Duration lease = absl::Seconds(30);    // whole seconds
  absl::Duration progress = absl::Seconds(2);  // how often the watch asks whether etcd is there
  absl::Duration silence = absl::Seconds(10);  // after which a watch is given up
  absl::Duration backoff_max = absl::Seconds(2);
};
// REQUIRES: at least one endpoint.
std::unique_ptr<MemberSource> MakeEtcdSource(EtcdOptions options);

}  // namespace cairn
