// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/ucx/test_store.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "codecs/checksum/checksum.h"

namespace cairn::transport {

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = PatternByte(i);
  return pattern;
}

absl::Time TestStore::Deadline() const {
  return MonotonicNow() + absl::Milliseconds(deadline_ms.load());
}

void TestStore::Answer(Lane& lane, const ReplyTo& reply_to, const proto::Frame& frame,
                       std::span<const std::byte> payload) {
  lane.Reply(reply_to, proto::Serialize(frame), payload, Deadline(),
             [this](const absl::Status& status) {
               ++replies_over;
               if (status.ok()) ++replies_ok;
             });
}

void TestStore::OnArrival(Lane& lane, Arrival arrival) {
  ++arrivals;
  const ReplyTo reply_to = arrival.reply_to();
  const absl::StatusOr<proto::Frame> request = proto::ParseFrame(arrival.frame().bytes());
  if (!request.ok()) {
    return Answer(lane, reply_to, proto::ErrorFrame(reply_to.seq, {}, request.status()));
  }
  proto::Frame reply;
  reply.seq = request->seq;
  switch (request->kind()) {
    case proto::FrameKind::kHello:
      reply.body = proto::HelloReply{.version = 1, .window = 64, .payload_bytes_max = 64 << 20};
      return Answer(lane, reply_to, reply);
    case proto::FrameKind::kPing:
      reply.body = proto::Pong{};
      return Answer(lane, reply_to, reply);
    case proto::FrameKind::kGet: {
      const uint64_t bytes = std::min<uint64_t>({std::get<proto::Get>(request->body).target_bytes,
                                                 reply_to.capacity_bytes, pattern_.size()});
      const auto payload = std::span(pattern_).first(bytes);
      reply.body = proto::GetReply{};
      reply.payload_bytes = bytes;
      reply.payload_crc32c = codecs::Crc32c(payload);
      Answer(lane, reply_to, reply, payload);
      ++gets_started;
      if (on_moving && bytes > 0) on_moving();
      return;
    }
    case proto::FrameKind::kPut:
      switch (put_mode.load()) {
        case PutMode::kTake:
          return Take(lane, std::move(arrival), *request);
        case PutMode::kHold:
          held_.push_back(std::move(arrival));
          return;
        case PutMode::kRefuse:
          return Answer(lane, reply_to,
                        proto::ErrorFrame(request->seq, {}, absl::ResourceExhaustedError("full")));
        case PutMode::kDropSilently:
          return;
      }
      return;
    default:
      return Answer(lane, reply_to,
                    proto::ErrorFrame(request->seq, {}, absl::InvalidArgumentError("kind")));
  }
}

void TestStore::Take(Lane& lane, Arrival arrival, const proto::Frame& request) {
  auto target = std::make_unique<std::vector<std::byte>>(arrival.payload_bytes(), std::byte{0xEE});
  const std::span<std::byte> span(*target);
  const ReplyTo reply_to = arrival.reply_to();
  lane.Receive(
      std::move(arrival), span, Deadline(),
      [this, &lane, reply_to, request,
       target = std::move(target)](const Received& received) mutable {
        PutOutcome outcome{received.status, false, received.crc32c};
        outcome.is_crc_right = received.status.ok() && received.crc32c == codecs::Crc32c(*target) &&
                               received.crc32c == request.payload_crc32c;
        proto::Frame reply;
        reply.seq = request.seq;
        reply.body = proto::PutReply{.is_duplicate = false, .image_bytes = target->size()};
        if (!outcome.is_crc_right) {
          reply = proto::ErrorFrame(request.seq, {}, absl::DataLossError("payload checksum"));
        }
        if (is_target_kept) targets_.push_back(std::move(*target));
        {
          const MutexLock lock(mutex_);
          outcomes_.push_back(outcome);
        }
        Answer(lane, reply_to, reply);
        ++receives_over;
      });
  ++receives_started;
  if (on_moving) on_moving();
}

size_t TestStore::TakeHeld(Lane& lane) {
  std::vector<Arrival> held = std::exchange(held_, {});
  for (Arrival& arrival : held) {
    const absl::StatusOr<proto::Frame> request = proto::ParseFrame(arrival.frame().bytes());
    Take(lane, std::move(arrival), *request);
  }
  return held.size();
}

void TestStore::OnPeerGone(Lane&, PeerId) { ++peers_gone; }

std::vector<PutOutcome> TestStore::TakeOutcomes() {
  const MutexLock lock(mutex_);
  return std::exchange(outcomes_, {});
}

proto::Frame HelloFrame(uint32_t window) {
  proto::Frame frame;
  frame.seq = 1;
  frame.deadline_ms = 1000;
  frame.body = proto::Hello{.version_max = 1, .window = window};
  return frame;
}

proto::FrameBytes PutRequest(uint64_t seq, std::span<const std::byte> payload) {
  proto::Frame frame;
  frame.seq = seq;
  // Some tests move more than a frame may announce; what counts here is what the transport says.
  frame.payload_bytes = std::min<size_t>(payload.size(), size_t{64} << 20);
  frame.payload_crc32c = codecs::Crc32c(payload);
  frame.deadline_ms = 1000;
  proto::Put put;
  put.space_id = 1;
  put.key.fill(std::byte{7});
  put.slice = {.layer_first = 0, .layer_count = 1, .head_first = 0, .head_count = 1};
  put.tokens = 128;
  frame.body = put;
  return proto::Serialize(frame);
}

proto::FrameBytes GetRequest(uint64_t seq, uint64_t target_bytes) {
  proto::Frame frame;
  frame.seq = seq;
  frame.deadline_ms = 1000;
  proto::Get get;
  get.space_id = 1;
  get.key.fill(std::byte{7});
  get.slice = {.layer_first = 0, .layer_count = 1, .head_first = 0, .head_count = 1};
  get.target_bytes = target_bytes;
  frame.body = get;
  return proto::Serialize(frame);
}

proto::FrameBytes PingRequest(uint64_t seq) {
  proto::Frame frame;
  frame.seq = seq;
  frame.deadline_ms = 1000;
  frame.body = proto::Ping{};
  return proto::Serialize(frame);
}

void Finish(Connection& connection, Call& call) {
  while (!call.over()) connection.Poll(call.deadline);
}

}  // namespace cairn::transport
