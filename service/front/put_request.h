// SPDX-License-Identifier: Apache-2.0
#pragma once
// A put request, from its frame to its reply. put_request.cc has its steps in order.
//
// Thread-safety: Start() is Owned by the lane's thread, RefuseNew() is Thread-safe. Must outlive
//                the path pool's jobs.

#include <atomic>

#include "proto/frame.h"
#include "service/path_pool.h"
#include "service/put/put.h"
#include "service/replies.h"
#include "service/request.h"
#include "transport/transport.h"

namespace cairn {

class PutRequests {
 public:
  PutRequests(PutPath& path, PathPool& pool, Replies& replies)
      : path_(path), pool_(pool), replies_(replies) {}

  // Starts a put. REQUIRES: frame.body is a Put, and the request has been checked.
  void Start(transport::Lane& lane, Request request, const proto::Frame& frame,
             transport::Arrival arrival);
  // For draining: later puts are answered with Unavailable.
  void RefuseNew() { refuses_new_.store(true, std::memory_order_relaxed); }

 private:
  void Receive(transport::Lane& lane, Request request, OwnedPut put, transport::Arrival arrival);
  void Landed(transport::Lane& lane, Request request, OwnedPut put,
              const transport::Received& received);
  void Run(Request request, OwnedPut put, uint32_t crc32c);
  // Returns a function that sends the answer from any thread.
  PutDone Answer(Request request);

  PutPath& path_;
  PathPool& pool_;
  Replies& replies_;
  std::atomic<bool> refuses_new_{false};
};

}  // namespace cairn
