// SPDX-License-Identifier: Apache-2.0
#include "transport/local/envelope.h"

#include <bit>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cairn::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "envelopes are copied, not swapped");

constexpr uint32_t kMagic = 0x4C4E5243;  // "CRNL"
constexpr uint8_t kVersion = 1;

struct Layout {
  uint32_t magic;
  uint8_t version;
  uint8_t direction;
  uint16_t frame_bytes;
  uint64_t payload_place;
  uint64_t payload_bytes;
  uint64_t reply_place;
  uint64_t reply_capacity_bytes;
};
static_assert(sizeof(Layout) == kEnvelopeBytes);

}  // namespace

MessageBytes Serialize(const Envelope& envelope, const proto::FrameBytes& frame) {
  CAIRN_CHECK(frame.size >= proto::kFrameHeadBytes && frame.size <= proto::kFrameBytesMax);
  const Layout layout{kMagic,
                      kVersion,
                      static_cast<uint8_t>(envelope.direction),
                      frame.size,
                      envelope.payload_place,
                      envelope.payload_bytes,
                      envelope.reply_place,
                      envelope.reply_capacity_bytes};
  MessageBytes message;
  std::memcpy(message.data.data(), &layout, sizeof(layout));
  std::memcpy(message.data.data() + sizeof(layout), frame.data.data(), frame.size);
  message.size = sizeof(layout) + frame.size;
  return message;
}

absl::StatusOr<Message> ParseMessage(std::span<const std::byte> bytes, Direction expected,
                                     bool is_mapped) {
  if (bytes.size() < kEnvelopeBytes + proto::kFrameHeadBytes || bytes.size() > kMessageBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: it has ", bytes.size(), " bytes, expected ",
                     kEnvelopeBytes + proto::kFrameHeadBytes, " to ", kMessageBytesMax));
  }
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  if (layout.magic != kMagic) {
    return absl::InvalidArgumentError("message: magic is not CRNL");
  }
  if (layout.version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: version is ", int{layout.version}, ", expected ", int{kVersion}));
  }
  const Direction lending =
      expected == Direction::kRequest ? Direction::kLendableRequest : Direction::kLoan;
  const bool is_lending = is_mapped && layout.direction == static_cast<uint8_t>(lending);
  if (layout.direction != static_cast<uint8_t>(expected) && !is_lending) {
    return absl::InvalidArgumentError(absl::StrCat("message: direction is ", int{layout.direction},
                                                   ", expected ", static_cast<int>(expected)));
  }
  if (layout.frame_bytes != bytes.size() - kEnvelopeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("message: frame_bytes is ", layout.frame_bytes,
                                                   ", expected ", bytes.size() - kEnvelopeBytes));
  }
  Message message;
  message.envelope = {is_lending ? lending : expected, layout.payload_place, layout.payload_bytes,
                      layout.reply_place, layout.reply_capacity_bytes};
  message.frame.size = layout.frame_bytes;
  std::memcpy(message.frame.data.data(), bytes.data() + kEnvelopeBytes, layout.frame_bytes);
  message.seq = *proto::SeqOf(message.frame.bytes());
  return message;
}

}  // namespace cairn::transport
