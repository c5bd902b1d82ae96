// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport/test_daemon.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"

namespace cairn::transport {
namespace {

proto::SliceRange OneTile() { return {0, 1, 0, 1}; }

}  // namespace

void TestDaemon::OnArrival(Lane& lane, Arrival arrival) {
  arrivals.fetch_add(1);
  const absl::StatusOr<proto::Frame> frame = proto::ParseFrame(arrival.frame().bytes());
  if (!frame.ok()) {
    AnswerError(lane, arrival.reply_to(), frame.status());
    return;
  }
  CAIRN_CHECK(frame->seq == arrival.reply_to().seq);
  if (intercept && intercept(lane, arrival, *frame)) {
    return;
  }
  if (const auto* hello = std::get_if<proto::Hello>(&frame->body)) {
    hellos.fetch_add(1);
    proto::Frame reply;
    reply.seq = frame->seq;
    reply.body = proto::HelloReply{
        lane.can_lend() && hello->version_max >= proto::kVersionWithLoans ? proto::kVersionWithLoans
                                                                          : uint16_t{1},
        hello->window, proto::kPayloadBytesMax,
        hello->version_max >= proto::kVersionWithBatches && takes_batches ? proto::kBatchMax
                                                                          : uint16_t{0}};
    Answer(lane, arrival.reply_to(), reply);
  } else if (std::holds_alternative<proto::Put>(frame->body)) {
    TakePut(lane, std::move(arrival), *frame);
  } else if (std::holds_alternative<proto::Get>(frame->body)) {
    AnswerGet(lane, arrival.reply_to(), *frame);
  } else if (std::holds_alternative<proto::Ping>(frame->body)) {
    proto::Frame reply;
    reply.seq = frame->seq;
    reply.body = proto::Pong{};
    Answer(lane, arrival.reply_to(), reply);
  }
}

void TestDaemon::OnPeerGone(Lane&, PeerId) { peers_gone.fetch_add(1); }

void TestDaemon::TakePut(Lane& lane, Arrival arrival, const proto::Frame& frame) {
  if (arrival.payload_bytes() != frame.payload_bytes) {
    mismatches.fetch_add(1);
    AnswerError(lane, arrival.reply_to(), absl::InvalidArgumentError("payload_bytes differ"));
    return;
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(frame.payload_bytes);
  const ReplyTo reply_to = arrival.reply_to();
  const std::span<std::byte> target(*bytes);
  transfers_begun.fetch_add(1);
  lane.Receive(
      std::move(arrival), target, MonotonicNow() + transfer_wait,
      [this, &lane, bytes, reply_to, frame](Received received) {
        transfers_over.fetch_add(1);
        if (!received.status.ok()) {
          return;  // nobody is left to answer
        }
        CAIRN_CHECK(received.crc32c == codecs::Crc32c(*bytes), "the CRC is not of the target");
        if (received.crc32c != frame.payload_crc32c) {
          mismatches.fetch_add(1);
          AnswerError(lane, reply_to, absl::DataLossError("payload_crc32c does not match"));
          return;
        }
        Store(std::get<proto::Put>(frame.body).key, std::move(*bytes));
        stored.fetch_add(1);
        proto::Frame reply;
        reply.seq = frame.seq;
        reply.body = proto::PutReply{false, frame.payload_bytes};
        Answer(lane, reply_to, reply);
      });
}

void TestDaemon::AnswerGet(Lane& lane, const ReplyTo& reply_to, const proto::Frame& frame) {
  const Bytes bytes = Find(std::get<proto::Get>(frame.body).key);
  if (bytes == nullptr) {
    AnswerError(lane, reply_to, absl::NotFoundError("no such block"));
    return;
  }
  if (bytes->size() > reply_to.capacity_bytes) {
    AnswerError(lane, reply_to, absl::InvalidArgumentError("the target is too small"));
    return;
  }
  proto::Frame reply;
  reply.seq = frame.seq;
  reply.payload_bytes = bytes->size();
  reply.payload_crc32c = codecs::Crc32c(*bytes);
  reply.body = proto::GetReply{};
  if (const auto place = FindShared(std::get<proto::Get>(frame.body).key);
      reply_to.takes_loan && !place.empty() && lane.CanLendNow(place)) {
    transfers_begun.fetch_add(1);
    if (lent_places > 0 && reply_to.takes_places &&
        AnswerInPlaces(lane, reply_to, proto::Serialize(reply), place)) {
      return;
    }
    lane.Lend(
        reply_to, proto::Serialize(reply), place, MonotonicNow() + loan_wait,
        [](const absl::Status&) {},
        [this](LoanEnd end) {
          loans_over[static_cast<size_t>(end)].fetch_add(1);
          transfers_over.fetch_add(1);
        });
    return;
  }
  Answer(lane, reply_to, reply, bytes);
}

bool TestDaemon::AnswerInPlaces(Lane& lane, const ReplyTo& reply_to, const proto::FrameBytes& frame,
                                std::span<const std::byte> payload) {
  constexpr size_t kHeadBytes = 100;
  const size_t count = lent_places;
  if (payload.size() < kHeadBytes + count) return false;
  auto places = std::make_shared<std::vector<std::span<const std::byte>>>();
  std::span<const std::byte> rest = payload.subspan(kHeadBytes);
  for (size_t i = 0; i < count; ++i) {  // of different sizes, the last one has the rest
    const size_t bytes = i + 1 == count ? rest.size() : 1 + (rest.size() - count) * (i % 3) / 97;
    places->push_back(rest.first(bytes));
    rest = rest.subspan(bytes);
  }
  const PlacedPayload placed{payload.first(kHeadBytes), *places};
  if (placed.room_bytes() > reply_to.capacity_bytes) return false;
  if (moves_places) {
    lane.ReplyPlaces(reply_to, frame, placed, MonotonicNow() + transfer_wait,
                     [this, places](absl::Status) { transfers_over.fetch_add(1); });
    return true;
  }
  lane.LendPlaces(
      reply_to, frame, placed, MonotonicNow() + loan_wait, [](const absl::Status&) {},
      [this](LoanEnd end) {
        loans_over[static_cast<size_t>(end)].fetch_add(1);
        transfers_over.fetch_add(1);
      });
  return true;
}

void TestDaemon::AnswerError(Lane& lane, const ReplyTo& reply_to, const absl::Status& status) {
  Answer(lane, reply_to, proto::ErrorFrame(reply_to.seq, {}, status));
}

void TestDaemon::Answer(Lane& lane, const ReplyTo& reply_to, const proto::Frame& frame,
                        Bytes payload) {
  transfers_begun.fetch_add(1);
  const std::span<const std::byte> bytes =
      payload == nullptr ? std::span<const std::byte>() : std::span<const std::byte>(*payload);
  lane.Reply(reply_to, proto::Serialize(frame), bytes, MonotonicNow() + transfer_wait,
             [this, payload](absl::Status) { transfers_over.fetch_add(1); });
}

void TestDaemon::Store(const proto::BlockKey& key, std::vector<std::byte> bytes) {
  auto block = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  const MutexLock lock(mutex_);
  if (shared != nullptr && !block->empty()) {
    const std::span<std::byte> place = shared->Take(block->size());
    std::memcpy(place.data(), block->data(), place.size());
    shared_blocks_[key] = place;
  }
  blocks_[key] = std::move(block);
}

std::span<const std::byte> TestDaemon::FindShared(const proto::BlockKey& key) {
  const MutexLock lock(mutex_);
  const auto found = shared_blocks_.find(key);
  return found == shared_blocks_.end() ? std::span<const std::byte>() : found->second;
}

TestDaemon::Bytes TestDaemon::Find(const proto::BlockKey& key) {
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(key);
  return found == blocks_.end() ? nullptr : found->second;
}

proto::Frame HelloFrame(uint32_t window) {
  proto::Frame frame;
  frame.body = proto::Hello{1, window, 0};
  return frame;
}

proto::BlockKey KeyOf(uint64_t number) {
  proto::BlockKey key{};
  key[31] = std::byte{1};
  std::memcpy(key.data(), &number, sizeof(number));
  return key;
}

proto::Frame PutFrame(uint64_t seq, const proto::BlockKey& key,
                      std::span<const std::byte> payload) {
  proto::Frame frame;
  frame.seq = seq;
  frame.payload_bytes = payload.size();
  frame.payload_crc32c = codecs::Crc32c(payload);
  frame.deadline_ms = 10'000;
  proto::Put put;
  put.key = key;
  put.slice = OneTile();
  put.tokens = 128;
  frame.body = put;
  return frame;
}

proto::Frame GetFrame(uint64_t seq, const proto::BlockKey& key, uint64_t target_bytes) {
  proto::Frame frame;
  frame.seq = seq;
  frame.deadline_ms = 10'000;
  proto::Get get;
  get.key = key;
  get.slice = OneTile();
  get.target_bytes = target_bytes;
  frame.body = get;
  return frame;
}

std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> pattern(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (size_t i = 0; i < bytes; i += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(pattern.data() + i, &state, std::min(sizeof(state), bytes - i));
  }
  return pattern;
}

void Await(Connection& connection, Call& call) {
  while (!call.over()) {  // ends: a call is over at its deadline
    connection.Poll(call.deadline);
  }
}

absl::Status Exchange(Connection& connection, Call& call, const proto::Frame& frame) {
  call.request = proto::Serialize(frame);
  if (call.deadline == absl::InfinitePast()) {
    call.deadline = MonotonicNow() + absl::Seconds(20);
  }
  CAIRN_RETURN_IF_ERROR(connection.Start(&call));
  Await(connection, call);
  CAIRN_RETURN_IF_ERROR(call.status);
  CAIRN_ASSIGN_OR_RETURN(const proto::Frame reply, proto::ParseFrame(call.reply.bytes()));
  CAIRN_CHECK(reply.seq == frame.seq);
  return proto::StatusOf(reply);
}

int FdCount() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<int>(std::distance(begin(folder), end(folder)));
}

int MappingCount(const std::string& text) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(text) != line.npos ? 1 : 0;
  }
  return count;
}

}  // namespace cairn::transport
