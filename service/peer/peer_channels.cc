// SPDX-License-Identifier: Apache-2.0
#include "service/peer/peer_channels.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "client/cpp/tls.h"

namespace cairn {

std::unique_ptr<PeerStub> OpenPeer(const std::string& address, const PeerDial& dial,
                                   int answer_bytes_max) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetMaxReceiveMessageSize(answer_bytes_max);
  const auto credentials =
      dial.tls == nullptr
          ? grpc::InsecureChannelCredentials()
          : CheckedCredentials(dial.tls->pems(),
                               [check = dial.may_be_member](const CertificatePeer& peer) {
                                 return check(PeerIdentity(peer));
                               });
  return v1::Peer::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

void* NextOver(grpc::CompletionQueue& queue, absl::Time deadline) {
  const absl::Duration wait = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
  void* tag = nullptr;
  bool ok = false;
  const auto next = queue.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + wait));
  return next == grpc::CompletionQueue::GOT_EVENT ? tag : nullptr;
}

void Drain(grpc::CompletionQueue& queue) {
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {  // ends: the calls are cancelled
  }
}

std::shared_ptr<PeerStub> PeerChannels::To(const Member& member) {
  const uint64_t generation = dial_.tls_generation();
  const MutexLock lock(mutex_);
  Line& line = lines_[member.number];
  if (line.stub == nullptr || line.address != member.address || line.tls_generation != generation) {
    line = {member.address, generation, OpenPeer(member.address, dial_, answer_bytes_max_)};
  }
  return line.stub;
}

void PeerChannels::Keep(const View& view) {
  const MutexLock lock(mutex_);
  std::erase_if(lines_, [&view](const auto& line) { return view.Find(line.first) == nullptr; });
}

}  // namespace cairn
