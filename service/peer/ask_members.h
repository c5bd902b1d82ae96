// SPDX-License-Identifier: Apache-2.0
#pragma once
// One call of cairn.v1.Peer to several members at once.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/cpp/rpc.h"
#include "service/members/view.h"
#include "service/peer/peer_channels.h"

namespace cairn {

template <typename Request, typename Reply>
using PeerMethod = std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (PeerStub::*)(
    grpc::ClientContext*, const Request&, grpc::CompletionQueue*);

// Returns the answer of each member, in their order. Waits until all have answered, and at most
// until `deadline` (on the clock of MonotonicNow()), or until `is_stopping`. Errors: those that the
// members answer, Unavailable and DeadlineExceeded.
template <typename Request, typename Reply>
std::vector<absl::StatusOr<Reply>> AskMembers(PeerChannels& channels,
                                              std::span<const Member> members,
                                              PeerMethod<Request, Reply> method,
                                              const Request& request, absl::Time deadline,
                                              const std::atomic<bool>& is_stopping) {
  constexpr absl::Duration kLook = absl::Milliseconds(100);  // at `is_stopping`
  struct Asked {
    std::shared_ptr<PeerStub> stub;
    grpc::ClientContext context;
    grpc::Status status;
    Reply reply;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> call;
    bool is_over = false;
  };
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<Asked>> all;
  for (const Member& member : members) {
    Asked& asked = *all.emplace_back(std::make_unique<Asked>());
    asked.stub = channels.To(member);
    asked.context.set_deadline(absl::ToChronoTime(absl::Now() + (deadline - MonotonicNow())));
    asked.call = ((*asked.stub).*method)(&asked.context, request, &queue);
    asked.call->Finish(&asked.reply, &asked.status, &asked);
  }
  size_t open = all.size();
  // Ends: each call ends by its deadline.
  while (open > 0 && !is_stopping.load(std::memory_order_relaxed)) {
    auto* const over = static_cast<Asked*>(NextOver(queue, MonotonicNow() + kLook));
    if (over == nullptr) continue;
    over->is_over = true;
    --open;
  }
  for (const auto& asked : all) {
    if (!asked->is_over) asked->context.TryCancel();
  }
  Drain(queue);
  std::vector<absl::StatusOr<Reply>> answers;
  for (const auto& asked : all) {
    answers.push_back(asked->status.ok() ? absl::StatusOr<Reply>(std::move(asked->reply))
                                         : FromGrpc(asked->status));
  }
  return answers;
}

}  // namespace cairn
