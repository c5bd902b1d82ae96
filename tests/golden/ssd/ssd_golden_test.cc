// SPDX-License-Identifier: Apache-2.0
// A tier's bytes are what docs/internals/formats/ssd.md draws: vectors from a second implementation
// of it.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "codecs/recipe/recipe.h"
#include "proto/block_key.h"
#include "service/tier/ssd/folder.h"
#include "service/tier/ssd/record.h"

namespace cairn {
namespace {

std::string Unhex(const YAML::Node& node) {
  const auto text = node.as<std::string>();
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// No bytes at all are zeros.
template <typename Array>
Array Fixed(const YAML::Node& node) {
  const std::string bytes = Unhex(node);
  Array value{};
  EXPECT_TRUE(bytes.empty() || bytes.size() == value.size());
  std::ranges::transform(bytes, value.begin(), [](char c) {
    return static_cast<typename Array::value_type>(static_cast<uint8_t>(c));
  });
  return value;
}

template <typename Value>
Value Number(const YAML::Node& node) {
  return static_cast<Value>(node.as<uint64_t>());
}

YAML::Node Vectors(const std::string& kind) {
  const YAML::Node vectors = YAML::LoadFile(CAIRN_GOLDEN_FILE)[kind];
  EXPECT_GE(vectors.size(), 2U) << kind;
  return vectors;
}

codecs::Recipe RecipeOf(const std::string& name) {
  codecs::Recipe recipe;
  if (name == "cairn:2.3") {
    EXPECT_EQ(codecs::ParseCairnRecipe(name, &recipe), codecs::Error::kOk);
    recipe.multiplier = -77;
  } else {
    EXPECT_EQ(codecs::ParseRecipe(name, &recipe), codecs::Error::kOk) << name;
  }
  return recipe;
}

TEST(SsdGolden, TierMeta) {
  for (const YAML::Node& vector : Vectors("tier_metas")) {
    const TierMeta meta{.tier_id = Fixed<SsdTierId>(vector["tier_id"]),
                        .segment_bytes = Number<uint64_t>(vector["segment_bytes"])};
    std::array<std::byte, kTierMetaBytes> written;
    EncodeTierMeta(meta, written);
    EXPECT_EQ(proto::Hex(written), vector["bytes"].as<std::string>());
    EXPECT_EQ(ParseTierMeta(BytesOf(Unhex(vector["bytes"]))).value(), meta);
  }
}

TEST(SsdGolden, SegmentHeader) {
  for (const YAML::Node& vector : Vectors("segment_headers")) {
    const SegmentHeader header{.tier_id = Fixed<SsdTierId>(vector["tier_id"]),
                               .slot = Number<uint32_t>(vector["slot"]),
                               .seq = Number<uint64_t>(vector["seq"]),
                               .segment_bytes = Number<uint64_t>(vector["segment_bytes"])};
    std::string drawn = Unhex(vector["begins"]);
    drawn.resize(kSegmentHeaderBytes);
    std::array<std::byte, kSegmentHeaderBytes> written;
    EncodeSegmentHeader(header, written);
    EXPECT_TRUE(std::ranges::equal(written, BytesOf(drawn)));
    EXPECT_EQ(ParseSegmentHeader(BytesOf(drawn)).value(), header);
  }
}

TEST(SsdGolden, Extents) {
  for (const YAML::Node& vector : Vectors("extents")) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    const YAML::Node& slice = vector["slice"];
    const ExtentRecord record{.space = Number<uint32_t>(vector["space"]),
                              .key = Fixed<proto::BlockKey>(vector["block"]),
                              .parent = Fixed<proto::BlockKey>(vector["parent"]),
                              .first_position = Number<uint64_t>(vector["first_position"]),
                              .tokens = Number<uint16_t>(vector["tokens"]),
                              .group = Number<uint16_t>(vector["group"]),
                              .slice = {Number<uint16_t>(slice[0]), Number<uint16_t>(slice[1]),
                                        Number<uint16_t>(slice[2]), Number<uint16_t>(slice[3])},
                              .source_bytes = Number<uint64_t>(vector["source_bytes"]),
                              .recipe = RecipeOf(vector["recipe"].as<std::string>()),
                              .image_bytes = Number<uint64_t>(vector["image_bytes"]),
                              .directory_crc = Number<uint32_t>(vector["directory_crc"]),
                              .side_object = Fixed<codecs::Digest>(vector["side_object"]),
                              .created_unix_s = Number<int64_t>(vector["created"]),
                              .expires_unix_s = Number<uint32_t>(vector["expires"])};
    const std::string key = Unhex(vector["key"]);
    const ExtentPlace place{.seq = Number<uint64_t>(vector["seq"]),
                            .page = Number<uint32_t>(vector["page"])};
    EXPECT_EQ(ExtentKey(place), key);
    EXPECT_EQ(ParseExtentKey(key).value(), place);
    EXPECT_EQ(EncodeExtent(key, record), Unhex(vector["value"]));
    const auto parsed = ParseExtent(key, Unhex(vector["value"]));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, record);
  }
}

TEST(SsdGolden, FieldsOfExtents) {
  for (const YAML::Node& vector : Vectors("names")) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    const auto hash = [&](const char* name) {
      return proto::EngineHash::From(BytesOf(Unhex(vector[name])), name).value();
    };
    const proto::EngineNames names = {.hash = hash("hash"),
                                      .parent = hash("parent"),
                                      .tokens = vector["tokens"].as<std::vector<uint32_t>>()};
    const std::string key = Unhex(vector["key"]);
    const ExtentPlace place{.seq = Number<uint64_t>(vector["seq"]),
                            .page = Number<uint32_t>(vector["page"])};
    EXPECT_EQ(FieldsKey(place), key);
    EXPECT_EQ(ParseFieldsKey(key).value(), place);
    if (vector["is_written"].as<bool>()) {
      EXPECT_EQ(EncodeFields(key, ShareNames(names)), Unhex(vector["value"]));
    }
    const auto parsed = ParseFields(key, Unhex(vector["value"]));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(**parsed, names);
  }
}

TEST(SsdGolden, SegmentsAndSmallValues) {
  for (const YAML::Node& vector : Vectors("segments")) {
    const std::string key = SegmentKey(Number<uint32_t>(vector["slot"]));
    const SegmentRecord record{.seq = Number<uint64_t>(vector["seq"]),
                               .state = Number<SegmentRecord::State>(vector["state"])};
    EXPECT_EQ(key, Unhex(vector["key"]));
    EXPECT_EQ(EncodeSegment(key, record), Unhex(vector["value"]));
    EXPECT_EQ(ParseSegment(key, Unhex(vector["value"])).value(), record);
  }
  for (const YAML::Node& vector : Vectors("metas")) {
    const std::string key = MetaKey(vector["name"].as<std::string>());
    EXPECT_EQ(key, Unhex(vector["key"]));
    EXPECT_EQ(EncodeMeta(key, Unhex(vector["bytes"])), Unhex(vector["value"]));
    EXPECT_EQ(ParseMeta(key, Unhex(vector["value"])).value(), Unhex(vector["bytes"]));
  }
}

proto::GroupGeometry GroupOf(const YAML::Node& node) {
  proto::GroupGeometry group;
  group.kind = Number<proto::GroupGeometry::Kind>(node["kind"]);
  group.layers = node["layers"].as<std::vector<uint32_t>>();
  group.kv_heads = Number<uint32_t>(node["kv_heads"]);
  group.k_dim = Number<uint32_t>(node["k_dim"]);
  group.v_dim = Number<uint32_t>(node["v_dim"]);
  group.window_tokens = Number<uint32_t>(node["window_tokens"]);
  group.rope.kind = Number<proto::Rope::Kind>(node["rope_kind"]);
  group.rope.rotary_dims = Number<uint32_t>(node["rotary_dims"]);
  group.rope.base = node["base"].as<double>();
  group.rope.inverse_frequencies = node["frequencies"].as<std::vector<double>>();
  group.state_bytes = Number<uint32_t>(node["state_bytes"]);
  group.row_bytes = Number<uint32_t>(node["row_bytes"]);
  return group;
}

SpaceRecord SpaceOf(const YAML::Node& vector) {
  SpaceRecord record;
  const YAML::Node& identity = vector["identity"];
  record.identity.tenant = identity["tenant"].as<std::string>();
  record.identity.model = identity["model"].as<std::string>();
  record.identity.weights_revision = identity["weights_revision"].as<std::string>();
  record.identity.dtype = Number<codecs::DType>(identity["dtype"]);
  record.identity.tokens_per_block = Number<uint32_t>(identity["tokens_per_block"]);
  for (const YAML::Node& group : identity["groups"]) {
    record.identity.groups.push_back(GroupOf(group));
  }
  record.fingerprint = proto::FingerprintOf(record.identity);
  record.recipe = vector["recipe"].as<std::string>();
  record.cold_recipe = vector["cold_recipe"].as<std::string>();
  record.ttl_s = Number<uint32_t>(vector["ttl"]);
  for (const YAML::Node& current : vector["current"]) {
    record.current.push_back({.group = Number<uint32_t>(current["group"]),
                              .kind = Number<proto::SideObjectKind>(current["kind"]),
                              .id = Fixed<codecs::Digest>(current["id"]),
                              .is_mined = Number<int>(current["is_mined"]) == 1});
  }
  return record;
}

TEST(SsdGolden, Spaces) {
  for (const YAML::Node& vector : Vectors("spaces")) {
    SCOPED_TRACE(vector["name"].as<std::string>());
    const std::string key = SpaceKey(Number<uint32_t>(vector["number"]));
    EXPECT_EQ(key, Unhex(vector["key"]));
    EXPECT_EQ(EncodeSpace(key, SpaceOf(vector)), Unhex(vector["value"]));
    const auto parsed = ParseSpace(key, Unhex(vector["value"]));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    // What is read writes the same again: no field is lost.
    EXPECT_EQ(EncodeSpace(key, *parsed), Unhex(vector["value"]));
  }
}

}  // namespace
}  // namespace cairn
