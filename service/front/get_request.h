// SPDX-License-Identifier: Apache-2.0
#pragma once
// Serves get requests, from the frame to the reply. get_request.cc has the steps in order.
//
// Thread-safety: Start() is Owned by the lane's thread. A GetRequests must outlive the path pool's
// jobs.

#include "proto/frame.h"
#include "service/get/get.h"
#include "service/path_pool.h"
#include "service/replies.h"
#include "service/request.h"
#include "transport/transport.h"

namespace cairn {

class GetRequests {
 public:
  GetRequests(GetPath& path, PathPool& pool, Replies& replies)
      : path_(path), pool_(pool), replies_(replies) {}

  // Starts a get. REQUIRES: frame.body is a Get, and the request has been checked.
  void Start(transport::Lane& lane, Request request, const proto::Frame& frame);

 private:
  void Run(Request request, OwnedGet get);
  void Send(Request request, Answer answer);

  GetPath& path_;
  PathPool& pool_;
  Replies& replies_;
};

}  // namespace cairn
