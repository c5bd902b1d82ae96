// SPDX-License-Identifier: Apache-2.0
// Frames are what docs/internals/formats/frame.md draws: vectors from a second implementation of
// that page.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string>
#include <vector>

#include "proto/block_key.h"
#include "proto/frame.h"
#include "transport/local/loans.h"
#include "transport/local/socket.h"

namespace cairn::proto {
namespace {

std::vector<std::byte> Unhex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <size_t kBytes>
std::array<std::byte, kBytes> Fixed(const YAML::Node& node) {
  const std::vector<std::byte> bytes = Unhex(node.as<std::string>());
  std::array<std::byte, kBytes> value{};
  EXPECT_EQ(bytes.size(), kBytes);
  std::copy_n(bytes.begin(), std::min(bytes.size(), kBytes), value.begin());
  return value;
}

SliceRange Slice(const YAML::Node& body) {
  return {body["layer_first"].as<uint16_t>(), body["layer_count"].as<uint16_t>(),
          body["head_first"].as<uint16_t>(), body["head_count"].as<uint16_t>()};
}

EngineHash HashOf(const YAML::Node& node) {
  return EngineHash::From(Unhex(node.as<std::string>("")), "hash").value();
}

Form FormOf(const YAML::Node& body) { return static_cast<Form>(body["form"].as<int>()); }

Body BodyOf(const std::string& kind, const YAML::Node& body) {
  if (kind == "hello") {
    return Hello{body["version_max"].as<uint16_t>(), body["window"].as<uint32_t>(),
                 body["region_bytes"].as<uint64_t>()};
  }
  if (kind == "hello_reply") {
    return HelloReply{body["version"].as<uint16_t>(), body["window"].as<uint32_t>(),
                      body["payload_bytes_max"].as<uint64_t>(), body["batch_max"].as<uint16_t>(0)};
  }
  if (kind == "get") {
    return Get{body["space_id"].as<uint64_t>(),
               Fixed<32>(body["key"]),
               Fixed<16>(body["lease"]),
               body["group"].as<uint16_t>(),
               Slice(body),
               FormOf(body),
               body["target_bytes"].as<uint64_t>()};
  }
  if (kind == "get_reply") {
    return GetReply{FormOf(body), static_cast<uint8_t>(body["tier"].as<int>()),
                    body["first_position"].as<uint64_t>(), body["source_bytes"].as<uint64_t>()};
  }
  if (kind == "put") {
    return Put{body["space_id"].as<uint64_t>(),
               Fixed<32>(body["key"]),
               Fixed<32>(body["parent"]),
               body["first_position"].as<uint64_t>(),
               body["group"].as<uint16_t>(),
               Slice(body),
               body["tokens"].as<uint16_t>(),
               FormOf(body),
               body["is_derived"].as<int>() == 1,
               body["is_durable"].as<int>(0) == 1,
               proto::StatisticSet(static_cast<uint8_t>(body["aux"].as<int>() & 7)),
               (body["aux"].as<int>() & 8) != 0,
               HashOf(body["engine_hash"]),
               HashOf(body["engine_parent"])};
  }
  if (kind == "put_reply") {
    return PutReply{body["is_duplicate"].as<int>() == 1, body["image_bytes"].as<uint64_t>(),
                    static_cast<Durability>(body["durability"].as<int>(0))};
  }
  if (kind == "ping") {
    return Ping{};
  }
  if (kind == "pong") {
    return Pong{};
  }
  if (kind == "goodbye") {
    return Goodbye{};
  }
  EXPECT_EQ(kind, "error");
  return ErrorReply{body["text"].as<std::string>()};
}

TEST(FrameGolden, WrittenAndReadAsDrawn) {
  const YAML::Node vectors = YAML::LoadFile(CAIRN_GOLDEN_FILE)["frames"];
  ASSERT_GE(vectors.size(), 15u);
  for (const YAML::Node& vector : vectors) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    Frame frame;
    frame.seq = vector["seq"].as<uint64_t>();
    frame.ticket = Fixed<16>(vector["ticket"]);
    frame.payload_bytes = vector["payload_bytes"].as<uint64_t>();
    frame.payload_crc32c = vector["payload_crc32c"].as<uint32_t>();
    frame.deadline_ms = vector["deadline_ms"].as<uint32_t>();
    frame.status = static_cast<absl::StatusCode>(vector["status"].as<int>());
    frame.trace = vector["trace"].as<uint64_t>(0);
    frame.body = BodyOf(vector["kind"].as<std::string>(), vector["body"]);

    const FrameBytes written = Serialize(frame);
    const std::string drawn = vector["bytes"].as<std::string>();
    EXPECT_EQ(Hex(written.bytes()), drawn);
    EXPECT_EQ(SeqOf(written.bytes()), frame.seq);

    // What is read from the drawn bytes writes them again: no field is lost.
    const auto read = ParseFrame(Unhex(drawn));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->kind(), frame.kind());
    EXPECT_EQ(Hex(Serialize(*read).bytes()), drawn);
  }
}

TEST(MessageGolden, WrittenAndReadAsDrawn) {
  const YAML::Node vectors = YAML::LoadFile(CAIRN_GOLDEN_FILE)["messages"];
  ASSERT_EQ(vectors.size(), 5u);
  for (const YAML::Node& vector : vectors) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    const auto direction = static_cast<transport::Direction>(vector["direction"].as<int>());
    const transport::Envelope envelope{
        direction, vector["payload_place"].as<uint64_t>(), vector["payload_bytes"].as<uint64_t>(),
        vector["reply_place"].as<uint64_t>(), vector["reply_capacity_bytes"].as<uint64_t>()};
    const std::vector<std::byte> framed = Unhex(vector["frame"].as<std::string>());
    FrameBytes frame;
    frame.size = static_cast<uint16_t>(framed.size());
    std::copy(framed.begin(), framed.end(), frame.data.begin());
    const std::string drawn = vector["bytes"].as<std::string>();
    EXPECT_EQ(Hex(transport::Serialize(envelope, frame).bytes()), drawn);
    const bool is_request = direction == transport::Direction::kRequest ||
                            direction == transport::Direction::kLendableRequest;
    const auto read = transport::ParseMessage(
        Unhex(drawn), is_request ? transport::Direction::kRequest : transport::Direction::kReply,
        /*is_mapped=*/true);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(Hex(transport::Serialize(read->envelope, read->frame).bytes()), drawn);
  }
}

TEST(PlacesGolden, ListedAsDrawn) {
  const YAML::Node vectors = YAML::LoadFile(CAIRN_GOLDEN_FILE)["places"];
  ASSERT_EQ(vectors.size(), 2u);
  for (const YAML::Node& vector : vectors) {
    std::string written;
    for (const YAML::Node& listed : vector["places"]) {
      const transport::ListedPlace place{listed[0].as<uint64_t>(), listed[1].as<uint64_t>()};
      written += Hex(std::as_bytes(std::span(&place, 1)));
    }
    EXPECT_EQ(written + vector["head"].as<std::string>(), vector["bytes"].as<std::string>());
  }
}

}  // namespace
}  // namespace cairn::proto
