// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come over a data-plane connection: a frame, and a message of the local transport;
// and the metadata of a control call that we read.
// What is taken writes itself again, byte for byte. Each input is tried as it is and with its CRC
// made right, as few inputs would pass it otherwise.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "codecs/checksum/checksum.h"
#include "proto/frame.h"
#include "proto/frame_layout.h"
#include "proto/traceparent.h"
#include "transport/local/socket.h"

namespace {

using cairn::transport::Direction;

void TryFrame(std::span<const std::byte> bytes) {
  const auto frame = cairn::proto::ParseFrame(bytes);
  if (!frame.ok()) {
    CAIRN_CHECK(frame.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const cairn::proto::FrameBytes again = cairn::proto::Serialize(*frame);
  CAIRN_CHECK(std::ranges::equal(again.bytes(), bytes));
  CAIRN_CHECK(cairn::proto::SeqOf(bytes) == frame->seq);
  (void)cairn::proto::StatusOf(*frame);
}

void TryMessage(std::span<const std::byte> bytes, Direction direction) {
  const auto message = cairn::transport::ParseMessage(bytes, direction);
  if (message.ok()) {
    const auto again = cairn::transport::Serialize(message->envelope, message->frame);
    CAIRN_CHECK(std::ranges::equal(again.bytes(), bytes));
    TryFrame(message->frame.bytes());
  }
}

void TryTraceparent(std::string_view text) {
  const auto trace = cairn::proto::ParseTraceparent(text);
  if (trace.ok()) {
    CAIRN_CHECK(trace->trace() != 0 && trace->text().substr(2, 53) == text.substr(2, 53));
    CAIRN_CHECK(cairn::proto::ParseTraceparent(trace->text()).value() == *trace);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), bytes);
  TryFrame(input);
  TryTraceparent({reinterpret_cast<const char*>(data), bytes});
  TryMessage(input, Direction::kRequest);
  TryMessage(input, Direction::kReply);
  if (bytes >= cairn::proto::kFrameHeadBytes) {
    std::vector<std::byte> sealed(input.begin(), input.end());
    std::memset(sealed.data() + cairn::proto::kFrameCrcOffset, 0, sizeof(uint32_t));
    const uint32_t crc = cairn::codecs::Crc32c(sealed);
    std::memcpy(sealed.data() + cairn::proto::kFrameCrcOffset, &crc, sizeof(crc));
    TryFrame(sealed);
  }
  return 0;
}
