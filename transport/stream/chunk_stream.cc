// SPDX-License-Identifier: Apache-2.0
#include "transport/stream/chunk_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"

namespace cairn::transport {

ChunkStream::State ChunkStream::End(absl::Status why) {
  is_stopped_ = true;
  if (end_.ok()) end_ = std::move(why);
  return State::kEnded;
}

ChunkStream::State ChunkStream::EndOf(TlsStep step) {
  return End(step == TlsStep::kClosed ? absl::UnavailableError("the peer has closed the connection")
                                      : session_.failure());
}

ChunkStream::State ChunkStream::Read() {
  std::array<std::byte, 4096> dropped;
  size_t bytes = 0;
  for (int i = 0; i < kStreamStepReads && bytes < kStreamStepBytes; ++i) {
    if (is_stopped_) return State::kEnded;
    const size_t data_left = is_in_data_ ? chunk_.data_bytes - data_have_ : 0;
    std::span<std::byte> into;
    if (!is_in_data_) {
      into = std::span(front_).subspan(front_have_, front_want_ - front_have_);
    } else if (sink_.target.empty()) {
      into = std::span(dropped).first(std::min(data_left, dropped.size()));
    } else {
      into = sink_.target.subspan(data_have_, data_left);
    }
    const TlsSession::Moved moved = session_.Read(into);
    if (moved.step == TlsStep::kWantsRead || moved.step == TlsStep::kWantsWrite) {
      return State::kWaits;
    }
    if (moved.step != TlsStep::kDone) return EndOf(moved.step);
    bytes += moved.bytes;
    bytes_read_ += moved.bytes;
    absl::Status taken;
    if (is_in_data_) {
      taken = TakeData(into.first(moved.bytes));
    } else {
      front_have_ += moved.bytes;
      taken = front_have_ == front_want_ ? TakeFront() : absl::OkStatus();
    }
    if (!taken.ok()) return End(std::move(taken));
  }
  return is_stopped_ ? State::kEnded : State::kMore;
}

absl::Status ChunkStream::TakeFront() {
  if (front_want_ == kChunkHeadBytes) {
    CAIRN_ASSIGN_OR_RETURN(front_want_, ParseChunkHead(std::span(front_).first(kChunkHeadBytes)));
    if (front_want_ > front_have_) return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(chunk_, ParseChunk(std::span(front_).first(front_want_)));
  front_have_ = 0;
  front_want_ = kChunkHeadBytes;
  sink_ = Sink();
  CAIRN_RETURN_IF_ERROR(user_.OnChunk(chunk_, &sink_));
  if (is_stopped_) return absl::OkStatus();
  CAIRN_CHECK(sink_.target.empty() || sink_.target.size() == chunk_.data_bytes);
  if (chunk_.data_bytes == 0) return user_.OnChunkEnd(chunk_);
  is_in_data_ = true;
  data_have_ = 0;
  return absl::OkStatus();
}

absl::Status ChunkStream::TakeData(std::span<const std::byte> data) {
  if (sink_.crc32c != nullptr) *sink_.crc32c = codecs::ExtendCrc32c(*sink_.crc32c, data);
  data_have_ += data.size();
  if (data_have_ < chunk_.data_bytes) return absl::OkStatus();
  is_in_data_ = false;
  return user_.OnChunkEnd(chunk_);
}

bool ChunkStream::StageNext() {
  Chunk chunk;
  std::span<const std::byte> data;
  if (!user_.NextChunk(&chunk, &data)) return false;
  CAIRN_CHECK(data.size() == chunk.data_bytes);
  const size_t front = WriteChunk(chunk, std::span(*staged_).first<kChunkFrontBytesMax>());
  const size_t first = std::min(data.size(), staged_->size() - front);
  if (first > 0) std::memcpy(staged_->data() + front, data.data(), first);
  staged_bytes_ = front + first;
  staged_sent_ = 0;
  rest_ = data.subspan(first);
  is_in_chunk_ = true;
  return true;
}

ChunkStream::State ChunkStream::Write() {
  wants_write_ = false;
  // Ends: each turn moves bytes, up to a limit, or returns.
  for (size_t bytes = 0; bytes < kStreamStepBytes;) {
    if (is_stopped_) return State::kEnded;
    if (!is_in_chunk_ && !StageNext()) return is_stopped_ ? State::kEnded : State::kWaits;
    const bool is_staged = staged_sent_ < staged_bytes_;
    const std::span<const std::byte> from =
        is_staged ? std::span(*staged_).subspan(staged_sent_, staged_bytes_ - staged_sent_) : rest_;
    if (!from.empty()) {
      const TlsSession::Moved moved = session_.Write(from);
      if (moved.step == TlsStep::kWantsWrite || moved.step == TlsStep::kWantsRead) {
        wants_write_ = moved.step == TlsStep::kWantsWrite;
        return State::kWaits;
      }
      if (moved.step != TlsStep::kDone) return EndOf(moved.step);
      bytes += moved.bytes;
      if (is_staged) {
        staged_sent_ += moved.bytes;
      } else {
        rest_ = rest_.subspan(moved.bytes);
      }
    }
    if (staged_sent_ == staged_bytes_ && rest_.empty()) {
      is_in_chunk_ = false;
      user_.OnChunkSent();
    }
  }
  return is_stopped_ ? State::kEnded : State::kMore;
}

}  // namespace cairn::transport
