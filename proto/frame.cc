// SPDX-License-Identifier: Apache-2.0
#include "proto/frame.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "proto/frame_check.h"
#include "proto/frame_layout.h"

namespace cairn::proto {
namespace {

template <typename T>
T Load(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// Returns the CRC32C of the frame with its CRC field taken as zero.
uint32_t FrameCrc(std::span<const std::byte> bytes) {
  std::array<std::byte, kFrameBytesMax> copy;
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  std::memset(copy.data() + kFrameCrcOffset, 0, sizeof(uint32_t));
  return codecs::Crc32c(std::span<const std::byte>(copy.data(), bytes.size()));
}

// --- writing -----------------------------------------------------------------------------------

HelloLayout LayOut(const Hello& hello) {
  return {hello.version_max, 0, hello.window, hello.region_bytes};
}
HelloLayout LayOut(const HelloReply& reply) {
  return {reply.version, reply.batch_max, reply.window, reply.payload_bytes_max};
}
GetLayout LayOut(const Get& get) {
  return {get.space_id,
          get.key,
          get.lease,
          get.group,
          get.slice.layer_first,
          get.slice.layer_count,
          get.slice.head_first,
          get.slice.head_count,
          static_cast<uint8_t>(get.form),
          0,
          0,
          get.target_bytes};
}
GetReplyLayout LayOut(const GetReply& reply) {
  return {
      static_cast<uint8_t>(reply.form), reply.tier, 0, 0, reply.first_position, reply.source_bytes};
}
PutLayout LayOut(const Put& put) {
  return {put.space_id,
          put.key,
          put.parent,
          put.first_position,
          put.group,
          put.slice.layer_first,
          put.slice.layer_count,
          put.slice.head_first,
          put.slice.head_count,
          put.tokens,
          static_cast<uint8_t>(put.form),
          static_cast<uint8_t>(put.is_derived ? 1 : 0),
          static_cast<uint8_t>(put.statistics.bits() | (put.has_tokens ? kTokensBit : 0)),
          static_cast<uint8_t>(put.is_durable ? 1 : 0)};
}
PutReplyLayout LayOut(const PutReply& reply) {
  return {static_cast<uint8_t>(reply.is_duplicate ? 1 : 0),
          static_cast<uint8_t>(reply.durability),
          {},
          reply.image_bytes};
}

PutNamesLayout LayOutNames(const Put& put) {
  PutNamesLayout layout{};
  layout.hash_bytes = static_cast<uint8_t>(put.engine_hash.bytes().size());
  layout.parent_bytes = static_cast<uint8_t>(put.engine_parent.bytes().size());
  std::ranges::copy(put.engine_hash.bytes(), layout.hash.begin());
  std::ranges::copy(put.engine_parent.bytes(), layout.parent.begin());
  return layout;
}

// Writes the body after the head; returns its size.
size_t WriteBody(const Body& body, std::byte* target) {
  return std::visit(
      [target](const auto& typed) -> size_t {
        using T = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<T, ErrorReply>) {
          std::memcpy(target, typed.text.data(), typed.text.size());
          return typed.text.size();
        } else if constexpr (std::is_empty_v<T>) {
          return 0;
        } else {
          const auto layout = LayOut(typed);
          std::memcpy(target, &layout, sizeof(layout));
          if constexpr (std::is_same_v<T, Put>) {
            if (!typed.engine_hash.empty()) {
              const PutNamesLayout names = LayOutNames(typed);
              std::memcpy(target + sizeof(layout), &names, sizeof(names));
              return sizeof(layout) + sizeof(names);
            }
          }
          return sizeof(layout);
        }
      },
      body);
}

// Cuts text to kErrorTextBytesMax bytes, without splitting a UTF-8 sequence.
std::string_view CutText(std::string_view text) {
  if (text.size() <= kErrorTextBytesMax) {
    return text;
  }
  size_t bytes = kErrorTextBytesMax;
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xC0) == 0x80) {
    --bytes;
  }
  return text.substr(0, bytes);
}

// --- reading -----------------------------------------------------------------------------------

absl::StatusOr<Body> ReadHello(std::span<const std::byte> bytes) {
  const auto layout = Load<HelloLayout>(bytes);
  CAIRN_RETURN_IF_ERROR(CheckZero("hello.reserved", layout.batch_max));
  return Hello{layout.version, layout.window, layout.bytes};
}

absl::StatusOr<Body> ReadHelloReply(std::span<const std::byte> bytes) {
  const auto layout = Load<HelloLayout>(bytes);
  return HelloReply{layout.version, layout.window, layout.bytes, layout.batch_max};
}

absl::StatusOr<Body> ReadGet(std::span<const std::byte> bytes) {
  const auto layout = Load<GetLayout>(bytes);
  CAIRN_RETURN_IF_ERROR(CheckZero("get.reserved", uint64_t{layout.zero} | layout.zero_byte));
  return Get{layout.space_id,
             layout.key,
             layout.lease,
             layout.group,
             {layout.layer_first, layout.layer_count, layout.head_first, layout.head_count},
             static_cast<Form>(layout.form),  // CheckFrame() follows
             layout.target_bytes};
}

absl::StatusOr<Body> ReadGetReply(std::span<const std::byte> bytes) {
  const auto layout = Load<GetReplyLayout>(bytes);
  CAIRN_RETURN_IF_ERROR(CheckZero("get_reply.reserved", uint64_t{layout.zero} | layout.zero_short));
  return GetReply{static_cast<Form>(layout.form), layout.tier, layout.first_position,
                  layout.source_bytes};
}

// Reads a hash and checks that the bytes after it are zero.
absl::StatusOr<EngineHash> ReadHash(std::string_view field, uint8_t count,
                                    const std::array<std::byte, EngineHash::kBytesMax>& bytes) {
  CAIRN_RETURN_IF_ERROR(CheckRange(field, count, 0, EngineHash::kBytesMax));
  for (const std::byte unused : std::span(bytes).subspan(count)) {
    CAIRN_RETURN_IF_ERROR(CheckZero(field, static_cast<uint8_t>(unused)));
  }
  return EngineHash::From(std::span(bytes).first(count), field);
}

absl::Status ReadNames(const PutNamesLayout& layout, Put* put) {
  CAIRN_RETURN_IF_ERROR(CheckRange("put.engine_hash bytes", layout.hash_bytes,
                                   EngineHash::kBytesMin, EngineHash::kBytesMax));
  for (const uint8_t zero : layout.zero) {
    CAIRN_RETURN_IF_ERROR(CheckZero("put.reserved", zero));
  }
  CAIRN_ASSIGN_OR_RETURN(put->engine_hash,
                         ReadHash("put.engine_hash", layout.hash_bytes, layout.hash));
  CAIRN_ASSIGN_OR_RETURN(put->engine_parent,
                         ReadHash("put.engine_parent", layout.parent_bytes, layout.parent));
  return absl::OkStatus();
}

absl::StatusOr<Body> ReadPut(std::span<const std::byte> bytes) {
  constexpr size_t kWithNames = sizeof(PutLayout) + sizeof(PutNamesLayout);
  if (bytes.size() != sizeof(PutLayout)) {
    CAIRN_RETURN_IF_ERROR(CheckRange("put.body_bytes", bytes.size(), kWithNames, kWithNames));
  }
  const auto layout = Load<PutLayout>(bytes);
  CAIRN_RETURN_IF_ERROR(CheckRange("put.is_durable", layout.is_durable, 0, 1));
  CAIRN_RETURN_IF_ERROR(CheckRange("put.is_derived", layout.is_derived, 0, 1));
  CAIRN_RETURN_IF_ERROR(CheckRange("put.aux", layout.aux, 0, kTokensBit | StatisticSet::kBitsMax));
  Put put{layout.space_id,
          layout.key,
          layout.parent,
          layout.first_position,
          layout.group,
          {layout.layer_first, layout.layer_count, layout.head_first, layout.head_count},
          layout.tokens,
          static_cast<Form>(layout.form),
          layout.is_derived == 1,
          layout.is_durable == 1,
          StatisticSet(static_cast<uint8_t>(layout.aux & StatisticSet::kBitsMax)),
          (layout.aux & kTokensBit) != 0,
          {},
          {}};
  if (bytes.size() == kWithNames) {
    CAIRN_RETURN_IF_ERROR(ReadNames(Load<PutNamesLayout>(bytes.subspan(sizeof(PutLayout))), &put));
  }
  return put;
}

absl::StatusOr<Body> ReadPutReply(std::span<const std::byte> bytes) {
  const auto layout = Load<PutReplyLayout>(bytes);
  CAIRN_RETURN_IF_ERROR(CheckRange("put_reply.is_duplicate", layout.is_duplicate, 0, 1));
  for (const uint8_t zero : layout.zero) {
    CAIRN_RETURN_IF_ERROR(CheckZero("put_reply.reserved", zero));
  }
  CAIRN_RETURN_IF_ERROR(
      CheckRange("put_reply.durability", layout.durability, 0, kDurabilityCount - 1));
  return PutReply{layout.is_duplicate == 1, layout.image_bytes,
                  static_cast<Durability>(layout.durability)};
}

struct KindRow {
  size_t body_bytes_min, body_bytes_max;
  absl::StatusOr<Body> (*read)(std::span<const std::byte> body);
};

template <typename Empty>
absl::StatusOr<Body> ReadEmpty(std::span<const std::byte>) {
  return Empty{};
}

absl::StatusOr<Body> ReadError(std::span<const std::byte> bytes) {
  return ErrorReply{std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

// In the order of FrameKind, starting with kHello.
constexpr KindRow kKinds[] = {
    {sizeof(HelloLayout), sizeof(HelloLayout), &ReadHello},
    {sizeof(HelloLayout), sizeof(HelloLayout), &ReadHelloReply},
    {sizeof(GetLayout), sizeof(GetLayout), &ReadGet},
    {sizeof(GetReplyLayout), sizeof(GetReplyLayout), &ReadGetReply},
    {sizeof(PutLayout), sizeof(PutLayout) + sizeof(PutNamesLayout), &ReadPut},
    {sizeof(PutReplyLayout), sizeof(PutReplyLayout), &ReadPutReply},
    {0, 0, &ReadEmpty<Ping>},
    {0, 0, &ReadEmpty<Pong>},
    {0, 0, &ReadEmpty<Goodbye>},
    {0, kErrorTextBytesMax, &ReadError},
};
static_assert(std::size(kKinds) == std::variant_size_v<Body>);

}  // namespace

FrameBytes Serialize(const Frame& frame) {
  Frame cut;
  const Frame* source = &frame;
  if (const auto* error = std::get_if<ErrorReply>(&frame.body);
      error != nullptr && error->text.size() > kErrorTextBytesMax) {
    cut = frame;
    cut.body = ErrorReply{std::string(CutText(error->text))};
    source = &cut;
  }
  CAIRN_CHECK_OK(CheckFrame(*source));

  FrameBytes out;
  const size_t body_bytes = WriteBody(source->body, out.data.data() + kFrameHeadBytes);
  HeadLayout head{};
  head.magic = kFrameMagic;
  head.version = kFrameVersion;
  head.kind = static_cast<uint8_t>(source->kind());
  head.seq = source->seq;
  head.ticket = source->ticket;
  head.payload_bytes = source->payload_bytes;
  head.payload_crc32c = source->payload_crc32c;
  head.deadline_ms = source->deadline_ms;
  head.status = static_cast<uint16_t>(source->status);
  head.body_bytes = static_cast<uint16_t>(body_bytes);
  head.trace_low = static_cast<uint32_t>(source->trace);
  head.trace_high = static_cast<uint32_t>(source->trace >> 32);
  out.size = static_cast<uint16_t>(kFrameHeadBytes + body_bytes);
  std::memcpy(out.data.data(), &head, sizeof(head));
  head.frame_crc32c = FrameCrc(out.bytes());
  std::memcpy(out.data.data(), &head, sizeof(head));
  return out;
}

absl::StatusOr<Frame> ParseFrame(std::span<const std::byte> bytes) {
  CAIRN_RETURN_IF_ERROR(CheckRange("bytes", bytes.size(), kFrameHeadBytes, kFrameBytesMax));
  const auto head = Load<HeadLayout>(bytes);
  if (head.magic != kFrameMagic) {
    return absl::InvalidArgumentError("frame: magic is not CRN1");
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("version", head.version, kFrameVersion, kFrameVersion));
  if (head.frame_crc32c != FrameCrc(bytes)) {
    return absl::InvalidArgumentError("frame: frame_crc32c does not match its bytes");
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("kind", head.kind, 1, std::size(kKinds)));
  const KindRow& row = kKinds[head.kind - 1];
  CAIRN_RETURN_IF_ERROR(
      CheckRange("body_bytes", head.body_bytes, row.body_bytes_min, row.body_bytes_max));
  CAIRN_RETURN_IF_ERROR(CheckRange("body_bytes", head.body_bytes, bytes.size() - kFrameHeadBytes,
                                   bytes.size() - kFrameHeadBytes));
  CAIRN_RETURN_IF_ERROR(CheckZero("flags", head.flags));

  CAIRN_ASSIGN_OR_RETURN(Body body, row.read(bytes.subspan(kFrameHeadBytes)));
  Frame frame{head.seq,
              head.ticket,
              head.payload_bytes,
              head.payload_crc32c,
              head.deadline_ms,
              static_cast<absl::StatusCode>(head.status),  // checked next
              uint64_t{head.trace_high} << 32 | head.trace_low,
              std::move(body)};
  CAIRN_RETURN_IF_ERROR(CheckFrame(frame));
  return frame;
}

std::optional<uint64_t> SeqOf(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeadBytes) {
    return std::nullopt;
  }
  return Load<uint64_t>(bytes.subspan(offsetof(HeadLayout, seq)));
}

bool TicketsEqual(const Ticket& a, const Ticket& b) {
  // Combining all differences with OR needs no branch, so the time does not depend on the data.
  // `volatile` keeps the compiler from adding one.
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<uint8_t>(a[i] ^ b[i]);
  }
  return difference == 0;
}

Frame ErrorFrame(uint64_t request_seq, const Ticket& ticket, const absl::Status& status) {
  CAIRN_CHECK(!status.ok());
  Frame frame;
  frame.seq = request_seq;
  frame.ticket = ticket;
  frame.status = status.code();
  frame.body = ErrorReply{std::string(CutText(ToStd(status.message())))};
  return frame;
}

absl::Status StatusOf(const Frame& reply) {
  if (reply.status == absl::StatusCode::kOk) {
    return absl::OkStatus();
  }
  const auto* error = std::get_if<ErrorReply>(&reply.body);
  return absl::Status(reply.status, error != nullptr ? ToAbsl(error->text) : absl::string_view());
}

}  // namespace cairn::proto
